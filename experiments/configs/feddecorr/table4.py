"""Table 4 of FedDecorr (TPAMI 2023): FedAvg with and without it, with 10 to 100 clients.

    python experiments/launch.py --config=experiments/configs/feddecorr/table4.py:offline --workdir=runs/table4

* ``:full``: the published study on CIFAR100 and Tiny-ImageNet, 120 runs of MobileNetV2. ``docs/data.md``: the data.
* ``:offline``: the same numbers of clients on a hundred classes of glyphs, with a small network; not comparable.
* ``:smoke``: two rounds with 10 and with 50 clients.

50 and 100 clients: a fifth of them in each round, for 100 rounds. The paper says 50 rounds for the others, but its row
of 10 clients on CIFAR100 is that of table 1, with 100: ours are those of table 1. ``iclr_table3.py`` is the table of
the ICLR version.
"""

from collections.abc import Iterable, Sequence

from experiments.configs.base import GetConfig
from experiments.configs.feddecorr import base
from fedjax_collapse.config.published import GLYPHS_100, Changes, crossed

CLIENTS = (10, 20, 30, 50, 100)  # paper
EVERY, SHARE = 30, 0.2  # paper: beyond 30 clients, a fifth of them takes part in a round
ALPHAS = (0.05, 0.1)  # paper
WHY = "ours are synthetic images of 16x16 pixels and a small network, not {} and MobileNetV2"
PAPER = {  # percent: CIFAR100 at both alphas, Tiny-ImageNet at both, each with CLIENTS
    "fedavg": (
        *(59.87, 59.56, 56.00, 44.66, 41.40, 66.46, 62.78, 61.77, 53.28, 50.45),
        *(35.02, 31.21, 26.20, 25.70, 21.53, 39.30, 35.30, 30.88, 28.88, 24.69),
    ),
    "fedavg_decorr": (
        *(61.53, 61.31, 57.47, 48.06, 46.78, 67.12, 63.30, 62.54, 54.48, 51.90),
        *(40.29, 39.41, 36.50, 34.50, 30.55, 43.86, 41.27, 39.02, 36.67, 33.85),
    ),
}

# small batches, or a hundred clients of fifty images each would take no steps
OFFLINE = dict(data=GLYPHS_100, rounds=40, training=dict(epochs=2, batch_size=8), evaluate_every=10)


def of_clients(alphas: Iterable[float], rounds: int) -> dict[str, dict]:
    """Each alpha with each number of clients; of more than 30, a fifth takes part in each of these rounds."""
    few = {n: dict(clients=n, participation=1.0) for n in CLIENTS if n <= EVERY}
    many = {n: dict(clients=n, participation=SHARE, rounds=rounds) for n in CLIENTS if n > EVERY}
    return crossed(base.skews(alphas), few | many)


def on_clients(data: Sequence[str], alphas: Iterable[float], paper: Changes, smoke: Sequence[str]) -> GetConfig:
    """Returns the ``get_config`` of a study with these data sets and alphas, in the order of the table.

    Offline, on glyphs of a hundred classes, all see as many images: a fifth of the clients has five times as many
    rounds.
    """
    rounds = round(OFFLINE["rounds"] / SHARE)
    of_glyphs = dict(offline_settings=crossed(dict(glyphs={}), of_clients(alphas, rounds)), offline=OFFLINE)
    columns = of_clients(alphas, rounds=100)  # paper: the rounds
    return base.grid(columns, *data, paper=paper, why=WHY, smoke=smoke, **of_glyphs)


SMOKE = ["glyphs-0.1-10", "glyphs-0.1-50"]
TABLE = dict(source=f"{base.SOURCE}, Table 4", rows=PAPER)

get_config = on_clients(["cifar100", "tiny"], ALPHAS, TABLE, SMOKE)

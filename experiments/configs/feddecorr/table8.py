"""Table 8 of FedDecorr (TPAMI 2023; ICLR 2023, table 7): FedAvg with and without it, with three networks on CIFAR10.

    python experiments/launch.py --config=experiments/configs/feddecorr/table8.py:offline --workdir=runs/table8

* ``:full``: the published study, 36 runs. ``docs/data.md`` says how to get the data.
* ``:offline``: the same networks, narrower, on 8x8 digits; not comparable.
* ``:smoke``: two rounds of them, narrower still.

The ICLR version has the numbers of alpha 0.05; that it is 0.05 is not legible in our copy.
"""

from experiments.configs.feddecorr import base
from fedjax_collapse.config.published import crossed

NETWORKS = ("mobilenet_v2", "resnet18", "resnet32")  # paper
ALPHAS = (0.05, 0.1)  # paper
PAPER = {  # percent, NETWORKS at the first alpha, then at the second
    "fedavg": (64.85, 71.51, 65.76, 76.28, 82.32, 73.22),
    "fedavg_decorr": (73.06, 76.54, 67.21, 80.60, 83.59, 74.75),
}


def _columns(options):
    networks = {name: dict(network=dict(name=name, **options.get(name, {}))) for name in NETWORKS}
    return crossed(base.skews(ALPHAS), networks)


def _narrow(**widths):
    return _columns({name: dict(width_multiplier=width) for name, width in widths.items()})


get_config = base.grid(
    _columns({}),
    "cifar10",
    smoke=[f"digits-0.1-{network}" for network in NETWORKS],
    digits=_narrow(mobilenet_v2=0.25, resnet18=0.25, resnet32=1.0),
    paper=dict(source=f"{base.SOURCE}, Table 8", rows=PAPER),
    why="ours are digits of 8x8 pixels and narrower networks, not CIFAR10",
    offline=dict(rounds=15, training=dict(epochs=2)),
    smoke_settings=base.settings(_narrow(mobilenet_v2=0.1, resnet18=0.05, resnet32=0.25), "digits"),
)

"""Figure 8 of FedDecorr (TPAMI 2023): accuracy over rounds on Tiny-ImageNet, with and without it.

    python experiments/launch.py --config=experiments/configs/feddecorr/figure8.py:offline --workdir=runs/figure8

* ``:full``: three alphas and three numbers of classes per client, MobileNetV2. ``docs/data.md``: the data.
* ``:offline``: the same kinds of settings on 8x8 digits, with a small network.
* ``:smoke``: two rounds of one alpha and one number of classes.

The curves are in the report of every setting, with a band of one standard deviation over three runs, as in the paper.
Not known: which three alphas it shows (table 1 has four; ours leave out no skew). ``balanced`` gives classes out, which
is our reading; ``base.pathological`` says how to take the cited routine.
"""

from experiments.configs.feddecorr import base

ALPHAS = (0.05, 0.1, 0.5)  # our choice of the four of table 1
CLASSES = (80, 90, 100)  # paper: the three of table 2


def _columns(classes):
    return base.skews(ALPHAS) | {f"{number}-classes": skew for number, skew in base.pathological(classes).items()}


SMOKE = ["digits-0.1", "digits-3-classes"]

get_config = base.grid(
    _columns(CLASSES), "tiny", digits=_columns((3, 4, 5)), smoke=SMOKE, evaluate_every=1
)  # of the curve: every round

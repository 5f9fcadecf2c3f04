"""Table 1 of FedDecorr (Shi et al., ICLR 2023; TPAMI 2023): ten methods on three data sets, each with four label skews.

    python experiments/launch.py --config=experiments/configs/feddecorr/table1.py:offline --workdir=runs/table1

* ``:full``: the published study, 360 runs of MobileNetV2. ``docs/data.md`` says how to get the data.
* ``:offline``: the ten methods and four skews on the 8x8 digits of scikit-learn, with a small network; not comparable.
* ``:small``: 20 rounds of ``digits-0.05`` with one seed, minutes on two cores.
* ``:smoke``: two skews of the same, one seed, two rounds, to see that everything works.

The ICLR version's tables 1, 2, 8 and 9 are of these runs. Not known: whether the last or the best round is reported.
"""

from experiments.configs.feddecorr import base

PAPER = {  # accuracy in percent of CIFAR10, CIFAR100 and Tiny-ImageNet, in this order, with each of ALPHAS
    "scaffold": (51.99, 74.36, 87.05, 89.77, 54.51, 61.42, 68.37, 70.97, 35.16, 37.87, 44.24, 44.88),
    "fednova": (63.07, 79.98, 90.23, 92.39, 60.22, 66.43, 71.79, 74.47, 35.28, 39.73, 47.05, 49.57),
    "fedavg": (64.85, 76.28, 89.84, 92.39, 59.87, 66.46, 71.69, 74.54, 35.02, 39.30, 46.92, 49.33),
    "fedavg_decorr": (73.06, 80.60, 89.84, 92.19, 61.53, 67.12, 71.91, 73.87, 40.29, 43.86, 50.01, 52.63),
    "fedprox": (64.11, 76.10, 89.57, 92.38, 60.02, 66.41, 71.78, 74.34, 35.20, 39.66, 47.16, 49.76),
    "fedprox_decorr": (71.38, 81.74, 89.96, 92.14, 61.33, 67.00, 71.64, 74.15, 40.63, 44.19, 50.26, 52.37),
    "fedavgm": (71.34, 77.51, 88.39, 91.35, 59.64, 66.36, 71.17, 74.20, 34.81, 39.72, 47.11, 49.67),
    "fedavgm_decorr": (73.60, 79.21, 88.70, 91.33, 61.48, 66.60, 71.26, 73.86, 39.97, 43.95, 50.14, 52.05),
    "moon": (68.79, 78.70, 90.08, 92.62, 56.79, 65.48, 71.81, 74.30, 35.23, 40.53, 47.25, 50.48),
    "moon_decorr": (73.46, 81.63, 90.61, 92.63, 59.43, 66.12, 71.68, 73.70, 40.40, 44.20, 50.81, 53.01),
}
SPREADS = {  # standard deviation over three runs, in the same places
    "scaffold": (2.54, 3.10, 0.39, 0.24, 0.26, 0.54, 0.44, 0.04, 0.77, 0.78, 0.14, 0.29),
    "fednova": (1.59, 1.56, 0.41, 0.18, 0.33, 0.26, 0.17, 0.13, 0.04, 0.07, 0.42, 0.09),
    "fedavg": (2.01, 1.22, 0.13, 0.26, 0.25, 0.16, 0.15, 0.15, 0.46, 0.23, 0.25, 0.19),
    "fedavg_decorr": (0.81, 0.91, 0.05, 0.10, 0.11, 0.09, 0.04, 0.18, 0.18, 0.50, 0.27, 0.26),
    "fedprox": (0.84, 0.40, 0.04, 0.09, 0.46, 0.27, 0.19, 0.03, 0.30, 0.43, 0.07, 0.36),
    "fedprox_decorr": (0.81, 0.34, 0.26, 0.20, 0.19, 0.46, 0.10, 0.06, 0.05, 0.14, 0.27, 0.36),
    "fedavgm": (0.71, 0.58, 0.17, 0.15, 0.20, 0.14, 0.22, 0.16, 0.09, 0.11, 0.04, 0.25),
    "fedavgm_decorr": (0.82, 0.15, 0.26, 0.13, 0.27, 0.11, 0.21, 0.25, 0.23, 0.26, 0.11, 0.37),
    "moon": (0.69, 0.66, 0.10, 0.17, 0.17, 0.29, 0.14, 0.12, 0.26, 0.28, 0.66, 0.57),
    "moon_decorr": (0.84, 0.55, 0.05, 0.19, 0.34, 0.20, 0.05, 0.25, 0.24, 0.22, 0.51, 0.45),
}

get_config = base.grid(
    base.skews(base.ALPHAS),
    *("cifar10", "cifar100", "tiny"),
    smoke=["digits-0.1", "digits-iid"],
    small="digits-0.05",
    paper=dict(source=f"{base.SOURCE}, Table 1", rows=PAPER, spreads=SPREADS),
    arms=base.arms(),
)

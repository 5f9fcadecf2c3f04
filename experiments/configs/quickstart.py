"""FedAvg against FedAvg + FedDecorr on the 1,797 real handwritten digits of scikit-learn, ten clients, Dirichlet 0.1.

    python experiments/launch.py --config=experiments/configs/quickstart.py

With ``:smoke`` behind the file name: two rounds, one seed, to see that everything works.
A demonstration on small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base


def get_config(arg: str = "") -> ConfigDict:
    config = base.get_config()
    config.seeds = (0, 1, 2)
    config.partition.seed = 0  # one partition for all seeds: the spread is that of initial weights and batch order
    config.arms = dict(
        fedavg=dict(),
        feddecorr=dict(methods=dict(feddecorr=dict(strength=0.1, variant="official"))),
    )
    if arg == "smoke":
        config.rounds, config.seeds = 2, (0,)
    elif arg:
        raise ValueError(f"quickstart.py:{arg}: expected nothing or :smoke behind the file name")
    return config

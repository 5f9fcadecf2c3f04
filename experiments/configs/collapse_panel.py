"""Everything that is asked of a claim about collapse, measured for all arms of a config, next to strong baselines.

    python experiments/launch.py --config=collapse_panel
    python experiments/launch.py --config=collapse_panel:experiments/configs/label_skew.py:digits
    python experiments/launch.py --config=collapse_panel:my_config.py
    python experiments/launch.py --config=collapse_panel --config.data.source=glyphs --config.rounds=30

Behind the file name: the config whose arms are measured, a path or the name of one that comes with the project, and
after another colon its argument; without one, FedDecorr on digits. To its arms are added those of ``BASELINES`` whose
name is free, to its measurements those of ``PANEL``, and five seeds unless it has at least three. All clients are
watched. The budget is the number of rounds, which all arms share.

A line below the table names the arms that were found better than the first, ``fedavg``, or says that none was. The
report then has, for each arm: spectrum, rank, NC1 and probe of every layer, of the received, the local and the
averaged models; spectra of the classifier, of the clients' updates, their mean and the server's; aggregation error and
agreement; R; the bias of predictions; the probe next to the head; seconds of a round, its memory, and the numbers sent.
An arm whose head is not linear needs ``measurements=dict(head_spectrum=None)``.
"""

from ml_collections import ConfigDict

from experiments.config_files import find_config, load_config
from experiments.configs import base

BASELINES = {
    "fedavg": dict(),
    "fedprox": base.methods(fedprox=dict(strength=0.01)),
    "fedavgm": dict(server=dict(optimizer=dict(name="sgd", learning_rate=1.0, momentum=0.9))),
    "scaffold": base.methods(scaffold=dict()),
    "fedlc": base.methods(fedlc=dict(tau=0.5)),
}
PANEL = (
    "layers", "head_spectrum", "updates", "client_drift", "neural_collapse", "feature_ranks", "prediction_bias",
    "linear_probe", "communication",
)  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    config = _config_of(arg) if arg else _digits()
    config.watch = "all"
    if len(config.seeds) < 3:
        config.seeds = (0, 1, 2, 3, 4)
    config.arms = BASELINES | config.arms.to_dict()
    config.measurements = {name: name for name in PANEL} | config.measurements.to_dict()
    config.measure_every = max(config.measure_every, config.rounds // 5, 1)
    return config


def _config_of(arg):
    name, colon, argument = arg.partition(":")
    return load_config(f"{find_config(name, name)}{colon}{argument}")


def _digits():
    config = base.get_config()
    config.rounds, config.partition.alpha, config.network = 20, 0.05, dict(name="small_cnn", channels=(8, 16))
    config.arms = dict(feddecorr=base.methods(feddecorr=dict(strength=0.1)))
    return config

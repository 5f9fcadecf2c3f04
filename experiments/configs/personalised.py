"""Personalised methods on digits, each client tested on a part of its own examples, as received and after fine-tuning.

    python experiments/launch.py --config=experiments/configs/personalised.py

Twenty clients, Dirichlet 0.1; training and test data are pooled, and every client keeps a quarter of its examples for
its test and a tenth for validation. ``smoke`` after the file name: two rounds of one seed.
A demonstration on small data: not comparable with published tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base


@base.variants("", "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.clients = (0, 1, 2), 20
    config.own_tests = dict(name="split", validation=0.1)
    config.finetuning = dict(epochs=5)
    config.network = dict(name="mlp", hidden=(128, 128))
    config.training.update(dict(epochs=2, batch_size=16, learning_rate=0.02))
    config.arms = {
        "local": dict(private="all"),  # nothing is averaged
        "fedavg": dict(),
        "feddecorr": dict(methods=dict(feddecorr=dict(strength=0.1))),
        **{name: dict(methods={name: dict()}) for name in ("fedper", "fedrep", "lg_fedavg")},
    }
    if arg == "smoke":
        config.rounds, config.seeds = 2, (0,)

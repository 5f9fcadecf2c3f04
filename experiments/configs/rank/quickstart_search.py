"""The three searches by which the quickstart's setting was chosen: docs/results.md has their rules.

    python experiments/launch.py --config=experiments/configs/rank/quickstart_search.py:first --workdir=runs/search

Behind the file name: ``first`` (nine settings, seeds 0 to 4), ``second`` (five settings, seeds 0 to 9, measured after
10 and 20 rounds) or ``third`` (four settings without partial batches, seeds 0 to 9, measured in every second round). A
candidate is a setting, and a number of rounds, of the quickstart's arms on the digits of scikit-learn.
Small data: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base, quickstart

_TRAINING = dict(learning_rate=0.03, epochs=5, batch_size=32, weight_decay=1e-5, drop_last=False)
_TWO_CLASSES = dict(partition=dict(name="partially_disjoint", classes_per_client=2))


def _trained(**changes):
    return dict(training=_TRAINING | changes)


def _mlp(layers):
    return dict(network=dict(name="mlp", hidden=(128,) * layers, norm="batch"))


FIRST = {
    "CNN": _trained(),
    "CNN, 10 epochs": _trained(epochs=10),
    "CNN, learning rate 0.01": _trained(learning_rate=0.01),
    "CNN, learning rate 0.1": _trained(learning_rate=0.1),
    "CNN, alpha 0.1": _trained() | dict(partition=dict(alpha=0.1)),
    "CNN, two classes": _trained() | _TWO_CLASSES,
    "wide CNN": _trained() | dict(network=dict(channels=(32, 64, 128))),
    "MLP": _trained() | _mlp(2),
    "deep MLP": _trained() | _mlp(4),
}
SECOND = {
    "alpha 0.05": _trained(),
    "alpha 0.05, 10 epochs": _trained(epochs=10),
    "alpha 0.05, batch size 16": _trained(batch_size=16),
    "alpha 0.03": _trained() | dict(partition=dict(alpha=0.03)),
    "two classes": _trained() | _TWO_CLASSES,
}
THIRD = {
    "whole batches": _trained(drop_last=True),
    "whole batches, 10 epochs": _trained(drop_last=True, epochs=10),
    "whole batches of 16": _trained(drop_last=True, batch_size=16),  # chosen, with 12 rounds
    "whole batches, weight decay 0.01": _trained(drop_last=True, weight_decay=0.01),
}
SEARCHES = {"first": (FIRST, 5, 20), "second": (SECOND, 10, 10), "third": (THIRD, 10, 2)}  # seeds, evaluate_every


@base.variants(*SEARCHES, start=quickstart.get_config)
def get_config(config: ConfigDict, arg: str) -> None:
    config.settings, num_seeds, config.evaluate_every = SEARCHES[arg]
    config.rounds, config.seeds = 20, tuple(range(num_seeds))

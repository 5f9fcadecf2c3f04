"""PFLlib's protocol: its partition, split, network and training, and the arms without which its tables say little.

    python experiments/launch.py --config=experiments/configs/pfllib.py:digits

Training and test data are pooled and scaled to [-1, 1]; 20 clients by ``dir`` with alpha 0.1, of whose examples a
quarter is the test; all clients in every round, an epoch of SGD with learning rate 0.005, whole batches of 10. After
the colon the data: ``digits``, scikit-learn's in the size of MNIST, three rounds, without a network; or ``mnist``,
``fashion_mnist``, ``cifar10``, ``cifar100``, 2,000 rounds (docs/data.md says how to get them). Three seeds share one
partition, as PFLlib's three runs do. ``smoke`` is two rounds of one seed of two arms on digits. Its other partitions:

    --config.partition.name=pfllib_pat --config.partition.classes_per_client=10
    --config.partition.name=pfllib_exdir --config.partition.classes_per_client=10 --config.partition.alpha=100

On digits it is a demonstration, not comparable with published tables: docs/personalised.md has the numbers.
"""

import numpy as np
from ml_collections import ConfigDict

from experiments.configs import base
from fedjax_collapse.data import sources

DATA_SETS = ("mnist", "fashion_mnist", "cifar10", "cifar100")


def digits() -> sources.Source:
    """The digits of 8 x 8 pixels as 28 x 28, for the network of MNIST: each pixel 3 x 3 times, two of 0 around it."""
    source = sources.digits()

    def enlarged(images):
        return np.pad(images.repeat(3, axis=1).repeat(3, axis=2), ((0, 0), (2, 2), (2, 2), (0, 0)))

    return source._replace(images=enlarged(source.images), test_images=enlarged(source.test_images), mean=8.0, std=8.0)


@base.variants("digits", *DATA_SETS, "smoke")
def get_config(config: ConfigDict, arg: str) -> None:
    config.seeds, config.clients, config.rounds = (0, 1, 2), 20, 3
    config.data = dict(source="experiments.configs.pfllib:digits")
    if arg in DATA_SETS:
        config.rounds, config.data = 2000, dict(source=arg, normalisation="half")
    config.partition = dict(name="pfllib_dir", alpha=0.1, seed=0)
    config.own_tests = dict(name="split")  # a quarter of each client's examples, not stratified
    config.finetuning = dict(epochs=1)
    config.network = dict(name="pfllib_cnn")
    config.training.update(
        dict(epochs=1, batch_size=10, drop_last=True, learning_rate=0.005, momentum=0.0, weight_decay=0.0)
    )
    config.server.weighting = "size"
    config.arms = {
        "local": dict(private="all"),  # nothing is averaged
        "fedavg": dict(),
        "fedper": base.methods(fedper=dict()),
        "fedrep": base.methods(fedrep=dict(head_epochs=1, body_epochs=1)),
        "fedbabu": base.methods(fedbabu=dict()),
        "fedrod": dict(methods=dict(fedrod=dict()), network=dict(head=dict(name="two_heads", copied=True))),
        "feddbe": dict(methods=dict(feddbe=dict()), network=dict(head="shifted")),
        "ditto": base.methods(ditto=dict(strength=1.0)),  # PFLlib's default 0 is local training
    }
    if arg == "smoke":
        config.rounds, config.seeds = 2, (0,)
        config.arms = {name: config.arms[name] for name in ("local", "fedper")}

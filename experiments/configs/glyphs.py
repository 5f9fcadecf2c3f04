"""FedAvg alone and with FedDecorr, FedMR and FedUV on 32x32x3 glyphs, synthetic characters drawn without a network.

    python experiments/launch.py --config=experiments/configs/glyphs.py:dirichlet_10

Behind the file name stand partition and number of classes: ``dirichlet_10``, ``disjoint_10``, ``dirichlet_100`` or
``disjoint_100``. ``dirichlet`` is Dirichlet 0.05; ``disjoint`` is FedMR's P10C2, and P10C10 of 100 classes, which ten
clients with two classes each cannot hold. Every seed draws its own partition. Strengths are the published ones where
they are published; FedMR's are ours, the best of three pairs on ``disjoint_10`` with seed 9. The network is FedUV's
small one without its projector: 64 features.
Synthetic images: not comparable with the papers' tables.
"""

from ml_collections import ConfigDict

from experiments.configs import base

STUDIES = {  # number of classes, partition
    "dirichlet_10": (10, dict(name="dirichlet", alpha=0.05)),
    "disjoint_10": (10, dict(name="partially_disjoint", classes_per_client=2)),
    "dirichlet_100": (100, dict(name="dirichlet", alpha=0.05)),
    "disjoint_100": (100, dict(name="partially_disjoint", classes_per_client=10)),
}


@base.variants(*STUDIES)
def get_config(config: ConfigDict, arg: str) -> None:
    num_classes, partition = STUDIES[arg]
    config.seeds, config.rounds, config.evaluate_every = (0, 1, 2), 15, 5
    config.data = dict(source="glyphs", num_classes=num_classes, train_size=5000, test_size=2000)
    config.partition = partition
    config.network.name = "feduv_cnn"
    config.training.epochs = 2
    config.arms = dict(
        fedavg=dict(),
        feddecorr=base.methods(feddecorr=dict(strength=0.1, variant="official")),
        fedmr=base.methods(fedmr=dict(intra=1e-5, inter=0.1, variant="paper")),
        feduv=base.methods(feduv=dict(variance=num_classes / 4, uniformity=0.5)),
    )

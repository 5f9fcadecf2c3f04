"""What the tables and figures of FedUV (Son et al., CVPR 2024) share.

Behind each value stands where it is from: the paper, its released code, or our choice. The released code loads STL10
and CIFAR10 alone. Strengths were tuned on CIFAR10; the grid is in an appendix that we lack. Rounds were chosen by
FedAvg on a tenth of the training data, for label skew alone (``data.validation_fraction=0.1``). Whether the tables are
of models trained on the other nine tenths is not said: ours train on all.
"""

from collections.abc import Sequence

from experiments.configs.base import methods
from fedjax_collapse.config.published import DIGITS, DOMAINS, GLYPHS_100, Paper, Rows

SOURCE = "Son et al., CVPR 2024"
OFFLINE_WHY = (
    "ours are digits of 8x8 pixels (STL10), synthetic images (the others) and a small network, "
    "not the paper's data and networks"
)
METHODS = ("fedavg", "fedprox", "moon", "freeze", "feduv")  # paper
CLASSES = dict(stl10=10, cifar100=100, tiny=200, pacs=7, ham10000=7, officehome=65)
ALPHAS = (0.01, 1.0)  # paper
FEDUV = dict(
    variance=2.5,  # paper: a quarter of the classes, here of ten
    uniformity=0.5,  # paper
    kernel_scale=1,  # released code: exp(-d^2 / sigma), where the paper has 2 sigma
)
MOON = dict(
    strength=1.0,  # paper
    temperature=0.5,  # paper
    first_round="random_later",  # released code
)
_DOMAIN = dict(name="domain")


def arms(*names: str) -> dict:
    """These of the five methods, or of FedUV's two terms alone; without names, the five."""
    every = dict(
        fedavg=dict(),
        fedprox=methods(fedprox=dict(strength=0.01)),  # paper
        moon=methods(moon=MOON),
        freeze=dict(training=dict(freeze="head")),  # paper; the released code trains the head and throws it away
        only_variance=methods(feduv=FEDUV | dict(uniformity=0.0)),
        only_uniformity=methods(feduv=FEDUV | dict(variance=0.0)),
        feduv=methods(feduv=FEDUV),
    )
    return {name: every[name] for name in names or METHODS}


def with_variance(setting: dict, num_classes: int) -> dict:
    """The setting with the paper's strength, a quarter of its classes."""
    strength = methods(feduv=dict(variance=num_classes / 4))
    return setting | dict(arms=dict(only_variance=strength, feduv=strength))


study = Paper(
    shared=dict(  # the base config has the paper's ten clients of label skew, all in every round
        training=dict(
            epochs=10,  # paper
            batch_size=128,  # released code
            learning_rate=0.01,  # paper
            momentum=0.9,  # paper; reset in every round, as in the released code
            weight_decay=1e-5,  # paper
            schedule="cosine",  # released code, of all methods; the paper names none
            drop_last=True,  # released code
            augmentation="none",
        ),
        seeds=(0, 1, 2),  # paper: three runs; the released code's default seed is 42
        evaluate_every=5,  # our choice
    ),
    full={},  # data, network and rounds are those of ``data_sets``
    offline=dict(  # our choices throughout, with the base config's digits and small_cnn
        network=dict(projector="feduv", projector_dim=64),
        rounds=20,
        training=dict(epochs=3, batch_size=16),
    ),
    smoke_network=dict(name="small_cnn", channels=(16,), projector="feduv"),
).study


def data_sets(*names: str) -> dict[str, dict]:
    """The settings of these of the six data sets, label skew with alpha 0.01; normalisation is open but for STL10.

    HAM10000 has 1,955 test images in the paper, roughly 20 % of each domain: 20 % of all would be 2,003.
    """
    # paper: widths of projectors, 256 by default; released code: all methods have one
    cnn = dict(name="feduv_cnn", projector="feduv")
    resnet18 = dict(name="resnet18", strides=(2, 2, 2, 2), projector="feduv", projector_dim=512)
    resnet50 = dict(name="resnet50", stem_size=7, stem_stride=2, projector="feduv", projector_dim=2048)
    small = dict(domains=True, image_size=96, normalisation="half")  # paper; our choice
    rows = dict(  # rounds (paper), network (paper: table 5), data, augmentation
        stl10=(100, cnn, dict(source="stl10", normalisation="half"), "feduv_stl10"),
        cifar100=(60, resnet18, dict(source="cifar100", normalisation="cifar100"), "feduv_cifar100"),
        tiny=(40, resnet50, dict(source="folder:tiny-imagenet-200", normalisation="half"), "feduv_tiny_imagenet"),
        pacs=(60, cnn, dict(source="folder:PACS", test_per_class=40, **small), "feduv_domains"),
        ham10000=(60, resnet18, dict(source="folder:HAM10000", test_fraction=0.2, **small), "feduv_domains"),
        officehome=(40, resnet50, dict(source="folder:OfficeHome", test_per_class=7, **small), "feduv_domains"),
    )
    found = {}
    for name in names or rows:
        rounds, network, data, augmentation = rows[name]
        setting = dict(rounds=rounds, network=network, data=data, training=dict(augmentation=augmentation))
        is_domains = name in ("pacs", "ham10000", "officehome")
        setting |= dict(clients=4, partition=_DOMAIN) if is_domains else label_skew(0.01)
        found[name] = with_variance(setting, CLASSES[name])
    return found


def label_skew(alpha: float) -> dict:
    """What a setting of Dirichlet label skew by the released code's routine changes."""
    return dict(partition=dict(name="dirichlet", alpha=alpha))


def offline_sets(*names: str) -> dict[str, dict]:
    """These of ten classes, a hundred and four domains, in the place of the six data sets."""
    every = dict(
        digits=with_variance(dict(data=DIGITS) | label_skew(0.01), 10),
        glyphs100=with_variance(dict(data=GLYPHS_100) | label_skew(0.01), 100),
        domains=with_variance(dict(data=DOMAINS, clients=4, partition=_DOMAIN), 10),
    )
    return {name: every[name] for name in names or every}


def papers(table: str, rows: Rows, spreads: Rows | None = None, columns: Sequence[int] = (), **of_metric: str) -> dict:
    """Returns the paper's numbers as arguments of ``study``; ``:offline`` has these columns of them, or all."""

    def of_columns(rows):
        return {arm: [row[i] for i in columns] if columns else row for arm, row in rows.items()}

    source, spreads = f"{SOURCE}, {table}", spreads or {}
    part = f"{source}, STL10, CIFAR100, PACS" if columns else source
    other = dict(source=part, rows=of_columns(rows), why=OFFLINE_WHY, spreads=of_columns(spreads))
    return dict(paper=dict(source=source, rows=rows, spreads=spreads, **of_metric), offline_paper=other)

"""The common parts of the tables and figures of FedDecorr (Shi et al., ICLR 2023; TPAMI 2023) share.

Behind each value stands where it is from: the paper, its released code, or our choice.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.configs.base import GetConfig, methods
from fedjax_collapse.config.published import Changes, Paper, crossed

SOURCE = "Shi et al., TPAMI 2023"
WHY = "ours are digits of 8x8 pixels and a small network, not {} and MobileNetV2"
ALPHAS = (0.05, 0.1, 0.5, "iid")  # paper; iid is its infinity
# paper; on the scale of the released code, which 0.1 belongs to; all four of its CIFAR100 scripts have 0.05
DECORR = dict(strength=0.1, variant="official")


def arms(*names: str) -> dict:
    """Returns the arms of these names, by default all ten of table 1; ``_decorr``: with FedDecorr."""
    prox = dict(fedprox=dict(strength=1e-3))  # paper; the true term, which the released code makes zero
    # paper; the released code ignores its temperature, and in a client's first round contrasts with a random network
    moon = dict(moon=dict(strength=1.0, temperature=1.0))
    momentum = dict(name="damped_momentum", decay=0.5)  # paper; the released code's form (its CIFAR10 scripts: 0.9)
    projector = dict(projector="feddecorr")  # released code: MOON's features, which FedDecorr acts on, too
    every = dict(
        # not released: with the others' local momentum, which it was not published with; by its number of steps alone
        # (``steps``) c is ten times too large then and training ends at chance
        scaffold=methods(scaffold=dict(normaliser="fednova")),  # our choice
        fednova=methods(fednova=dict()),
        fedavg=dict(),
        fedavg_decorr=methods(feddecorr=DECORR),
        fedprox=dict(methods=prox),
        fedprox_decorr=methods(**prox, feddecorr=DECORR),
        fedavgm=dict(server=dict(optimizer=momentum)),
        fedavgm_decorr=dict(server=dict(optimizer=momentum), methods=dict(feddecorr=DECORR)),
        moon=dict(network=projector, methods=moon),
        moon_decorr=dict(network=projector, methods=dict(**moon, feddecorr=DECORR)),
    )
    return {name: every[name] for name in names or every}


WITH_AND_WITHOUT = arms("fedavg", "fedavg_decorr")  # the arms of most tables

study = Paper(
    # paper: three runs; which seeds, and a partition for each, are our choice, as evaluations: tables are of the last
    # round. The base config has the paper's ten clients, all in every round, learning rate 0.01, momentum 0.9, reset in
    # every round as in the released code, and weight decay 1e-5 (of CIFAR10).
    shared=dict(seeds=(0, 1, 2), evaluate_every=5),
    full=dict(  # data and rounds are those of ``DATA``
        training=dict(epochs=10, batch_size=64),  # paper; the last partial batch is kept, as in the released code
        network=dict(name="mobilenet_v2"),  # paper; the released code's variant for small images
    ),
    offline={},  # our choice: the base config's digits, small_cnn, 30 rounds of five epochs, batches of 32
    smoke_network=dict(name="small_cnn", channels=(16,)),
).study
# of a hundred classes: fewer passes over more and larger images
OFFLINE_100 = dict(rounds=20, training=dict(epochs=2))


def partition(alpha: float | str) -> dict:
    """Dirichlet label skew, at least ten examples for each client, by the released code's routine; or none."""
    return dict(name="iid") if alpha == "iid" else dict(name="dirichlet", alpha=alpha)


def skews(alphas: Iterable[float | str]) -> dict[str, dict]:
    """Columns of ``settings``: one for each alpha, by its name."""
    return {f"{alpha}": dict(partition=partition(alpha)) for alpha in alphas}


def pathological(classes: Iterable[int]) -> dict[str, dict]:
    """Columns of ``settings``: one for each number of classes per client.

    The paper says that each client has M classes, but nothing on sizes or on how classes are drawn. Ours is the method
    ``balanced``: M distinct classes each, with equally many clients for each class as far as they go. The paper cites
    McMahan et al. (2017), whose shards do not guarantee M distinct classes: ``--config.partition.name=pathological
    --config.partition.method=shards``.
    """
    skews = {number: dict(name="pathological", classes_per_client=number) for number in classes}
    return {f"{number}": dict(partition=skew) for number, skew in skews.items()}


def settings(columns: Mapping[str, dict], *data: str) -> dict[str, dict]:
    """Each of these data sets with each of the columns."""
    return crossed({name: DATA[name] for name in data}, columns)


_WITHOUT_PROJECTOR = dict(network=dict(projector="none"), methods=dict(moon=dict(needs_projector=False)))
DATA = dict(  # what the settings of each data set have in common
    digits={},  # of the offline versions
    cifar10=dict(
        rounds=100,  # paper
        data=dict(source="cifar10", normalisation="cifar10"),  # released code
        training=dict(augmentation="feddecorr_cifar10"),  # released code: crop and flip
    ),
    cifar100=dict(
        rounds=100,  # paper
        data=dict(source="cifar100", normalisation="cifar100"),  # released code
        training=dict(weight_decay=1e-4, augmentation="feddecorr_cifar100"),  # paper: 1e-4 and AutoAugment
    ),
    tiny=dict(
        rounds=50,  # paper
        data=dict(source="folder:tiny-imagenet-200", normalisation="half"),  # released code
        training=dict(weight_decay=1e-4, augmentation="feddecorr_tiny_imagenet"),  # paper: 1e-4 and AutoAugment
        arms=dict(moon=_WITHOUT_PROJECTOR, moon_decorr=_WITHOUT_PROJECTOR),  # released code
    ),
)
NAMES = dict(cifar10="CIFAR10", cifar100="CIFAR100", tiny="Tiny-ImageNet")


def grid(
    columns: Mapping[str, Changes],
    *data: str,
    digits: Mapping[str, Changes] | None = None,
    paper: Changes | None = None,
    why: str = WHY,
    **both: Any,
) -> GetConfig:
    """Returns the ``get_config`` of a study with these columns on each of the data sets, offline on digits.

    Args:
        columns: settings on one data set.
        *data: of ``:full``; ``:offline`` is compared with the first of them.
        digits: other columns offline.
        paper: as in ``study``.
        why: the numbers of ``:offline`` are not comparable with those of a data set, ``{}``.
        **both: as in ``study``; the arms are by default FedAvg with and without FedDecorr.
    """
    found = dict(settings=settings(columns, *data), offline_settings=settings(digits or columns, "digits"))
    if paper:
        first, source = NAMES[data[0]], paper["source"]
        part = f"{source}, {first}" if len(data) > 1 else source
        found |= dict(paper=paper, offline_paper=dict(source=part, why=why.format(first)))
    return study(**dict(arms=WITH_AND_WITHOUT) | found | both)

"""What the tables and figures of FedMR (Fan et al., TMLR 2023) share.

Behind each value stands where it is from: the paper, its released code, or our choice. The strengths of all methods are
in an appendix that is not known to us; the released code has FedMR's first term alone, and no baseline.
Clients are weighed by size; the released code weighs them by whole batches (``server.weighting="batches"``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from experiments.configs.base import GetConfig, methods
from fedjax_collapse.config.published import GLYPHS, GLYPHS_100, Changes, Paper

SOURCE = "Fan et al., TMLR 2023"
WHY = "ours are digits of 8x8 pixels and a small network, not {} and ResNet18; its strengths are not known"
WHY_FULL = "the strengths of its methods are not known, ours stand in the config"
SPLITS = {  # of ten classes, paper: name -> clients, classes of each; None is no skew
    "P5C2": (5, 2),
    "P10C2": (10, 2),
    "P10C3": (10, 3),
    "P10C5": (10, 5),
    "IID": (10, None),
}
# likewise of a hundred classes, paper
SPLITS_100 = {"P10C10": (10, 10), "P10C20": (10, 20), "P10C30": (10, 30), "P10C50": (10, 50), "IID": (10, None)}
FEDMR = dict(
    intra=1e-5,  # released code: the README's example
    inter=0.1,  # our choice
    variant="official",  # the scale that 1e-5 is of
    negatives="local",  # paper: eq. 4 to the letter
)


def arms(*names: str) -> dict:
    """These of the eight methods of table 1, or all of them."""
    clipped = dict(clip_norm=10.0)  # released codes of FedDyn and FedDC
    every = dict(
        fedavg=dict(),
        fedprox=methods(fedprox=dict(strength=0.01)),  # our choice
        fedproc=methods(fedproc=dict(ramp_rounds=100.0)),  # released code of FedProc
        fednova=methods(fednova=dict()),
        # MOON's paper, of its grid; its code has no contrast in round 1 (moon.first_round="random_later")
        moon=methods(moon=dict(strength=1.0, temperature=0.5)),
        feddyn=dict(methods=dict(feddyn=dict(alpha=0.01)), training=clipped),  # released code's example
        feddc=dict(methods=dict(feddc=dict(alpha=0.01)), training=clipped),  # released code's example
        fedmr=methods(fedmr=FEDMR),
    )
    return {name: every[name] for name in names or every}


def partition(classes: int | None) -> dict:
    """So many classes for each client, in a single pass: the released code deals each class twice, by mistake."""
    if classes is None:
        return dict(name="iid")  # released code: Dirichlet(100000)
    return dict(name="partially_disjoint", classes_per_client=classes)


def split(clients: int, classes: int | None) -> dict:
    """A setting in which ten clients take part in each round."""
    share = min(1.0, 10 / clients)  # paper
    return dict(clients=clients, participation=share, partition=partition(classes))


study = Paper(
    shared=dict(
        training=dict(
            epochs=10,  # paper
            batch_size=128,  # paper; the released code's default is 64
            learning_rate=0.01,  # paper
            momentum=0.9,  # paper; reset in every round, as in the released code
            weight_decay=1e-5,  # paper
            drop_last=True,  # released code: the last partial batch is left out
            augmentation="none",
        ),
        seeds=(0, 1, 2),  # our choice; how many runs the paper's numbers are of is not known
        evaluate_every=5,  # our choice
    ),
    full={},  # data, network and rounds are those of ``DATA``
    # our choices throughout, with the base config's digits, small_cnn and 30 rounds
    offline=dict(training=dict(epochs=5, batch_size=16)),
    smoke_network=dict(name="small_cnn", channels=(16,)),
).study


def _data(source, normalisation, augmentation):
    return dict(
        rounds=100,  # paper: at least 100 for CIFAR10; of the others our choice
        data=dict(source=source, normalisation=normalisation),  # released code
        network=dict(name="resnet18", kernel_init="kaiming_fan_out"),  # paper; released code's initial weights
        training=dict(augmentation=augmentation),  # released code
    )


DATA = dict(  # what the published settings of each data set have in common
    fmnist=_data("fashion_mnist", "unit", "fedmr_fashion_mnist"),
    svhn=_data("svhn", "svhn", "fedmr_svhn"),
    cifar10=_data("cifar10", "cifar10_fedmr", "fedmr_cifar10"),
    cifar100=_data("cifar100", "cifar100", "fedmr_cifar100")
    | dict(rounds=400, network=dict(name="wide_resnet")),  # paper: table 4; WRN-28-10
)
OFFLINE_DATA = dict(digits={}, glyphs10=dict(data=GLYPHS), glyphs100=dict(data=GLYPHS_100))


def settings(name: str, splits: Mapping[str, tuple[int, int | None]]) -> dict[str, dict]:
    """A setting for each of these splits, on this data set."""
    common = (DATA | OFFLINE_DATA)[name]
    return {f"{name}-{cut}": common | split(*splits[cut]) for cut in splits}


SETTINGS = {  # of table 1
    **settings("fmnist", SPLITS),
    **settings("svhn", SPLITS),
    **settings("cifar10", SPLITS),
    **settings("cifar100", SPLITS_100),
}
DIGITS_SETTINGS = settings("digits", SPLITS)


def means_of_data(settings: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The settings of each data set, by its name, over which tables 1, 6 and 8 have means."""
    means: dict[str, tuple[str, ...]] = {}
    for setting in settings:
        data = setting.rpartition("-")[0]
        means[data] = (*means.get(data, ()), setting)
    return means


def on_splits(
    chosen: Mapping[str, Changes],
    paper: Mapping[str, Any],
    of_digits: Mapping[str, Any] = {},
    like: str = "CIFAR10",
    rounds: int = 30,
    **both: Any,
) -> GetConfig:
    """Returns the ``get_config`` of a study in these settings, offline on the same splits of digits.

    Args:
        chosen: the settings of ``:full``.
        paper: as in ``study``; with its ``means``, the study has the means of each data set.
        of_digits: what the numbers offline are compared with, if others.
        like: the data set in place of which the digits stand.
        rounds: of ``:offline``.
        **both: as in ``study``.
    """

    def means(settings):
        return dict(means=means_of_data(settings)) if "means" in paper else {}

    both |= dict(paper={"why": WHY_FULL, **paper}, offline_paper={"why": WHY.format(like), **of_digits})
    both |= dict(full=means(chosen), offline=means(DIGITS_SETTINGS) | dict(rounds=rounds))
    return study(settings=chosen, offline_settings=DIGITS_SETTINGS, smoke=["digits-P5C2", "digits-IID"], **both)

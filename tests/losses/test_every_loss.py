"""Every loss: its value, its gradient by finite differences, degenerate batches, padding, what is a constant, wrong
options."""

import functools
import inspect
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import one_line
from loss_checks import Y6, Z6, bound, check_degenerate, check_gradient, degenerate_rows

from fedjax_collapse import losses

COUNTS, ALL = np.array([6, 0, 1, 2]), np.ones(3, bool)
LOCAL = np.array([True, True, False])
LOGITS, LABELS = np.array([[2, 0.5, -1, 0.3], [0.1, 1.2, -0.4, 0], [-0.5, 0.7, 1.5, 0.2]]), np.array([0, 0, 3])
TEACHER = np.array([[1, 0, 1, -1], [0.5, -0.5, 0.2, 0.4], [0, 1, -1, 0.6]])
WIDE = np.concatenate([Z6[:4], Z6[:4] ** 2 / 4, np.sin(Z6[:4]), np.cos(2 * Z6[:4])], axis=1)  # 4 rows, 12 features
NARROW = Z6 + 0.1 * np.sin(np.arange(18)).reshape(6, 3)
G = np.array([[1, 2, 1], [2, 1, 2], [0, 0, 2]], float)
ROWS, LABELS_OF_SIX = degenerate_rows(5), np.array([1, 1, 0, 1, 0, 0])  # not grouped


class Loss(NamedTuple):
    """``function`` of features, labels, mask and ``extras``, the first ``constants`` of which get no gradient.

    ``values``: on each of the ``features``. ``degenerate``: the extras for batches of six rows, of as many features as
    each of ``dims`` says.
    """

    values: tuple[float, ...]
    function: Any
    features: tuple[np.ndarray, ...] = (Z6,)
    labels: np.ndarray | None = None
    extras: tuple = ()
    degenerate: tuple = ((),)
    constants: int = 0
    dims: tuple = (5,)


def of_features(values, function, *arguments):
    """A loss that does not look at labels; both sides of the smaller Gram matrix."""
    return Loss(values, bound(function, *arguments), (NARROW, WIDE), dims=(5, 8))


def of_directions(values, function, *arguments):
    """A loss of features on fixed directions."""

    def loss(features, labels, mask):
        d = features.shape[1]
        directions = jnp.cos(jnp.arange(1, 3 * d + 1, dtype=features.dtype) ** 2).reshape(d, 3)
        return function(features, mask, directions, *arguments)

    return Loss(values, loss, (NARROW, WIDE), dims=(5,))


def of_visreg(term, *arguments):
    return losses.sliced_normality(*arguments)[term]


def on_labels(value, function, *arguments):
    return Loss((value,), bound(function, *arguments), (Z6,), LABELS_OF_SIX)


def on_counts(value, function, *arguments):
    """A loss on logits that knows the client's counts."""
    counts = [6, 0, 3, 0, 1], [6, 0, 0, 0, 0], [0, 0, 0, 0, 0]
    degenerate = tuple((np.array(each),) for each in counts)
    return Loss((value,), bound(function, *arguments), (LOGITS,), LABELS, (COUNTS,), degenerate)


def beside(value, function, features, labels, others, *extras, degenerate):
    """A loss that compares the rows with those that other models give them, which are padded alike."""

    def loss(features, labels, mask, *arguments):
        known = [jnp.asarray(rows) for rows in arguments[: len(others)]]
        if len(features) > len(known[0]):
            known = [jnp.pad(rows, ((1, 2), (0, 0)), constant_values=jnp.nan) for rows in known]
        return function(features, labels, mask, *known, *arguments[len(others) :])

    return Loss((value,), loss, (features,), labels, (*others, *extras), degenerate, len(others))


def correlation(features, mask, *arguments):
    with jax.numpy_rank_promotion("allow"):
        return losses.correlation_frobenius(features, mask, *arguments)


def suppression(logits, labels, mask, counts):
    return 100 * losses.logit_suppression(logits, labels, mask, counts)


def moon(features, labels, mask, server, previous):
    return losses.model_contrastive(features, server, previous, mask)


def not_true(logits, labels, mask, teacher):
    return losses.not_true_distillation(logits, teacher, labels, mask, 2.0)


def vacant(logits, labels, mask, teacher, counts):
    return losses.vacant_distillation(logits, teacher, mask, counts)


def on_prototypes(value, function, *flags):
    """With prototypes on the rows, all equal, and where there are flags some missing."""
    missing = [(np.where(valid[:, None], ROWS[:3], np.nan), valid, *flags[1:]) for valid in (~ALL, LOCAL)]
    degenerate = [(prototypes, *flags) for prototypes in (ROWS[:3], np.ones((3, 5)))] + missing * bool(flags)
    return Loss((value,), function, (Z6 + 0.1,), Y6, (G, *flags), tuple(degenerate), constants=1)


LOSSES = {
    "task": Loss((1.33401834739,), losses.cross_entropy, (LOGITS,), LABELS, dims=(5, 19)),
    "task, many": Loss((1.33401834739,), losses.cross_entropy_of_many, (LOGITS,), LABELS, dims=(5, 19)),
    "balanced": on_counts(0.623192513601, losses.balanced_cross_entropy),
    "balanced, floor_one": on_counts(0.907549655369, losses.balanced_cross_entropy, 0.7, "floor_one"),
    "balanced, eps": on_counts(0.623192516112, losses.balanced_cross_entropy, 1.0, "eps"),
    "fedlc, floor": on_counts(0.922979891811, losses.calibrated_cross_entropy, 0.05, "all", "floor"),
    "fedlc": on_counts(0.876090802144, losses.calibrated_cross_entropy),
    "fedlc, others": on_counts(0.025025116449, losses.calibrated_cross_entropy, 0.5, "others"),
    "fedlc, others, floor": on_counts(0.124509873059, losses.calibrated_cross_entropy, 0.05, "others", "floor"),
    "fedrs": on_counts(1.2037995456, losses.restricted_cross_entropy),
    "fedrs, continuous": on_counts(1.06157854925, losses.restricted_cross_entropy, 0.3, "continuous"),
    "suppression": on_counts(0.00126992998351, suppression),
    "suppression, paper": on_counts(-1.05227138198, losses.logit_suppression, "paper"),
    "not true": beside(0.769640976432, not_true, LOGITS, LABELS, (TEACHER,), degenerate=((ROWS[::-1],),)),
    "vacant": beside(
        0.681249692757, vacant, LOGITS, LABELS, (TEACHER,), np.array([6, 0, 0, 2]),
        degenerate=tuple((ROWS[::-1], np.array(each)) for each in ([3, 0, 0, 2, 0], [9, 0, 0, 0, 0], [1, 2, 3, 4, 5])),
    ),
    "moon": beside(
        0.214635013801, moon, G[:2], None, (G[1:] + 1, G[:2] - [[0, 3, 1]]),
        degenerate=((ROWS, -ROWS), (0 * ROWS, 0 * ROWS), (1e-20 * ROWS, 1e4 * ROWS)),
    ),
    "fedmr, paper": on_labels(12.5710357943, losses.intra_class_correlation, "paper"),
    "fedmr, paper_unit": on_labels(5.58712701971, losses.intra_class_correlation, "paper_unit"),
    "fedmr, official": on_labels(0.574917138035, losses.intra_class_correlation, "official"),
    "fedmr, eps 0": on_labels(0.574917146346, losses.intra_class_correlation, "official", False, 3, 0.0),
    "margin": on_prototypes(0.437242043404, losses.prototype_margin, ALL, ALL),
    "distance": on_prototypes(2.60268550402, losses.prototype_distance, ALL),
    "fedproc": on_prototypes(1.10375928899, losses.prototype_cross_entropy),
    "contrast": on_labels(1.65955808084, losses.hardest_contrast, 0.5),
    "excess": on_labels(0.279959674906, losses.excess_similarity, 0.5, -0.5),
    "feddecorr, paper": of_features((0.424256716247, 0.457694077515), correlation, "paper"),
    "feddecorr, pseudocode": of_features((0.294622719616, 0.257452918602), correlation, "pseudocode"),
    "feddecorr, official": of_features((0.568271168224, 0.918885471879), correlation, "official"),
    "decov": of_features((0.830207580177, 17.1516692504), losses.decov),
    "structured": of_features((0.415103790088, 8.57583462518), losses.structured_decov, 1, -0.5),
    "variance": of_features((0.617334988129, 1.07745560782), losses.vicreg_variance, 2.0),
    "covariance": of_features((0.79699927697, 5.08197607418), losses.vicreg_covariance),
    "sigreg": of_directions((1.57224029547, 0.780711492729), losses.characteristic_distance),
    "sigreg, paper": of_directions((1.57983617132, 0.789015211778), losses.characteristic_distance, "paper"),
    "weak sigreg": of_features((2.72913130776, 8.57066404735), losses.identity_distance),
    "weak sigreg, sketch": of_directions((8.50163111197, 16.5211364759), losses.identity_distance),
    "visreg, scale": of_directions((0.141274334441, 0.190431667984), functools.partial(of_visreg, "scale")),
    "visreg, centre": of_directions((3.02327353732, 0.72898159445), functools.partial(of_visreg, "centre")),
    "visreg, shape": of_directions((), functools.partial(of_visreg, "shape"))._replace(features=()),  # detached
    "singular": of_features((1.03145268771, 3.44180327683), losses.singular_value_variance),
    "classifier": of_features((0.175817504343, 0.203193115372), losses.classifier_variance, 0, "none"),
    "classifier, squared": of_features((0.0668633965444, 0.0463850264206), losses.classifier_variance, 1, "squared"),
    "uniformity": of_features((0.602672768059, 0.554385018632), losses.hyperspherical_uniformity),
    "uniformity, average": of_features((0.4031729961, 0.3412497335), losses.hyperspherical_uniformity, 1, "average"),
}  # fmt: skip


def test_every_loss_is_here():
    """But for FedProx's, which is of params, those of several labels (``tests/nn/test_task.py``) and of views of an
    example (``tests/methods/test_self_supervised.py``), and what is no loss."""
    table = set(re.findall(r"losses\.(\w+)", Path(__file__).read_text()))
    public = {name for name, value in vars(losses).items() if inspect.isfunction(value)}
    of_tasks = {"binary_cross_entropy", "summed_binary_cross_entropy"}
    of_views = {"cosines", "view_similarity", "pair_uniformity", "tangent_distance"}
    assert public - table == {*of_tasks, *of_views, "class_sums", "masked_mean", "proximal_distance"}


@pytest.mark.parametrize("name", LOSSES)
def test_value_is_the_vector_and_gradient_that_of_finite_differences(name):
    loss = LOSSES[name]
    for features, value in zip(loss.features, loss.values, strict=True):
        found = check_gradient(loss.function, features, loss.labels, loss.extras)
        assert found == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("name", LOSSES)
def test_degenerate_batches(name):
    loss = LOSSES[name]
    for dim in loss.dims:
        for extras in loss.degenerate:
            check_degenerate(loss.function, dim, extras)


@pytest.mark.parametrize("name", [name for name, loss in LOSSES.items() if loss.constants])
def test_other_models_and_prototypes_are_constants(name):
    loss = LOSSES[name]
    (features,) = loss.features
    labels = np.zeros(len(features), int) if loss.labels is None else loss.labels
    arrays = map(jnp.asarray, (features, labels, np.ones(len(labels), bool), *loss.extras))
    assert not any(map(np.any, jax.jit(jax.grad(loss.function, range(3, 3 + loss.constants)))(*arrays)))


WRONG = {
    "balanced_cross_entropy": ((COUNTS, 1.0, "floor"), "vacant 'floor': expected one of exclude, floor_one, eps"),
    "calibrated_cross_entropy": ((COUNTS, 0.5, "own"), "denominator 'own': expected one of all, others"),
    "restricted_cross_entropy": ((COUNTS, 0.5, "linear"), "scale 'linear': expected one of binary, continuous"),
    "logit_suppression": ((COUNTS, "both"), "variant 'both': expected one of official, paper"),
    "intra_class_correlation": (("papre",), "variant 'papre': expected one of paper, paper_unit, official"),
    "correlation_frobenius": (("offical",), "'offical': expected one of paper, pseudocode, official"),
    "structured_decov": ((3,), "num_groups 3: expected a divisor of the 4 features"),
    "characteristic_distance": ((LOGITS.T, "both"), "points 'both': expected one of code, paper"),
    "classifier_variance": ((2,), "ddof 2: expected one of 0, 1"),
    "hyperspherical_uniformity": ((3,), "kernel_scale 3: expected one of 1, 2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_named(name):
    function, (arguments, message) = getattr(losses, name), WRONG[name]
    with one_line(message):
        arrays = (jnp.asarray(each) if isinstance(each, np.ndarray) else each for each in arguments)
        bound(function)(*map(jnp.asarray, (LOGITS, LABELS, np.ones(3, bool))), *arrays)

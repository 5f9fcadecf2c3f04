"""Measurements by name: in a config ``measurements=dict(nc="neural_collapse")``, from Python
``simulate(..., measurements={"nc": neural_collapse})``.

All use the test set and evaluation mode. A number ``x`` of the server's model is logged as ``measured/<name>/x``, of
the watched client's model as ``local_x``, and if several clients are watched as ``local_x_mean``, ``local_x_min`` and
``local_x_max`` over those in the round's cohort. See ``docs/analysis.md`` for definitions, ranges and sources.
"""

import itertools
import math
from collections.abc import Callable, Mapping

import numpy as np

from fedjax_collapse.analysis import confusion as matrices
from fedjax_collapse.analysis import geometry, rank, similarity
from fedjax_collapse.analysis import lidar as discriminant
from fedjax_collapse.analysis import neural_collapse as nc
from fedjax_collapse.analysis.drift import drift, inner_products
from fedjax_collapse.analysis.moments import class_moments
from fedjax_collapse.analysis.ranking import average_precisions
from fedjax_collapse.analysis.spectrum import collapse_ratio, effective_rank
from fedjax_collapse.analysis.unevenness import mean_eigenvalue_variance
from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.federation import Federation
from fedjax_collapse.measurements import classifier_weight, probe
from fedjax_collapse.measurements.adapter_ranks import adapters as adapters
from fedjax_collapse.measurements.attacks import backdoor as backdoor
from fedjax_collapse.measurements.by_layer import layers as layers
from fedjax_collapse.measurements.client_updates import updates as updates
from fedjax_collapse.measurements.numbers_sent import communication as communication
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.measurement import MeasuredModel, MeasurementView, mean_score

Numbers = Mapping[str, float]
FEATURES_SAVED = 500  # test examples


def feature_ranks(view: MeasurementView) -> Numbers:
    """Stable rank and RankMe (not centred), NESum, participation ratio and alpha-ReQ (centred) of the features."""

    def ranks(model):
        values, spectrum = model.moments.singular_values, model.moments.spectrum
        return {
            "stable_rank": rank.stable_rank(values),
            "rankme": rank.rankme(values),
            "nesum": rank.nesum(spectrum),
            "participation_ratio": rank.participation_ratio(spectrum),
            "alpha_req": rank.alpha_req(spectrum),
        }

    return _of_models(view, ranks)


def received(view: MeasurementView) -> Numbers:
    """Effective rank and share of dead features of the model that clients received, evaluated for this.

    Compared with the local models and the server's, they separate the effects of training and averaging.
    """
    model = view.received_model
    return {"effective_rank": effective_rank(model.spectrum), "dead_features": model.dead_features}


def personal_models(view: MeasurementView) -> Numbers:
    """Effective rank and R, on the whole test set, of the models of watched clients; mean and range if several."""
    spectra, of_server = [model.spectrum for model in view.personal_models.values()], view.server.spectrum
    found = {
        "effective_rank": [effective_rank(spectrum) for spectrum in spectra],
        "R": [collapse_ratio(spectrum, of_server) for spectrum in spectra],
    }
    return view.over_clients(found)


def neural_collapse(view: MeasurementView) -> Numbers:
    """NC1 to NC4 and the forms of Zhu et al.; measures of the classifier only if it is linear."""
    view.check_classes("neural_collapse")

    def collapse(model):
        moments, means = model.moments, model.moments.centred_class_means
        numbers = {
            "nc1": nc.variability(moments),
            "nc2_norms": nc.equinorm(means),
            "nc2_angles": nc.equiangularity(means),
            "nc4": math.nan,
        }
        if model.evaluation.is_finite and view.model.task.is_classification:
            numbers["nc4"] = nc.nearest_mean_disagreement(model.features, model.logits, moments)
        if (head := classifier_weight.linear_head(view.model, model.variables)) is None:
            return numbers
        weight = head.weight[moments.is_present]
        return numbers | {
            "nc2_head_norms": nc.equinorm(head.weight),
            "nc2_head_angles": nc.equiangularity(head.weight),
            "nc3": nc.self_duality(weight, means),
            "zhu_nc2": nc.simplex_distance(head.weight),
            "zhu_nc3": nc.simplex_distance(weight, means),
            "bias_residual": nc.bias_residual(*head, moments.mean),
        }

    return _of_models(view, collapse)


def lidar(view: MeasurementView) -> Numbers:
    """LiDAR with the classes as its surrogate classes."""
    view.check_classes("lidar")
    return _of_models(view, lambda model: {"lidar": discriminant.lidar(model.moments)})


def sphere(view: MeasurementView) -> Numbers:
    """Uniformity (of at most 2,000 examples, the same in every round) and class alignment."""
    view.check_classes("sphere")

    def on_sphere(model):
        units = geometry.on_sphere(model.features)
        moments = class_moments(units, model.labels, model.num_classes, np.any(units != 0, axis=1))
        return {"uniformity": geometry.uniformity(model.features), "class_alignment": geometry.class_alignment(moments)}

    return _of_models(view, on_sphere)


def prediction_bias(view: MeasurementView) -> Numbers:
    """Distance between the frequencies of predicted and true classes: half the sum of absolute differences, 0 to 1.

    For a model that always predicts the same one of C equally frequent classes it is 1 - 1/C.
    """
    view.check_classes("prediction_bias", are_predicted=True)

    def bias(model):
        matrix = _confusion(model)
        apart = np.abs(matrix.sum(axis=0) - matrix.sum(axis=1))
        return {"prediction_bias": float(apart.sum() / (2 * len(model.labels)))}

    return _of_models(view, bias)


def cka(view: MeasurementView) -> Numbers:
    """Linear CKA of each watched local model with the server's, plain and debiased."""
    return _similarities(view, [(model.features, view.server.features) for model in view.local.values()])


def client_cka(view: MeasurementView) -> Numbers:
    """Linear CKA of each pair of watched local models, plain and debiased; NaN with fewer than two models."""
    return _similarities(view, list(itertools.combinations([model.features for model in view.local.values()], 2)))


def class_means(view: MeasurementView) -> Mapping[str, np.ndarray]:
    """Mean features of each class's test examples.

    Arrays: ``means`` [classes, features], NaN for a class without test examples; ``local_means`` [watched, classes,
    features], NaN for a client outside the cohort.
    """
    view.check_classes("class_means")

    def means(model):
        found = np.full((model.num_classes, model.features.shape[-1]), np.nan)
        found[model.moments.is_present] = model.moments.class_means
        return found

    return _arrays(view, "means", means)


def class_accuracy(view: MeasurementView) -> Mapping[str, float | np.ndarray]:
    """Accuracy per class: the mean over classes (balanced accuracy), and the lowest.

    Arrays: ``of_class`` [classes], NaN for a class without test examples; ``local_of_class`` [watched, classes], NaN
    for a client outside the cohort.
    """
    view.check_classes("class_accuracy", are_predicted=True)

    def of_class(model):
        return matrices.class_accuracy(_confusion(model))

    def summary(model):
        accuracies = of_class(model)
        is_present = np.bincount(model.labels, minlength=len(accuracies)) > 0
        return {"balanced": mean_score(accuracies, is_present), "lowest": np.min(accuracies[is_present])}

    return _of_models(view, summary) | _arrays(view, "of_class", of_class)


def confusion(view: MeasurementView) -> Mapping[str, np.ndarray]:
    """Numbers of test examples by class (rows) and predicted class (columns).

    Arrays: ``matrix`` [classes, classes], ``local_matrix`` [watched, classes, classes], NaN for a client outside the
    cohort.
    """
    view.check_classes("confusion", are_predicted=True)
    return _arrays(view, "matrix", _confusion)


def domain_accuracy(view: MeasurementView) -> Numbers:
    """The score on each domain's test examples, by the domain's name, and its mean.

    If clients have private parts, personal models are scored: the score of a domain is the mean over the clients whose
    test examples are all of this domain, NaN without such a client. The mean is over the domains with a score.
    """
    domains = view.federation.domains
    if domains is None:
        raise UserError("measurement domain_accuracy: the data have no domains; leave it out")
    numbers, is_scored = _of_models(view, lambda model: model.evaluation.domain_scores(domains)), domains.has_tests
    if view.personal is not None:
        of_clients = _personal_by_domain(view.federation, view.personal)
        numbers |= {name: of_clients.get(name, math.nan) for name in domains.names}
        is_scored = is_scored & [name in of_clients for name in domains.names]
    return numbers | {"mean": mean_score(np.array([numbers[name] for name in domains.names]), is_scored)}


def eigenvalue_variance(view: MeasurementView) -> Numbers:
    """Variance of the eigenvalues of features standardised within each class: FedMR's table 7."""
    view.check_classes("eigenvalue_variance")
    return _of_models(view, lambda m: {"eigenvalue_variance": mean_eigenvalue_variance(m.features, m.labels)})


def average_precision(view: MeasurementView) -> Mapping[str, float | np.ndarray]:
    """Average precision of several labels: its mean over the labels that test examples have, and the task's score.

    Arrays: ``of_label`` [labels], NaN for a label that no test example has; ``local_of_label`` [watched, labels], NaN
    for a client outside the cohort.
    """
    if view.labels.shape != view.server.logits.shape:
        raise UserError("measurement average_precision: the examples have no labels of 0 and 1; leave it out")

    def of_label(model):
        return average_precisions(model.logits, model.labels)

    def summary(model):
        precisions, is_present = of_label(model), np.any(model.labels != 0, axis=0)
        return {"macro": mean_score(precisions, is_present), view.model.task.metric: model.evaluation.score}

    return _of_models(view, summary) | _arrays(view, "of_label", of_label)


def head_spectrum(view: MeasurementView) -> Mapping[str, float | np.ndarray]:
    """Singular values of the classifier's weight, and their effective rank; ``centred`` subtracts the mean of its rows.

    Arrays: ``singular_values`` [values], ``local_singular_values`` [watched, values], NaN for one outside the cohort.
    """

    def spectrum(model, centred=False):
        if (head := classifier_weight.linear_head(view.model, model.variables)) is None:
            network = type(view.model.module).__name__
            raise UserError(f"measurement head_spectrum: the head of network {network} is not linear; leave it out")
        return classifier_weight.weight_spectrum(head.weight, centred)

    def ranks(model):
        ranks = (effective_rank(spectrum(model, centred)) for centred in (False, True))
        return dict(zip(("effective_rank", "centred_effective_rank"), ranks, strict=True))

    return _of_models(view, ranks) | _arrays(view, "singular_values", spectrum)


def linear_probe(view: MeasurementView) -> Numbers:
    """Test accuracy of a ridge classifier fitted to features of training examples, and of the model's head.

    Fitted to at most 10,000 examples that clients own, the same ones in every round.
    """
    view.check_classes("linear_probe")
    examples = view.federation.train
    rows = probe.training_rows(view.federation)
    examples = examples._replace(inputs=examples.inputs[rows], labels=examples.labels[rows])
    labels = np.asarray(examples.labels)

    def probed(model):
        if not model.evaluation.is_finite:
            return dict.fromkeys(("accuracy", "head_accuracy", "gap"), math.nan)
        features = np.asarray(evaluate(view.model, model.variables, examples).features)
        head = probe.fit_ridge(class_moments(features, labels, probe.num_classes(view.model, labels, model.labels)))
        accuracy = probe.accuracy(head, model.features, model.labels)
        has_classes = view.model.task.is_classification
        own = float(np.mean(model.logits.argmax(axis=1) == model.labels)) if has_classes else math.nan
        return {"accuracy": accuracy, "head_accuracy": own, "gap": accuracy - own}

    return _of_models(view, probed)


def features(view: MeasurementView) -> Mapping[str, np.ndarray]:
    """Features of at most 500 test examples, the same in every round, for reports' plots of sphere and t-SNE.

    Arrays: ``features`` [examples, features], ``local_features`` [watched, examples, features], NaN for one outside the
    cohort, ``clients`` [watched], -1 likewise, ``labels`` [examples].
    """
    view.check_classes("features")
    rows = probe.drawn(np.arange(len(view.labels)), FEATURES_SAVED)
    clients = np.array([*view.local, *[-1] * (view.num_watched - len(view.local))])
    arrays = _arrays(view, "features", lambda model: model.features[rows])
    return arrays | {"clients": clients, "labels": view.labels[rows]}


def client_drift(view: MeasurementView) -> Numbers:
    """Lengths of the watched clients' updates of shared params, the cosine of each pair, and their agreement
    ``|mean update|^2 / mean |update|^2``."""
    updates = list(view.updates.values())
    found = drift(inner_products(updates))
    numbers = view.over_clients({"local_norm": list(found.norms)})
    if view.num_watched > 1:
        numbers |= view.over_clients({"local_cosine": list(found.cosines)}) | {"agreement": found.agreement}
    return numbers


def _confusion(model: MeasuredModel) -> np.ndarray:
    """[classes, classes]; NaN of a model that is not finite."""
    classes = model.logits.shape[-1]
    if not model.evaluation.is_finite:
        return np.full((classes, classes), np.nan)
    return matrices.confusion_matrix(model.labels, model.logits)


def _of_models(view: MeasurementView, of: Callable[[MeasuredModel], Numbers]) -> dict[str, float]:
    """Returns the numbers of the server's model and of the watched local models."""
    of_server = of(view.server)
    each = [of(model) for model in view.local.values()]
    return of_server | view.over_clients({f"local_{name}": [numbers[name] for numbers in each] for name in of_server})


def _arrays(view: MeasurementView, name: str, of: Callable[[MeasuredModel], np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the arrays of the server's and of the watched local models; NaN for clients outside the cohort."""
    of_server = of(view.server)
    of_local = [of(model) for model in view.local.values()]
    return {name: of_server, f"local_{name}": view.stacked(of_local, of_server)}


def _similarities(view: MeasurementView, pairs: list[tuple[np.ndarray, np.ndarray]]) -> Numbers:
    kinds = {"local_cka": similarity.linear_cka, "local_debiased_cka": similarity.debiased_cka}
    return view.over_clients({name: [of(*pair) for pair in pairs] for name, of in kinds.items()})


def _personal_by_domain(federation: Federation, scores: np.ndarray) -> dict[str, float]:
    """Returns the scores of the domains that have clients with test examples of this domain only."""
    of_clients = [np.unique(federation.domains.train[rows]) for rows in federation.owned_rows()]
    found = {}
    for i, name in enumerate(federation.domains.names):
        own = [score for score, domains in zip(scores, of_clients, strict=True) if list(domains) == [i]]
        if own:
            found[name] = float(np.mean(own))
    return found

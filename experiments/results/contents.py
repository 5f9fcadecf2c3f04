"""The figures of a report in their order, with captions."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from experiments.results.metrics import ACCURACY, EFFECTIVE_RANK, show_number
from experiments.results.plotting import embedding, figures
from experiments.results.plotting.classifier_figure import head_spectra
from experiments.results.plotting.client_losses import client_loss, within_round
from experiments.results.plotting.client_spectra import client_spectra
from experiments.results.plotting.layer_figure import over_layers
from experiments.results.plotting.partition_figure import partition_figure, partition_table
from experiments.results.plotting.sweep import sweep
from experiments.results.plotting.timing_figure import timing
from experiments.results.study_results import Study
from experiments.results.tables.seconds import timing_table


class Plot(NamedTuple):
    """A figure of the report, with its caption and table."""

    name: str
    title: str
    caption: str
    draw: Callable[..., Any]  # made by ``drawing.draws``: from a study to a matplotlib figure, or None without data
    numbers: Callable[[Study], list[list[str]]] | None = None  # returns the heading and rows of a table
    wide: bool = False  # as wide as the page
    optional: bool = False  # left out without data, instead of being reported as missing


_BAND = "a line is the mean over seeds, a band (up to four arms) one standard deviation (n - 1) to either side"
_OF_BOTH = "of the server model and of the watched client's model after local training in the same round"
_LATE = " With twelve rounds or more their last part is enlarged on the right."
_LAYERS = (
    "Layer 1 is the first block, the last layer the features that the classifier receives; above, the local models "
    "after training (mean over the watched clients), below, the server's model that is averaged from them in the same "
    "round; mean over seeds, one colour scale for all panels."
)
_more = functools.partial(Plot, wide=True, optional=True)  # drawn if a study measured more than all do
PLOTS = (
    _more(
        "sweep",
        "Sweep",
        "Accuracy (or the task's score), effective rank of the server model and R after the last round, against the "
        "swept value; if there are several axes, lines differ in the values of the others. Mean over seeds, with one "
        "standard deviation (n - 1) to either side; a grey line is an arm that is not swept.",
        sweep,
    ),
    Plot(
        "accuracy",
        "Accuracy",
        f"The headline accuracy (see the note below the table) after each round, {ACCURACY.better} is better; "
        f"{_BAND}.{_LATE}",
        figures.accuracy,
    ),
    Plot(
        "score",
        "Score of the task",
        f"The score of a task that has no accuracy (see the note below the table) after each round; {_BAND}.{_LATE}",
        figures.score,
    ),
    Plot(
        "spectra",
        "Normalised spectra",
        "Share of the variance of the test-set features in each principal dimension, which is an eigenvalue of their "
        f"covariance divided by the sum of all, largest first, {_OF_BOTH}: the earlier a curve falls, the fewer "
        "dimensions the features use, whatever their size. Geometric mean over seeds; values below "
        f"{figures.SMALLEST:g} % are cut off. --absolute draws the eigenvalues themselves.",
        figures.spectra,
    ),
    Plot(
        "absolute-spectra",
        "Absolute spectra",
        "Natural log of the eigenvalues (= singular values) of the covariance of the test-set features, largest first, "
        f"averaged over seeds, {_OF_BOTH}. A curve is also low where a method shrinks all features, without fewer "
        "dimensions; significant dimensions are eigenvalues with natural log > "
        f"{show_number(figures.SIGNIFICANT, '.0f')} (dotted); values below {show_number(figures.LOWEST, '.0f')} are "
        "cut off.",
        figures.absolute_spectra,
        optional=True,
    ),
    _more(
        "client-spectra",
        "Spectra of the clients",
        "Share of the variance of the test-set features in each principal dimension, largest first: of every watched "
        "client's model after local training in the last saved round (thin), and of the server's model that is "
        "averaged from them (black); of the first seed.",
        client_spectra,
    ),
    Plot(
        "effective-rank",
        "Effective rank",
        "Effective rank = exp of the entropy of the normalised eigenvalues (divided by their sum): 1 if one direction "
        "carries all variance, the number of features if all carry the same, so that a falling curve is dimensional "
        f"collapse; {_BAND}.{_LATE} The scale on the right is a percentage of the number of features.",
        figures.effective_rank,
    ),
    Plot(
        "rank-share",
        "Effective rank as a share of the features",
        f"Effective rank divided by the number of features, in which these arms differ; {_BAND}.{_LATE}",
        figures.rank_share,
        optional=True,
    ),
    Plot(
        "collapse-ratio",
        "R: local against global spectrum",
        "R = mean over k of log(λ_k local / λ_k global), with λ_k the k-th largest eigenvalue of the local and of the "
        "global (server) model of the same round: 0 means equal spectra, below 0 the local spectrum is the lower one; "
        f"if several clients are watched, the mean over them; {_BAND}.{_LATE}",
        figures.collapse_ratio,
    ),
    _more(
        "measurements",
        "Measurements",
        "Custom measurements of the study (measured/<name> in metrics.jsonl), a panel for each name; values of local "
        f"models are dashed (the mean over them if several are watched); {_BAND}.",
        figures.measurements,
    ),
    _more(
        "domains",
        "Accuracy by domain",
        f"Accuracy of the server model on the test examples of each domain; {_BAND}.",
        figures.domains,
    ),
    _more(
        "layer-ranks",
        "Effective rank of each layer",
        f"Effective rank of the representation after each block on the test set (measurement layers). {_LAYERS}",
        over_layers("effective_rank", "effective rank", logarithmic=True),
    ),
    _more(
        "layer-probes",
        "Linear probes of each layer",
        "Test accuracy of a linear classifier fitted to the representation after each block (measurement layers). "
        f"{_LAYERS}",
        over_layers("probe", "accuracy (0 to 1)", logarithmic=False),
    ),
    _more(
        "layer-nc1",
        "Variability within classes, by layer",
        "NC1 of the representation after each block on the test set (measurement layers): 0 if each class is one "
        f"point. {_LAYERS}",
        over_layers("nc1", "NC1", logarithmic=True),
    ),
    _more(
        "head-spectra",
        "Singular values of the classifier",
        "Singular values of the weight of the server model's classifier (measurement head_spectrum), largest first, "
        "mean over seeds, a panel for each arm; a few rounds, the later the darker: where the last values are small, "
        "the classifier uses fewer dimensions.",
        head_spectra,
    ),
    _more(
        "sphere",
        "Features on the unit sphere",
        "Test-set features of the server model at the last round that saved them, first seed, minus their mean, along "
        "their three principal axes and scaled to length 1; pale points are on the far side. Features that use many "
        "dimensions spread over the sphere, collapsed ones lie on a circle or at a few places.",
        embedding.sphere,
    ),
    _more(
        "tsne-classes",
        "t-SNE of features, by class",
        "Test-set features of the server model at the last round that saved them, first seed, in the plane by t-SNE "
        "(perplexity 30, from the principal components); distances between far groups mean nothing.",
        embedding.tsne_classes,
    ),
    _more(
        "tsne-clients",
        "t-SNE of one class's features, by client",
        "Features of the test examples of one class (the second, or the first that there is) under the local models of "
        f"up to {embedding.CLIENTS} watched clients of the last round that saved them, first seed, together in the "
        "plane by t-SNE: clients apart from each other have learned different features of the class.",
        embedding.tsne_clients,
    ),
    Plot(
        "training-loss",
        "Training loss",
        "Loss of the task during local training (cross-entropy, or what a method puts in its place), without the "
        f"terms of regularizers: mean over the clients of a round, weighted by their examples; {_BAND}.{_LATE}",
        figures.training_loss,
    ),
    Plot(
        "client-loss",
        "Training loss per client",
        "Mean training cross-entropy of each client (row) during its local training in each round (column), first seed "
        "of each arm: a row that stays bright is a client that learns less; grey means not in that round's cohort.",
        client_loss,
    ),
    _more(
        "within-round",
        "Losses within a round",
        "Mean of the cross-entropy and of every term over each epoch of local training, before their strengths, in the "
        "last round of each arm's first seed: grey lines are clients, the coloured line is their mean "
        "(training.logged_epochs).",
        within_round,
    ),
    Plot(
        "timing",
        "Time",
        "Left: seconds of one run spent compiling, training and evaluating, mean over seeds, with their sum; right: "
        "true training samples (padding not counted) processed per second of training, compilation excluded. The table "
        "has medians of training time over rounds, without those that compile and the first of a run; per client: "
        "divided by the clients that trained, whether one after the other or at once. Batched runs are one program, "
        "whose time is divided equally among them (shared_by in timing.jsonl), so such arms cannot be compared by "
        "time; memory is that of the whole program, as estimated by the compiler.",
        timing,
        timing_table,
    ),
    Plot(
        "partition",
        "Partition",
        "Left: number of training examples that each client (row) holds of each class (column), in the first run: the "
        "fewer dark cells in a row, the more heterogeneous the clients. Right, in the same rows: the client's size; "
        "the number of classes it holds; the entropy of its class distribution (0 for a single class, dotted: log of "
        "the number of classes, for equal shares). The table has a row for every different partition, entropies in "
        "nats. Mutual information of an example's client and class is the mean, weighted by size, of the KL divergence "
        "of a client's class distribution from that of all examples: 0 if all clients have the same distribution, the "
        "entropy of all examples' classes (the second number) if each client has one class.",
        partition_figure,
        partition_table,
        wide=True,
    ),
)


def _overview(name: str, what: str, metrics_of: Callable[[Study], list[str]]) -> Plot:
    caption = f"{what} after each round, a panel for each setting; {_BAND}."
    return Plot(name, name.capitalize().replace("-", " "), caption, figures.over_settings(metrics_of), wide=True)


OVERVIEW = (  # of all settings
    _overview("accuracy", "The headline accuracy", lambda study: [ACCURACY.name]),
    _overview("score", "The score of a task that has no accuracy", figures.score_of),
    _overview("effective-rank", "Effective rank of the server model's features", lambda study: [EFFECTIVE_RANK.name]),
)


def plots_of(study: Study, plots: Sequence[Plot] = PLOTS, absolute: bool = False) -> list[Plot]:
    """Returns the plots with one of accuracy and score of the task, the one by which the study is compared.

    Likewise with one kind of spectra, normalised or ``absolute``.
    """
    absent = "score" if study.score == ACCURACY else "accuracy", "spectra" if absolute else "absolute-spectra"
    return [plot for plot in plots if plot.name not in absent]

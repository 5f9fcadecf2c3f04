"""The figures of a report in their order, and the arms that they show."""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from fedjax_collapse.results.annotations import Figure
from fedjax_collapse.results.metrics import ACCURACY
from fedjax_collapse.results.plot import features, losses, rounds, spectrum
from fedjax_collapse.results.plot.partition import partition, partition_table
from fedjax_collapse.results.plot.sweep import sweep
from fedjax_collapse.results.plot.times import timing
from fedjax_collapse.results.study import Results
from fedjax_collapse.results.tables import Table, timing_table

MOST_ARMS = 24  # in a figure with a line or a panel for each


class Plot(NamedTuple):
    """A figure of the report, and its table."""

    title: str
    draw: "Callable[..., Figure | None]"  # made by ``drawing.draws``
    table: Callable[[Results], Table | None] | None = None
    wide: bool = False  # as wide as the page
    optional: bool = False  # left out without data, instead of being reported as missing
    of_all_arms: bool = False  # not only of ``shown``

    @property
    def name(self) -> str:
        """The name of its files: the function's, with hyphens."""
        return self.draw.__name__.replace("_", "-")

    @property
    def caption(self) -> str:
        """The function's docstring, which says what the figure shows."""
        return " ".join((self.draw.__doc__ or "").split())


def shown(study: Results) -> Results:
    """Returns the results that figures show: of all arms, or of ``MOST_ARMS``, the first and the best by the score."""
    first, *others = study.arms
    if len(others) < MOST_ARMS:
        return study
    if study.score.name in study.final:
        others = [arm for arm in study.select(sort=study.score.name).arms if arm != first]
    best = {first, *others[: MOST_ARMS - 1]}
    return study.select([arm for arm in study.arms if arm in best])


def arms_note(study: Results) -> str:
    """Says which arms are in figures; empty if all are."""
    few, many = len(shown(study).arms), len(study.arms)
    best = f"the first, and the best by {study.score.quantity}"
    return f"Figures show {few} of {many} arms: {best}; tables show all." if few < many else ""


_more = functools.partial(Plot, wide=True, optional=True)  # drawn if a study measured more than all do
PLOTS = (
    _more("Sweep", sweep, of_all_arms=True),
    Plot("Accuracy", rounds.accuracy),
    Plot("Score of the task", rounds.score),
    Plot("Normalised spectra", spectrum.spectra),
    Plot("Absolute spectra", spectrum.absolute_spectra, optional=True),
    _more("Spectra of the clients", spectrum.client_spectra),
    Plot("Effective rank", rounds.effective_rank),
    Plot("R: local against global spectrum", rounds.collapse_ratio),
    _more("Measurements", rounds.measurements),
    _more("Accuracy by domain", rounds.domains),
    _more("Effective rank of each layer", features.layer_ranks),
    _more("Linear probes of each layer", features.layer_probes),
    _more("Variability within classes, by layer", features.layer_nc1),
    _more("Singular values of the classifier", features.head_spectra),
    _more("Features on the unit sphere", features.sphere),
    _more("t-SNE of features, by class", features.tsne_classes),
    _more("t-SNE of one class's features, by client", features.tsne_clients),
    Plot("Training loss", rounds.training_loss),
    Plot("Training loss per client", losses.client_loss, wide=True),
    _more("Losses within a round", losses.within_round),
    Plot("Time", timing, timing_table),
    Plot("Partition", partition, partition_table, wide=True, of_all_arms=True),
)
_OF_ALL_SETTINGS = ("sweep", "accuracy", "score", "effective-rank")
OVERVIEW = tuple(of._replace(wide=True) for of in PLOTS if of.name in _OF_ALL_SETTINGS)


def figures_of(study: Results, absolute: bool | None = None) -> Iterator[tuple[str | None, Plot, Results]]:
    """Yields the figures of a study with settings, then those of each setting.

    Each is the setting, None for all of them, the plot, and the results that it shows. Of accuracy and score of the
    task there is the one by which the study is compared, of spectra the normalised or ``absolute`` ones; None is both.
    """
    some, settings = shown(study), study.settings
    for setting in [*[None] * (len(settings) > 1), *settings]:
        every, few = (of if setting is None else of.of_setting(setting) for of in (study, some))
        absent = ["score" if every.score == ACCURACY else "accuracy"]
        absent += [] if absolute is None else ["spectra" if absolute else "absolute-spectra"]
        for plot in OVERVIEW if setting is None else PLOTS:
            if plot.name not in absent:
                yield setting, plot, every if plot.of_all_arms else few

"""The metrics of a study: each is declared here once, with how it is shown everywhere."""

import math
import numbers
import statistics
from collections.abc import Container, Sequence
from typing import Any, NamedTuple

from fedjax_collapse.core.records import MEASURED
from fedjax_collapse.run.privacy import guarantee
from fedjax_collapse.run.privacy.guarantee import AS_IF, EPSILON

PHASES = ("compile", "train", "evaluate")  # of a round; their seconds are in timing.jsonl
MINUS = "\N{MINUS SIGN}"  # of numbers that are shown; files for programs have the hyphen
LARGEST = 1e100  # the largest number that is shown; squares of larger ones may not be finite
_DOMAIN = "domain_accuracy/"
_TOP = range(1, 6)  # labels that recall is of
_PRIVACY = {EPSILON: "\u03b5 at \u03b4 = {}", AS_IF: "\u03b5 at \u03b4 = {} as if {}"}


class Metric(NamedTuple):
    """A metric: its key in ``metrics.jsonl`` and summaries, and how its values are shown."""

    name: str
    heading: str  # of a column
    quantity: str  # its name in a sentence and, with the unit, on an axis
    unit: str = ""
    factor: float = 1  # from the stored number to the unit
    format: str = ".4g"
    better: str = ""  # "higher" or "lower"; empty if neither is better
    of: str = "server"  # whose model: "headline" (the one that would be used), "server", "local", or "study" for none
    is_rare: bool = False  # it has a column only if it is not 0 in some cell

    @property
    def axis(self) -> str:
        """The label of an axis."""
        return f"{self.quantity} ({self.unit})" if self.unit else self.quantity

    def show(self, value: Any, missing: str = "-") -> str:
        """Formats a stored number in the metric's unit."""
        shown = guarantee.rounded_up(number(value)) if is_privacy(self.name) else self.factor * number(value)
        return show_number(shown, self.format, missing)

    def say(self, values: Sequence[Any], spread: bool = False) -> str:
        """Formats the mean of stored numbers with the metric's name and, if ``spread``, their standard deviation."""
        values = [number(value) for value in values]
        deviation = f" ± {self.show(statistics.stdev(values), 'nan')}" if spread and len(values) > 1 else ""
        return f"{self.quantity} {self.show(statistics.fmean(values))}{deviation}" + " %" * (self.unit == "%")


ACCURACY = Metric("accuracy", "Accuracy (%)", "accuracy", "%", 100, ".2f", "higher", "headline")
BEST_ACCURACY = ACCURACY._replace(name="best_accuracy", heading="Best", quantity="best accuracy")
LAST10_ACCURACY = ACCURACY._replace(name="last10_accuracy", heading="Last 10", quantity="mean accuracy of the last 10")
SCORES = (  # the headlines of tasks that have no accuracy
    *(ACCURACY._replace(name=f"recall_at_{k}", heading=f"Recall at {k} (%)", quantity=f"recall at {k}") for k in _TOP),
    Metric("similarity", "Similarity of views", "similarity of views", format=".3f", of="headline"),
    Metric("squared_error", "Squared error", "squared error", better="lower", of="headline"),
)
EFFECTIVE_RANK = Metric("effective_rank", "Effective rank", "effective rank", "dimensions", format=".1f")
SIGNIFICANT_DIMS = Metric("significant_dims", "Significant dimensions", "significant dimensions", format=".1f")
DEAD_FEATURES = Metric("dead_features", "Dead features (%)", "dead features", "%", 100, ".1f", is_rare=True)
R = Metric("R", "R", "R", "natural log", format=".3f", of="local")
LOCAL_EFFECTIVE_RANK = EFFECTIVE_RANK._replace(
    name="local_effective_rank", heading="Local effective rank", quantity="local effective rank", of="local"
)
TASK_LOSS = Metric("train/task_loss", "Training loss", "training loss of the task", better="lower", of="local")
SECONDS = Metric("seconds_per_round", "Seconds per round", "seconds per round", better="lower", of="study")
TO_TARGET = Metric("rounds_to_target", "Rounds to the target", "rounds to the target", better="lower", of="study")
COUNTED = TO_TARGET._replace(
    name="numbers_sent", heading="Numbers sent in one direction", quantity="numbers sent in one direction"
)

ACCURACIES = (ACCURACY, BEST_ACCURACY, LAST10_ACCURACY)
RANKS = (EFFECTIVE_RANK, SIGNIFICANT_DIMS)
SUMMARISED = (*ACCURACIES, *RANKS, R)  # the columns of the final table
LOCAL_DEAD_FEATURES = DEAD_FEATURES._replace(
    name="local_dead_features", heading="Local dead features (%)", quantity="local dead features", of="local"
)
OF_LOCAL = (R, LOCAL_EFFECTIVE_RANK, LOCAL_DEAD_FEATURES)  # of the watched client with the lowest identity
OVER_CLIENTS = tuple(  # if several clients are watched; these columns replace R's
    metric._replace(name=f"{metric.name}_{kind}", heading=f"{metric.heading}, {words}")
    for metric in OF_LOCAL
    for kind, words in (("mean", "mean over clients"), ("min", "lowest"), ("max", "highest"))
)
BY_VALIDATION = ACCURACY._replace(
    name="validated_accuracy", heading="By validation", quantity="accuracy of the round that is best on validation rows"
)
VALIDATION_ROUND = Metric("validation_round", "Validation round", "round that is best on validation rows", of="study")
VALIDATION = ACCURACY._replace(
    name="validation_accuracy", heading="Validation (%)", quantity="accuracy on the common validation set", of="server"
)
OWN_VALIDATION = "own/validation/accuracy/weighted"
_OWN = {
    "trained/accuracy/weighted": ("Trained", "accuracy at the end of the last local training"),
    "finetuned/accuracy/weighted": ("Fine-tuned", "accuracy after fine-tuning"),
    "global_received/accuracy/weighted": ("Server's model", "accuracy of the server's model"),
    "global_finetuned/accuracy/weighted": ("Server's, fine-tuned", "accuracy of the server's model after fine-tuning"),
    "received/accuracy/mean": ("Mean over clients", "unweighted mean of the clients' accuracies"),
    "received/accuracy/worst_decile": ("Worst decile", "accuracy of the worst tenth of the clients"),
}
OF_OWN_TESTS = (  # if there are validation rows, or clients have test rows of their own; after the accuracies
    BY_VALIDATION,
    VALIDATION_ROUND,
    *(ACCURACY._replace(name=f"own/{name}", heading=heading, quantity=of) for name, (heading, of) in _OWN.items()),
)
OPTIONAL = (*SCORES, *OF_OWN_TESTS, DEAD_FEATURES, LOCAL_DEAD_FEATURES, *OVER_CLIENTS)  # summarised where they are
FROM_RUNS = (SECONDS, TO_TARGET)  # computed from all runs of a study
_DECLARED = {
    metric.name: metric
    for metric in (*SUMMARISED, *OPTIONAL, VALIDATION, LOCAL_EFFECTIVE_RANK, TASK_LOSS, *FROM_RUNS, COUNTED)
}


def metric_of(name: str) -> Metric:
    """Returns the metric of that name: declared, an accuracy on a domain, or a custom one with only a name."""
    if name in _DECLARED:
        return _DECLARED[name]
    if name.startswith(_DOMAIN):
        domain = name.removeprefix(_DOMAIN)
        return ACCURACY._replace(name=name, heading=domain, of="server")
    for prefix, heading in _PRIVACY.items():
        if name.startswith(prefix):
            heading = heading.format(*name.removeprefix(prefix).split(", "))
            return Metric(name, heading, heading, of="study")
    shown = name.removeprefix(MEASURED)
    return Metric(name, shown, shown, of="local" if name.rpartition("/")[2].startswith("local_") else "server")


def headline_in(names: Container[str]) -> Metric:
    """Returns the headline among metrics of these names: the accuracy or, without one, the score of the task."""
    return next((metric for metric in (ACCURACY, *SCORES) if metric.name in names), ACCURACY)


def is_of_domain(name: str) -> bool:
    """Returns whether the metric is an accuracy on the test examples of a domain."""
    return name.startswith(_DOMAIN)


def is_measured(name: str) -> bool:
    """Returns whether the metric is a custom measurement."""
    return name.startswith(MEASURED)


def is_privacy(name: str) -> bool:
    """Returns whether the metric is the epsilon of a run."""
    return name.startswith((*_PRIVACY,))


def panels(names: Sequence[str]) -> dict[str, list[str]]:
    """Groups measurements that are drawn in one panel: ``x`` with ``local_x`` or ``local_x_mean``, by the first name.

    ``x_min`` and ``x_max`` are left out if there is ``x_mean``.
    """
    known, found = set(names), {}
    for name in names:
        if name.endswith(("_min", "_max")) and f"{name[:-4]}_mean" in known:
            continue
        folder, _, last = name.rpartition("/")
        of_server = f"{folder}/{last.removeprefix('local_').removesuffix('_mean')}"
        is_paired = metric_of(name).of == "local" and of_server in known
        found.setdefault(of_server if is_paired else name, []).append(name)
    return found


def number(value: Any) -> float:
    """Returns the value as a float; NaN for null, for anything but a number, and for numbers too large to be shown."""
    return float(value) if isinstance(value, numbers.Real) and abs(value) <= LARGEST else math.nan


def show_number(value: Any, form: str, missing: str = "-") -> str:
    """Formats the number, for example as ``.2f``, with true minus signs; ``missing`` if it is null or not finite."""
    value = number(value)
    return f"{value:{form}}".replace("-", MINUS) if math.isfinite(value) else missing

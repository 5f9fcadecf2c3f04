"""The table of a paper with which a study is compared: ``config.paper``."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments.config.names import check_name
from experiments.results.metrics import ACCURACIES, ACCURACY, COUNTED, FROM_RUNS, TO_TARGET, Metric, metric_of
from fedjax_collapse.core.options import check_value
from fedjax_collapse.core.records import MEASURED, UserError

_METRICS = (*ACCURACIES, *FROM_RUNS, COUNTED)  # COUNTED is for fedjax-collapse communication, not for reports
_KINDS = {"source": str, "comparable": bool, "why": str, "metric": str, "target": str, "values": dict}


class Paper(NamedTuple):
    """A paper's numbers, accuracies in percent, by setting (empty in a study without settings) and arm."""

    source: str
    comparable: bool
    values: dict[str, dict[str, float]]
    why: str = ""  # the reason if they are not comparable
    metric: Metric = ACCURACY  # our metric that corresponds to the numbers
    target: str = ""  # the arm whose best accuracy is the target of rounds

    @property
    def is_percent(self) -> bool:
        return self.metric.unit == ACCURACY.unit


def paper_of(config: Mapping[str, Any], counted: bool = False) -> Paper | None:
    """Returns the paper of the config, or None.

    ``counted`` selects papers with the metric numbers_sent; otherwise these are ignored.
    """
    paper = dict(config.get("paper") or {})
    if paper and (paper.get("metric") == COUNTED.name) != counted:
        return None
    if "metric" in paper:
        paper["metric"] = metric_of(paper["metric"])
    if paper and not config.get("settings"):
        paper["values"] = {"": paper["values"]}
    return Paper(**paper) if paper else None


def check_kinds(paper: Mapping[str, Any], has_settings: bool) -> None:
    """Raises UserError for a key that is unknown or missing, or a value of another kind."""
    for key, value in paper.items():
        check_name("config key of paper", key, _KINDS)
        check_value(f"paper.{key}", value, _KINDS[key])
    for key in ("source", "comparable", "values") if paper else ():
        if key not in paper:
            raise UserError(f"config.paper has no {key}: expected source, comparable and values")
    for name, value in paper.get("values", {}).items():
        check_value(f"paper.values.{name}", value, dict[str, float] if has_settings else float)


def check_paper(config: Mapping[str, Any], arms: Iterable[str]) -> None:
    """Raises UserError for an invalid ``config.paper``.

    This is one with an unknown key, metric, setting or arm, with a value that is not a percentage, or without a reason
    or target.
    """
    check_kinds(config["paper"], bool(config["settings"]))
    paper = paper_of(config) or paper_of(config, counted=True)
    if paper is None:
        return
    if not paper.comparable and not paper.why:
        raise UserError("paper.comparable is False: explain why in paper.why, in one line for below the table")
    metric = paper.metric.name
    name, _, of = metric.removeprefix(MEASURED).partition("/")
    if not (metric.startswith(MEASURED) and name in config["measurements"] and of):
        measured = [f"{MEASURED}{name}/..." for name in config["measurements"]]
        check_name("paper.metric", metric, [*(known.name for known in _METRICS), *measured])
    if paper.metric == TO_TARGET:
        check_name("arm in paper.target", paper.target, arms)
    elif paper.target:
        raise UserError(f"paper.target {paper.target!r} belongs to paper.metric={TO_TARGET.name!r}; remove one of them")
    for setting, of_arms in paper.values.items():
        check_name("setting in paper.values", setting, [*config["settings"], *config["means"]] or [""])
        path = f"paper.values.{setting}".rstrip(".")
        for arm, value in of_arms.items():
            check_name(f"arm in {path}", arm, arms)
            if paper.is_percent and not 0 <= value <= 100:
                raise UserError(f"{path}.{arm}: {value}, expected percent, from 0 to 100")

"""The table of a paper that a study is compared with: ``config.paper``."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments.config.names import check_name
from experiments.results.metrics import ACCURACIES, ACCURACY, COUNTED, FROM_RUNS, TO_TARGET, Metric, metric_of
from fedjax_collapse.core.options import check_value
from fedjax_collapse.core.records import MEASURED, UserError

_METRICS = (*ACCURACIES, *FROM_RUNS, COUNTED)  # COUNTED by fedjax-collapse communication; no report has it
_KINDS = {"source": str, "comparable": bool, "why": str, "metric": str, "target": str, "values": dict}


class Paper(NamedTuple):
    """A paper's numbers, accuracies in percent, by setting (empty in a study without settings) and arm."""

    source: str
    comparable: bool
    values: dict[str, dict[str, float]]
    why: str = ""  # they are not comparable
    metric: Metric = ACCURACY  # of ours, that they are numbers of
    target: str = ""  # the arm whose best accuracy rounds are counted to

    @property
    def is_percent(self) -> bool:
        return self.metric.unit == ACCURACY.unit


def paper_of(config: Mapping[str, Any], counted: bool = False) -> Paper | None:
    """What the config says of a paper: only if it is ``counted`` (numbers_sent), or only if it is not; else None."""
    paper = dict(config.get("paper") or {})
    if paper and (paper.get("metric") == COUNTED.name) != counted:
        return None
    if "metric" in paper:
        paper["metric"] = metric_of(paper["metric"])
    if paper and not config.get("settings"):
        paper["values"] = {"": paper["values"]}
    return Paper(**paper) if paper else None


def check_kinds(paper: Mapping[str, Any], has_settings: bool) -> None:
    """Raises UserError for a key that there is not, or one that is missing, or is of another kind."""
    for key, value in paper.items():
        check_name("config key of paper", key, _KINDS)
        check_value(f"paper.{key}", value, _KINDS[key])
    for key in ("source", "comparable", "values") if paper else ():
        if key not in paper:
            raise UserError(f"config.paper has no {key}: expected source, comparable and values")
    for name, value in paper.get("values", {}).items():
        check_value(f"paper.values.{name}", value, dict[str, float] if has_settings else float)


def check_paper(config: Mapping[str, Any], arms: Iterable[str]) -> None:
    """Raises UserError for a key, a metric, a setting or an arm that there is not, a value that is no percentage, or a
    reason or target that is missing."""
    check_kinds(config["paper"], bool(config["settings"]))
    paper = paper_of(config) or paper_of(config, counted=True)
    if paper is None:
        return
    if not paper.comparable and not paper.why:
        raise UserError("paper.comparable is False: say why in paper.why, in a line that stands below the table")
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

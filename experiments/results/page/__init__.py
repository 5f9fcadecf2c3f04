"""The report: one HTML file with its style and figures inside, and CSV files with the numbers of the figures."""

import base64
import functools
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2

from experiments.results.contents import OVERVIEW, Plot, plots_of
from experiments.results.formats import name_of
from experiments.results.plotting import drawing
from experiments.results.plotting.arm_colours import colours_of
from experiments.results.reading import layouts_of, read_study
from experiments.results.study_results import Study
from experiments.results.tables.best import best_note, with_best
from experiments.results.tables.dead import dead_notes
from experiments.results.tables.differences import difference_tables
from experiments.results.tables.pivots import pivots
from experiments.results.tables.table import Titled, accuracy_note, final_table, local_note
from experiments.results.tables.view import EVERYTHING, View
from experiments.results.verdict import verdict
from experiments.waiting import Advance, Wait, unseen
from fedjax_collapse.config.cells import arms_of, merged
from fedjax_collapse.config.folder import NUMBERS, REPORT
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.run.fingerprint import flatten

# sources too small, or too artificial, for a comparison with papers
DEMONSTRATIONS = ("digits", "glyphs", "synthetic", "experiments.configs.pfllib:digits")

_OF_ALL = ("data", "clients", "partition", "network")  # described once for all arms of a study

_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")


class Figure(NamedTuple):
    """A plot on the page."""

    id: str
    plot: Plot
    svg: str  # empty if the study lacks the data for it
    csv: str  # its numbers; empty without a figure, or if there are too many
    file: str  # the path of their file in the study's folder
    numbers: list[list[str]]  # the heading and rows of a table below it

    @property
    def address(self) -> str:
        """The URL of the numbers, relative to the page; empty if there are none."""
        return quote(os.fsencode(self.file)) if self.csv else ""


class Section(NamedTuple):
    """The results of a setting; the only section, without a heading, if the study has no settings."""

    heading: str
    description: str
    results: list[list[str]]
    colours: dict[str, str]  # of arms
    notes: list[str]
    differences: list[Titled]  # from the first arm
    figures: list[Figure]


def write_report(study: Study | Path | str, view: View = EVERYTHING, wait: Wait = unseen) -> Path:
    """Writes ``report.html`` from a study or from what is saved in its folder, and returns its path.

    The numbers of the figures are written to ``report/<figure>.csv``, or ``report/<setting>/<figure>.csv``. Each file
    is replaced in one step, unless it has the same content.

    ``view`` is what its tables show; ``wait`` (``waiting.py``) shows how many figures have been drawn.

    Raises:
        UserError: the folder is not a study's, or a file in it cannot be read or written.
    """
    study = study if isinstance(study, Study) else read_study(study)
    for name, text in render(study, view, wait).items():
        path = study.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.shared(path) as file:
                file.write(text.encode(errors="backslashreplace"))  # for names that are not Unicode
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    return study.path / REPORT


def render(study: Study, view: View = EVERYTHING, wait: Wait = unseen) -> dict[str, str]:
    """Returns the text of every file by its path in the study's folder; equal studies give equal text."""
    overview = plots_of(study, OVERVIEW) if len(study.settings) > 1 else []
    parts = {setting: study.of_setting(setting) for setting in study.settings}
    total = len(overview) + sum(len(plots_of(part, absolute=view.absolute)) for part in parts.values())
    with wait(f"drawing the figures of {study.path}", total) as advance:
        sections = [_section(part, i, setting, view, advance) for i, (setting, part) in enumerate(parts.items())]
        overview = _drawn(overview, study, "all-", NUMBERS, advance)
    figures = [*overview, *(figure for section in sections for figure in section.figures)]
    page = _template().render(
        title=f"Study {name_of(study.path.resolve())}",
        description=description(study),
        finding=verdict(study),
        demonstration=", ".join(demonstrations(study)),
        notes=missing_results(study) + several_layouts(study.starts) + list(study.notes),
        pivots=pivots(study, view),
        dead=dead_notes(study),
        overview=overview,
        sections=sections,
        settings=as_text(study.config),
        environment=environment(study.starts),
        script=_SCRIPT,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}",
    )
    return {figure.file: figure.csv for figure in figures if figure.csv} | {REPORT: drawing.defined_once(page)}


def demonstrations(study: Study) -> list[str]:
    """Returns the sources of the study's data if all of them are demonstrations."""
    names = [_name(_at(study.of_setting(setting).config, "data", "source")) for setting in study.settings]
    return list(dict.fromkeys(names)) if all(name.startswith(DEMONSTRATIONS) for name in names) else []


def description(study: Study) -> str:
    """Describes the study in a sentence, and the arms that differ in data, clients, partition or network."""
    config = study.config
    seeds = sorted({run.seed for run in study.runs})
    parts = [f"{_count(study.arms, 'arm')} ({', '.join(study.arms)}) ran"]
    if config.get("settings"):
        parts.append(f"in {_count(study.settings, 'setting')} ({', '.join(study.settings)})")
        return " ".join([*parts, f"with {_count(seeds, 'seed')} ({', '.join(map(str, seeds))})"]) + "."
    parts.append(f"for {study.rounds} round{'s' * (study.rounds != 1)}")
    parts.append(f"with {_count(seeds, 'seed')} ({', '.join(map(str, seeds))})")
    if data := _name(_at(config, "data", "source")):
        parts.append(f"on the data set {data}")
    if isinstance(clients := config.get("clients"), int):
        parts.append(f"divided over {clients} client{'s' * (clients != 1)}")
    if name := _name(config.get("partition")):
        alpha = _at(config, "partition", "alpha")
        parts.append(f"by the partition {name}" + (f" (alpha {alpha})" if alpha is not None else ""))
    if network := _name(config.get("network")):
        parts.append(f"with the network {network}")
    return " ".join(parts) + "." + _other_arms(study)


def _other_arms(study: Study) -> str:
    """Returns a sentence about arms with other data, clients, partition or network; empty if there are none."""
    found = []
    for name, arm in arms_of(study.config).items():
        changes = arm.changes if name in study.arms and isinstance(arm.changes, Mapping) else {}
        merge = merged(study.config, changes)
        own = [key for key in _OF_ALL if key in changes and merge[key] != study.config.get(key)]
        if own:
            values = as_text({key: changes[key] for key in own})
            found.append(f"{name} ({', '.join(f'{path} {value}' for path, value in values)})")
    return f" Other than that: {'; '.join(found)}." if found else ""


def missing_results(study: Study) -> list[str]:
    """Returns sentences about results that the config defines but the folder does not contain (yet)."""
    if declared := study.config.get("settings"):
        found = {s: missing_results(study.of_setting(s)) if s in study.settings else ["no results."] for s in declared}
        return [f"{setting}: {note}" for setting, notes in found.items() for note in notes]
    unfinished = [(run, study.how_far(run)) for run in study.runs if not run.is_finished]
    notes = [f"{run.arm}, seed {run.seed}: unfinished, {far}; not in the tables." for run, far in unfinished]
    notes += [f"Failed: {line}" for of_arm in study.summary.values() for line in of_arm.get("failed", {}).values()]
    num_seeds = len(study.config.get("seeds", ()))
    for arm in dict.fromkeys([*study.arms, *arms_of(study.config)]):
        if (done := len(study.of_arm(arm))) < num_seeds:
            notes.append(f"{arm}: results of {done} of {num_seeds} seeds.")
    return notes


def several_layouts(starts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns sentences about arms that different starts have trained in different layouts."""
    several = {arm: "; ".join(layouts) for arm, layouts in layouts_of(starts).items() if len(layouts) > 1}
    note = "{}: starts have trained it with {}: rounding may differ between them."
    return [note.format(*of_arm) for of_arm in several.items()]


def as_text(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns dotted names and values of nested mappings, in their order."""
    pairs = flatten(record).items() if record else ()
    return [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for name, value in pairs]


def environment(starts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns what each start recorded, with a heading; for later starts only what differs.

    The heading is empty if there is only one start.
    """
    recorded = [as_text(start) for start in starts]
    if len(recorded) < 2:
        return [("", pairs) for pairs in recorded or [[]]]
    sections = [(f"Start 1 of {len(recorded)}", recorded[0])]
    for before, (position, pairs) in zip(recorded, enumerate(recorded[1:], 2), strict=False):
        heading = f"Start {position} of {len(recorded)}: what differs from the one before"
        gone = dict(before).keys() - dict(pairs).keys()
        differs = [pair for pair in pairs if pair not in before]
        sections.append((heading, differs + [(name, "-") for name, _ in before if name in gone]))
    return sections


@functools.cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, **options)
    return environment.get_template("page.html.jinja")


def _section(part: Study, index: int, setting: str, view: View, advance: Advance) -> Section:
    colours = {cell.arm: "#999999" for cell in part.summary}
    colours |= {arm: drawing.themed(colour) for arm, colour in colours_of(part).items()}
    folder = os.path.join(NUMBERS, os.fsdecode(setting.encode()))  # names on the disk are UTF-8
    plots = plots_of(part, absolute=view.absolute)
    figures = _drawn(plots, part, f"setting{index}-" if setting else "", folder, advance)
    about = description(part) if setting else ""
    summary = with_best(part, view.of(part.summary))
    notes = accuracy_note(summary), local_note(summary), best_note(summary), *dead_notes(part)
    rows, differences = final_table(summary, view.metrics(summary)), difference_tables(part, view=view)
    return Section(setting, about, rows, colours, list(filter(None, notes)), differences, figures)


def _drawn(plots: Sequence[Plot], study: Study, prefix: str, folder: str, advance: Advance) -> list[Figure]:
    """Returns the figures, with ids that start with the prefix, without optional ones that lack data."""
    drawn = []
    for plot in plots:
        drawn.append(_draw(plot, study, prefix + plot.name, folder))
        advance()
    return [figure for figure in drawn if figure.svg or not figure.plot.optional]


def _draw(plot: Plot, study: Study, id: str, folder: str) -> Figure:
    numbers = plot.numbers(study) if plot.numbers else []
    selection = plot.draw.select(study)
    if (figure := plot.draw(study, selection)) is None:
        return Figure(id, plot, "", "", "", numbers)
    svg, file = drawing.svg(figure, plot.title), os.path.join(folder, f"{plot.name}.csv")
    return Figure(id, plot, svg, selection.as_csv(), file, numbers)


def _at(record: Any, *names: str) -> Any:
    """Returns the value at a path in nested mappings, or None."""
    for name in names:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


def _name(value: Any) -> str:
    """Returns the name of a part of the config, a string or a mapping with a ``name``; empty if there is none."""
    value = value.get("name") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else ""


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"

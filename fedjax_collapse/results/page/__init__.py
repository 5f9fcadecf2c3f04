"""The report: one HTML file with its style and figures inside, and CSV files with the numbers of the figures."""

import base64
import functools
import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from fedjax_collapse.config.cells import merged
from fedjax_collapse.config.folder import NUMBERS, REPORT
from fedjax_collapse.core import files
from fedjax_collapse.core.records import UserError
from fedjax_collapse.results.comparing import dead_notes, recommendations, verdict
from fedjax_collapse.results.metrics import Metric
from fedjax_collapse.results.plot import drawing
from fedjax_collapse.results.plot.contents import Plot, arms_note, figures_of
from fedjax_collapse.results.reading import layouts_of
from fedjax_collapse.results.study import Results, load, name_of
from fedjax_collapse.results.tables import Table, difference_tables, final_table, pivots
from fedjax_collapse.results.writing import csv_text
from fedjax_collapse.run.fingerprint import flatten

# sources too small, or too artificial, for a comparison with papers
DEMONSTRATIONS = ("digits", "glyphs", "synthetic", "experiments.configs.pfllib:digits")
_OF_ALL = ("data", "clients", "partition", "network")  # described once for all arms of a study
_SCRIPT = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
_MOST = 2_000_000  # values of a CSV file next to a report


class Figure(NamedTuple):
    """A plot on the page."""

    id: str
    plot: Plot
    svg: str  # empty if the study lacks the data for it
    csv: str  # its numbers; empty without a figure, or if there are too many
    file: str  # the path of their file in the study's folder
    table: Table | None

    @property
    def address(self) -> str:
        """The URL of the numbers, relative to the page; empty if there are none."""
        return quote(os.fsencode(self.file)) if self.csv else ""


def write_report(study: Results | Path | str, columns: Sequence[Metric] = (), absolute: bool = False) -> Path:
    """Writes ``report.html`` from results or from their saved folder, and returns its path.

    The numbers of the figures are written to ``report/<figure>.csv``, or ``report/<setting>/<figure>.csv``. Each file
    is replaced in one step, unless it has the same content.

    Args:
        study: the results, or their folder.
        columns: the metrics that tables show; by default all.
        absolute: whether spectra are of eigenvalues, instead of their shares of the variance.

    Raises:
        UserError: the folder has no results, or a file in it cannot be read or written.
    """
    study = study if isinstance(study, Results) else load(study)
    for name, text in render(study, columns, absolute).items():
        path = study.path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.shared(path) as file:
                file.write(text.encode(errors="backslashreplace"))  # for names that are not Unicode
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    return study.path / REPORT


def render(study: Results, columns: Sequence[Metric] = (), absolute: bool = False) -> dict[str, str]:
    """Returns the text of every file by its path in the study's folder; equal studies give equal text."""
    figures: dict[str | None, list[Figure]] = {setting: [] for setting in (None, *study.settings)}
    for setting, plot, part in figures_of(study, absolute):
        figure = _draw(plot, part, study, setting)
        figures[setting] += [figure] * bool(figure.svg or not plot.optional)
    note = "{}: starts have trained it with {}: rounding may differ between them."
    layouts = [note.format(arm, "; ".join(of)) for arm, of in layouts_of(study.starts).items() if len(of) > 1]
    page = _template().render(
        title=study.config.get("title") or f"Study {name_of(study.path.resolve())}",
        description=description(study),
        demonstration=", ".join(demonstrations(study)),
        notes=[*missing_results(study), *layouts, *(n for run in study.runs for n in run.notes)],
        pivots=pivots(study, columns),
        dead=dead_notes(study),
        arms_note=arms_note(study),
        overview=figures[None],
        sections=[_section(study.of_setting(name), columns, figures[name]) for name in study.settings],
        settings=_as_text(study.config),
        environment=_environment(study.starts),
        script=_SCRIPT,
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}",
    )
    drawn = {figure.file: figure.csv for of_setting in figures.values() for figure in of_setting if figure.csv}
    return drawn | {REPORT: drawing.defined_once(page)}


def demonstrations(study: Results) -> list[str]:
    """Returns the sources of the study's data if all of them are demonstrations."""
    names = [_name(study.of_setting(setting).config, "data.source") for setting in study.settings]
    return list(dict.fromkeys(names)) if all(name.startswith(DEMONSTRATIONS) for name in names) else []


def description(study: Results) -> str:
    """Describes the study in a sentence, and the arms that differ in data, clients, partition or network."""
    config, seeds = study.config, sorted({run.seed for run in study.runs})
    parts = [f"{_count(study.arms, 'arm')} ({', '.join(study.arms)}) ran"]
    with_seeds = f"with {_count(seeds, 'seed')} ({', '.join(map(str, seeds))})"
    if study.has_settings:
        return f"{parts[0]} in {_count(study.settings, 'setting')} ({', '.join(study.settings)}) {with_seeds}."
    parts += [f"for {study.rounds} round{'s' * (study.rounds != 1)}", with_seeds]
    if data := _name(config, "data.source"):
        parts.append(f"on the data set {data}")
    if isinstance(clients := config.get("clients"), int):
        parts.append(f"divided over {clients} client{'s' * (clients != 1)}")
    if name := _name(config, "partition"):
        alpha = flatten(config).get("partition.alpha")
        parts.append(f"by the partition {name}" + (f" (alpha {alpha})" if alpha is not None else ""))
    if network := _name(config, "network"):
        parts.append(f"with the network {network}")
    others = []
    for name, arm in study.arms_in.get(study.setting or "", {}).items():
        changes = arm.changes if name in study.arms and isinstance(arm.changes, Mapping) else {}
        merge = merged(config, changes)
        if own := [key for key in _OF_ALL if key in changes and merge[key] != config.get(key)]:
            values = _as_text({key: changes[key] for key in own})
            others.append(f"{name} ({', '.join(f'{path} {value}' for path, value in values)})")
    return " ".join(parts) + "." + (f" Other than that: {'; '.join(others)}." if others else "")


def missing_results(study: Results) -> list[str]:
    """Returns sentences about results that the config defines but the folder does not contain (yet)."""
    if study.has_settings:
        found = {
            s: missing_results(study.of_setting(s)) if s in study.settings else ["no results."] for s in study.arms_in
        }
        return [f"{setting}: {note}" for setting, notes in found.items() for note in notes]
    notes = [f"{run.arm}, seed {run.seed}: unfinished, {far}; not in the tables." for run, far in study.unfinished]
    notes += [f"Failed: {line}" for lines in study.failed.values() for line in lines]
    num_seeds = len(study.config.get("seeds", ()))
    for arm in dict.fromkeys(cell.arm for cell in study.cells):
        if (done := len(study.of_arm(arm))) < num_seeds:
            notes.append(f"{arm}: results of {done} of {num_seeds} seeds.")
    return notes


def _environment(starts: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns what each start recorded, with a heading; for later starts only what differs.

    The heading is empty if there is only one start.
    """
    recorded = [_as_text(start) for start in starts]
    if len(recorded) < 2:
        return [("", pairs) for pairs in recorded or [[]]]
    sections = [(f"Start 1 of {len(recorded)}", recorded[0])]
    for position, (before, pairs) in enumerate(itertools.pairwise(recorded), 2):
        heading = f"Start {position} of {len(recorded)}: what differs from the one before"
        differs = [pair for pair in pairs if pair not in before]
        sections.append((heading, differs + [(name, "-") for name, _ in before if name not in dict(pairs)]))
    return sections


def _as_text(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns dotted names and values of nested mappings, in their order."""
    pairs = flatten(record).items() if record else ()
    return [(name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for name, value in pairs]


@functools.cache
def _template() -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, **options)
    return environment.get_template("page.html.jinja")


def _section(part: Results, columns: Sequence[Metric], figures: Sequence[Figure]) -> dict[str, Any]:
    """Returns the results of a setting for the page; without a heading if the study has no settings."""
    colours = {arm: drawing.themed(colour) for arm, colour in drawing.colours_of(part).items()}
    return {
        "heading": part.setting,
        "figures": figures,
        "description": description(part),
        "finding": verdict(part),
        "recommendations": recommendations(part, columns=columns),
        "colours": dict.fromkeys((cell.arm for cell in part.cells), "#999999") | colours,
        "tables": [final_table(part, columns), *difference_tables(part, columns=columns)],
    }


def _draw(plot: Plot, part: Results, study: Results, setting: str | None) -> Figure:
    """Returns the figure of a part of a study: of all settings, if ``setting`` is None."""
    prefix = "all-" if setting is None else f"setting{study.settings.index(setting)}-" if setting else ""
    table, selection, id = plot.table and plot.table(part), plot.draw.select(part), prefix + plot.name
    if (figure := plot.draw(part, selection)) is None:
        return Figure(id, plot, "", "", "", table)
    csv = csv_text(selection, "%.5g") if selection.size <= _MOST else ""
    file = os.path.join(NUMBERS, os.fsdecode((setting or "").encode()), f"{plot.name}.csv")  # UTF-8 on the disk
    return Figure(id, plot, drawing.svg(figure, plot.title), csv, file, table)


def _name(config: Mapping[str, Any], key: str) -> str:
    """Returns the name of a part of the config, a string or a mapping with a ``name``; empty if there is none."""
    values = flatten(config)
    found = values.get(key, values.get(f"{key}.name"))
    return found if isinstance(found, str) else ""


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"

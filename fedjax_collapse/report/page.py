"""The report as a page: one HTML file with its style and figures inside, which refers to nothing outside."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedjax_collapse.records import UserError
from fedjax_collapse.report import drawing
from fedjax_collapse.report.contents import PLOTS, Plot
from fedjax_collapse.report.study import Study, read_study
from fedjax_collapse.report.table import accuracy_note, final_table

DEMONSTRATIONS = ("digits", "glyphs", "synthetic")  # sources too small, or too artificial, for a comparison with papers

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem;
  background: #fff; color: #1a1a1a;
  font: 1rem/1.5 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 0.6rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 0.8rem; padding-bottom: 0.25rem; border-bottom: 1px solid #d0d0d0; }
h3 { font-size: 1rem; margin: 0 0 0.3rem; }
p { max-width: 48rem; margin: 0.4rem 0; overflow-wrap: anywhere; }
.note { background: #fff6e0; border-left: 4px solid #E69F00; padding: 0.5rem 0.8rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); gap: 2.2rem 2.5rem; }
figure { margin: 0; min-width: 0; }
figure svg { display: block; width: 100%; max-width: 42rem; height: auto; }
figcaption { font-size: 0.875rem; line-height: 1.4; color: #444; margin-top: 0.4rem; max-width: 42rem; }
.wide { grid-column: 1 / -1; }
figure.wide svg { max-width: 56rem; }
.wide figcaption { max-width: 56rem; }
/* a shadow on the right, which what is scrolled there covers, says that there is more */
.scroll { overflow-x: auto; background: linear-gradient(#fff, #fff) right top / 1.2rem calc(100% + 1px) no-repeat local,
  linear-gradient(to left, #0004, #0000) right / 1.2rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 0.92rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 1.2rem 0.3rem 0; border-bottom: 1px solid #e4e4e4; }
thead th { border-bottom: 2px solid #888; }
.results th:not(:first-child), .results td { text-align: right; white-space: nowrap; padding: 0.3rem 0 0.3rem 1rem; }
.results th:first-child { min-width: 8.5rem; overflow-wrap: anywhere; }
.results thead th { white-space: normal; vertical-align: bottom; }
.swatch { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em; border-radius: 2px; }
.pairs { width: 100%; table-layout: fixed; font-size: 0.85rem; }
.pairs th { font-weight: normal; color: #444; width: 45%; }
.pairs th, .pairs td { overflow-wrap: anywhere; padding-right: 0.8rem; }
@media print { .figures { display: block; } figure { break-inside: avoid; margin-bottom: 1.5rem; } }
"""


def write_report(study: Path | str) -> Path:
    """The path of ``report.html``, written anew (in one step) from what is saved in the study's folder.

    Raises:
        UserError: the folder holds no study, or a file in it cannot be read or written.
    """
    page = render(read_study(study))
    path = Path(study) / "report.html"
    partial = path.with_name(f".report.html.{os.getpid()}")
    try:
        partial.write_text(page, encoding="utf-8", newline="\n")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def render(study: Study) -> str:
    """The whole page; the same study gives the same text."""
    title = f"Study {study.path.resolve().name}"
    data = _name(_at(study.config, "data", "source"))
    demonstration = (
        f'<p class="note">These results are a demonstration on small data ({escape(data)}), not comparable with the '
        "tables of the papers.</p>"
        if data and data.startswith(DEMONSTRATIONS)
        else ""
    )
    notes = "".join(f'<p class="note">{escape(note)}</p>\n' for note in missing_results(study))
    figures = "\n".join(_figure(plot, study) for plot in PLOTS)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p>{escape(description(study))}</p>
{demonstration}
{notes}
<h2>Results after the last round</h2>
{_results(study)}
<p>{escape(accuracy_note(study.summary))}</p>
<p>Mean ± standard deviation over seeds; effective rank and significant dimensions are those of the server model, R
compares a local model with it; the captions below define them.</p>
<h2>Figures</h2>
<div class="figures">
{figures}
</div>
<h2>Settings</h2>
{_pairs(flatten(study.config))}
<h2>Environment</h2>
{_pairs(flatten(study.provenance))}
</body>
</html>
"""


def description(study: Study) -> str:
    """One sentence that says what was run."""
    config = study.config
    seeds = sorted({run.seed for run in study.runs})
    parts = [
        f"{_count(study.arms, 'arm')} ({', '.join(study.arms)}) ran for {study.rounds} round{'s' * (study.rounds != 1)}"
    ]
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
    return " ".join(parts) + "."


def missing_results(study: Study) -> list[str]:
    """Sentences on what the config asks for and the folder does not hold (yet)."""
    notes = [
        f"{run.arm}, seed {run.seed}: ends after round {run.metrics[-1]['round']} of {study.rounds}."
        for run in study.runs
        if run.metrics[-1]["round"] < study.rounds
    ]
    seeds = study.config.get("seeds")
    asked = len(seeds) if isinstance(seeds, Sequence) else seeds if isinstance(seeds, int) else 0
    for arm in dict.fromkeys([*study.arms, *(study.config.get("arms") or ())]):
        if (done := len(study.of_arm(arm))) < asked:
            notes.append(f"{arm}: results of {done} of {asked} seeds.")
    return notes


def flatten(record: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Dotted names and values of nested mappings, in their order; lists and empty mappings are values."""
    if not isinstance(record, Mapping) or (prefix and not record):
        return [(prefix, record if isinstance(record, str) else json.dumps(record, ensure_ascii=False))]
    dot = f"{prefix}." if prefix else ""
    return [pair for name, value in record.items() for pair in flatten(value, f"{dot}{name}")]


def _results(study: Study) -> str:
    def swatch(arm: str) -> str:
        colour = drawing.arm_colour(study.arms, arm) if arm in study.arms else "#999999"
        return f'<span class="swatch" style="background:{colour}"></span>'

    return _table(final_table(study.summary), before=swatch)


def _table(lines: Sequence[Sequence[str]], before: Callable[[str], str] = lambda name: "") -> str:
    """A heading and rows that begin with a name, and HTML ``before`` it; scrolls where the page is too narrow."""
    head, *rows = lines
    heading = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = []
    for name, *cells in rows:
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body.append(f'<tr><th scope="row">{before(name)}{escape(name)}</th>{cells}</tr>')
    rows = "\n".join(body)
    table = f'<table class="results">\n<thead><tr>{heading}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _figure(plot: Plot, study: Study) -> str:
    figure = plot.draw(study)
    image = "<p>Not recorded in this study.</p>" if figure is None else drawing.svg(figure, plot.name, plot.title)
    numbers = plot.numbers(study) if plot.numbers else []
    wide = ' class="wide"' if plot.wide else ""
    parts = [
        f'<figure id="{plot.name}"{wide}>',
        f"<h3>{escape(plot.title)}</h3>",
        image,
        *([_table(numbers)] if numbers else []),
        f"<figcaption>{escape(plot.caption)}</figcaption>",
        "</figure>",
    ]
    return "\n".join(parts)


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "\n".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in pairs)
    return f'<table class="pairs"><tbody>\n{rows}\n</tbody></table>' if rows else "<p>Not recorded in this study.</p>"


def _at(record: Any, *names: str) -> Any:
    """The value at a path of nested mappings, or None."""
    for name in names:
        record = record.get(name) if isinstance(record, Mapping) else None
    return record


def _name(value: Any) -> str:
    """The name of a part of the config, which is a string or a mapping with a ``name``; empty if there is none."""
    value = value.get("name") if isinstance(value, Mapping) else value
    return value if isinstance(value, str) else ""


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'s' * (len(things) != 1)}"

"""Prints and draws a partition, without training.

    fedjax-collapse partition --config=CONFIG[:arg] [--config.key=value] [--setting=SETTING] [--arm=ARM] [--seed=SEED]
        [--out=FOLDER] [--pfllib=FOLDER]

It is the partition, with the same SHA-256, that ``launch.py`` makes from this config for one of its seeds, by default
the first. With --out the folder gets ``partition.json`` (what is printed), ``partition.npz`` (examples of each class at
each client), ``partition.svg`` (the figure of the report: a heat map, and sizes, numbers of classes and entropies) and
``indices.json`` (the examples of every client, a file for the partition ``from_file``). With --pfllib the folder gets
the examples of every client in PFLlib's format, ``train/<k>.npz`` and ``test/<k>.npz`` (own tests). Exit status: 0, or
2 after a one-line message about wrong input.
"""

from pathlib import Path
from typing import Any

import numpy as np

from experiments.parser import Parser, reports_errors
from experiments.study import parsing
from experiments.study.resolving import resolve_one
from experiments.waiting import wait
from fedjax_collapse.config import build
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.round_arrays import write_npz
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.data import Federation
from fedjax_collapse.data.ownership import rows_of
from fedjax_collapse.data.partition.heterogeneity import heterogeneity
from fedjax_collapse.data.sources.pfllib import write_part
from fedjax_collapse.results.plot.partition import draw_partition

_SHADES = " .:-=+*#%@"
_WIDEST = 100  # classes that are drawn in the terminal, one character each
_LONGEST = 100  # clients that are listed in the terminal


@reports_errors
def main(arguments: list[str]) -> int:
    """Runs the command; returns the exit status."""
    config, seed, out, pfllib = parse(arguments)
    with wait(f"reading and dividing {config['data']['source']}"):
        federation = build.federations(config, [seed])[seed]
    facts = describe(federation)
    lines = [_title(config, seed), *_table(federation, facts), *_summary(federation, facts)]
    if out and federation.common_validation is not None:
        raise UserError(
            f"--out={out}: its indices would be of the training examples that data.validation_fraction leaves; "
            "expected 0, or no --out"
        )
    if out:
        chosen = {key: dict(sorted(config[key].items())) for key in ("data", "partition")}
        write(out, {**chosen, "seed": seed, **facts}, federation)
        lines.append(f"wrote {out}")
    if pfllib:
        write_part(pfllib / "train", federation.train, federation.owned_rows())
        write_part(pfllib / "test", federation.test, rows_of(federation.own_tests()))
        lines.append(f"wrote {pfllib}")
    print("\n".join(lines))
    return 0


def parse(arguments: list[str]) -> tuple[dict[str, Any], int, Path | None, Path | None]:
    """Returns the config (of the chosen setting and arm), the seed, and the folders of --out and --pfllib.

    Raises:
        UserError: the command line is invalid.
    """
    options, own = parsing.parsed(arguments, command_line(), _own_options())
    return *resolve_one(options), own.out, own.pfllib


def command_line() -> Parser:
    """Returns the parser of all options, most of which the launcher's own parser reads."""
    return parsing.command_line(__doc__, [_own_options()], only=("arm", "setting", "seed"))


def _own_options():
    parser = Parser(add_help=False)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write numbers, figure and indices")
    parser.add_argument("--pfllib", type=Path, metavar="FOLDER", help="where to write all examples, in PFLlib's format")
    return parser


def describe(federation: Federation) -> dict[str, Any]:
    """Returns measures of heterogeneity, clients' domains and names, examples without one owner, and hashes."""
    skew = heterogeneity(federation.class_counts())
    rows, domains = federation.owned_rows(), federation.domains
    owned, sizes = np.unique(np.concatenate(rows)), list(map(len, rows))  # of examples, which may have several labels
    return {
        "examples": len(federation.train.labels),
        **{name: np.asarray(value).tolist() for name, value in skew._asdict().items()},
        "sizes": sizes,
        "domains": [[domains.names[i] for i in np.unique(domains.train[own])] for own in rows] if domains else [],
        "client_names": list(federation.client_names),
        "left_out": len(federation.train.labels) - len(owned),
        "repeated": sum(sizes) - len(owned),
        "sha256": federation.hashes(),
    }


def write(folder: Path, facts: dict[str, Any], federation: Federation) -> None:
    """Writes the four files; ``facts`` are what ``describe`` returns, and the seed."""
    arrays = federation.partition_arrays()
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "partition.json", facts)
    write_npz(folder / "partition.npz", arrays)
    write_json(folder / "indices.json", [rows.tolist() for rows in federation.owned_rows()])
    draw_partition(arrays, f"seed {facts['seed']}").savefig(folder / "partition.svg", metadata={"Date": None})


def _title(config, seed):
    fixed = config["partition"].get("seed")
    drawn = f"seed {seed}" if fixed is None else f"seed {seed}, the partition's own is {fixed}"
    return f"{config['data']['source']}: {config['clients']} clients by {config['partition']['name']}, {drawn}"


def _table(federation, facts):
    """Returns a line per client, of the first ones."""
    counts = federation.class_counts()
    drawn = federation.num_classes <= _WIDEST
    shown = f"  |examples of each class: {_SHADES.strip()} up to {counts.max()}|" if drawn else ""
    lines = [f"client    size  classes  entropy{shown}"]
    for client, row in enumerate(counts[:_LONGEST]):
        size, classes, entropy = (facts[name][client] for name in ("sizes", "classes", "entropy"))
        shades = "".join(_SHADES[-(-int(count) * (len(_SHADES) - 1) // int(counts.max()))] for count in row)
        line = f"{client:6d}{size:8d}{classes:9d}{entropy:9.3f}" + (f"  |{shades}|" if drawn else "")
        domains = facts["domains"] and [", ".join(facts["domains"][client])]
        lines.append("  ".join([line, *domains, *federation.client_names[client : client + 1]]))
    more = len(counts) - _LONGEST
    return [*lines, f"and {more} more clients; --out=FOLDER writes all"] if more > 0 else lines


def _summary(federation, facts):
    sizes, most = facts["sizes"], np.log(federation.num_classes)
    entropy, classes = np.mean(facts["entropy"]), np.mean(facts["classes"])
    yield f"sizes: {min(sizes)} to {max(sizes)}, median {np.median(sizes):g}, of {facts['examples']} training examples"
    yield f"classes per client: {classes:.1f} of {federation.num_classes} on average"
    yield f"entropy of a client's classes: {entropy:.3f} nats on average, at most {most:.3f}"
    yield (
        f"mutual information of client and class: {facts['mutual_information']:.3f} nats, 0 for the same classes "
        f"everywhere, at most {facts['class_entropy']:.3f}"
    )
    yield f"examples left out: {facts['left_out']}; given more than once: {facts['repeated']}"
    yield from (f"SHA-256 of the {name}: {value}" for name, value in facts["sha256"].items())

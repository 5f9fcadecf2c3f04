"""Claims the folder of a study for one config, which may be extended later, and for the processes of one start."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.study.processes.lock import one_at_a_time, only_process_in
from fedjax_collapse.config.folder import CONFIG, LOCK
from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.rows import write_json
from fedjax_collapse.results.reading import read_config
from fedjax_collapse.run.fingerprint import flatten

_OF_TABLES = ("means", "paper", "title")  # keys that may change in a folder
_OF_A_START = (LOCK, CONFIG)  # prefixes of files that a start may leave if it is killed at once


@contextlib.contextmanager
def claimed(workdir: Path, config: Mapping[str, Any], is_worker: bool = False) -> Iterator[None]:
    """Claims the folder for this config, and unless it is a worker's for this process; otherwise leaves it unchanged.

    The config may have arms, settings, seeds and values of a sweep that the folder's config lacks: these have runs of
    their own. It may have more rounds, which ``more_rounds.py`` checks.
    """
    content = json.loads(json.dumps(config))
    with contextlib.ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            check_free(workdir, content)
            if not is_worker:
                stack.enter_context(only_process_in(workdir))
            with one_at_a_time(workdir):
                write_json(workdir / CONFIG, content)
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{workdir}: cannot be used as --workdir: {error}; choose another one") from error
        yield


def config_in(workdir: Path) -> dict[str, Any]:
    """Returns the config of the study in a folder; empty if it holds none.

    Raises:
        UserError: the config cannot be read, or is invalid.
    """
    if not (workdir / CONFIG).exists():
        return {}
    try:
        return read_config(workdir)
    except UserError as error:
        raise UserError(f"{error}; choose another --workdir") from error


def check_free(workdir: Path, content: Mapping[str, Any]) -> None:
    """Raises UserError if the folder contains the study of another config, or something else."""
    if known := config_in(workdir):
        there, here = flatten(known), flatten(_without_additions(content, known))
        keys = sorted(key for key in there.keys() | here.keys() if there.get(key) != here.get(key))
        if keys:
            changes = "; ".join(f"{key} is {there.get(key)} there, {here.get(key)} here" for key in keys)
            raise UserError(f"{workdir} holds a study of another config: {changes}; choose another --workdir")
    elif any(not other.name.startswith(_OF_A_START) for other in workdir.iterdir()):
        raise UserError(f"{workdir} is not empty and holds no study; choose another --workdir")


def _without_additions(here, there):
    """Removes added runs, rounds and table options from ``here``, so that it can be compared with ``there``."""
    common = {name: value for name, value in here.items() if name not in _OF_TABLES}
    common |= {name: there[name] for name in _OF_TABLES if name in there}
    for name in ("arms", "settings"):
        if there[name]:  # otherwise the folders of its runs would change
            common[name] = {key: value for key, value in here[name].items() if key in there[name]}
    of_sweep = flatten(there["sweep"])
    common["sweep"] = {axis: _within(values, of_sweep.get(axis)) for axis, values in flatten(here["sweep"]).items()}
    common["settings"] = {
        name: _rounds_of(there["settings"].get(name), own) for name, own in common["settings"].items()
    }
    return _rounds_of(there, common) | {"seeds": _within(here["seeds"], there["seeds"])}


def _rounds_of(there, here):
    """Returns ``here`` with the rounds of ``there`` if these are fewer."""
    rounds = (there or {}).get("rounds"), here.get("rounds")
    return here if None in rounds else here | {"rounds": min(rounds)}


def _within(values, known):
    """Returns the known values if all of them are among the values, otherwise the values."""
    return known if known and all(value in values for value in known) else values

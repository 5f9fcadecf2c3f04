"""The parts of a data set, by the names of their folders or files."""

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import files_below

_Item = TypeVar("_Item")

PARTS = {  # names of folders and files, in any capitals
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("valid", "validation", "val", "dev", "eval"), "validation"),
}
VALIDATION = ("unused", "test", "train")  # uses of a validation part next to a test part
_NAME = "|".join(sorted(PARTS, key=len, reverse=True))
_SHARD = r"(?:[-_]\d+)?(?:-of-\d+)?(?:-[0-9a-f]{16})?"  # of Hugging Face, the last is a hash
_OF_A_PART = re.compile(rf"(?P<part>{_NAME}){_SHARD}\.\w+", re.IGNORECASE)
_OF_A_NAMED_PART = re.compile(rf"(?P<name>.+)-(?P<part>{_NAME}){_SHARD}\.\w+", re.IGNORECASE)  # femnist-train.arrow
_SHARD_OF = re.compile(r"-(\d+)-of-(\d+)(?:-[0-9a-f]{16})?\.\w+$")


def choose(
    root: str | Path, found: Mapping[str, Sequence[_Item]], names: Mapping[str, str], validation: str
) -> tuple[list[_Item], list[_Item]]:
    """Returns the examples or files to train on, and to test on, which may be none.

    A validation part is the test part, with a warning, if there is no other. Otherwise it is not used, with a warning,
    or ``validation`` makes it the test part or adds it to training.

    Args:
        root: for messages.
        found: the examples or files of train, which must exist, test and validation.
        names: the names of these parts in the data set.
    """
    train, test, held_out = (list(found.get(part, ())) for part in ("train", "test", "validation"))
    if held_out and not test:
        warnings.warn(f"{root}: there is no test part; the test part is {names['validation']}", stacklevel=2)
        return train, held_out
    if held_out and validation == "unused":
        warnings.warn(
            f"{root}: {names['validation']} is not used, as there are training and test parts; data.validation=test or "
            "train takes it as one, or adds it to training",
            stacklevel=2,
        )
    if held_out and validation == "test":
        return train, held_out
    return train + held_out * (validation == "train"), test


def find_files(path: str | Path, kind: str, validation: str) -> tuple[list[Path], list[Path]]:
    """Returns the files of a ``kind``, Parquet, Arrow or CSV, in the training and in the test part of a folder.

    The name of a part is the name of a file, with or without the number of a shard (``train-00000-of-00002``), its last
    word (``femnist-train.arrow``), or the name of a folder. A warning names files of no part. A single file is the
    whole training part.

    Raises:
        UserError: there is no training part, a shard is missing, or the folder has several data sets; the message lists
            its content.
    """
    if os.path.isfile(path):
        return [Path(path)], []
    expected = f"expected the folder of a data set saved as {kind}"
    if not os.path.isdir(path):
        raise UserError(f"{path}: there is no such folder; {expected}")
    suffix = f".{kind.lower()}"
    files = [file.relative_to(path) for file in files_below(Path(path)) if file.suffix.lower() == suffix]
    found: dict[str, dict[str, list[Path]]] = {}
    data_sets: dict[str, Path] = {}
    others = []
    for file in files:
        name, data_set = part_and_data_set(file)
        if not name:
            others.append(file)
            continue
        data_sets.setdefault(data_set, file)
        found.setdefault(PARTS[name.lower()], {}).setdefault(name, []).append(Path(path) / file)
    if len(data_sets) > 1:
        listed = ", ".join(str(file) for file in data_sets.values())
        raise UserError(f"{path}: several data sets are in it ({listed}); give the folder of one, or move the others")
    for names in found.values():
        if len(names) > 1:
            raise UserError(f"{path}: it has {' and '.join(sorted(names))}, of which one is expected; rename one")
        _check_shards(path, *names.values())
    if "train" not in found:
        listed = f" among {_shown(files)}" if files else " in it"
        raise UserError(f"{path}: no train*{suffix}{listed}; {expected}")
    if others:
        warnings.warn(f"{path}: {_shown(others)} not read, as no part is called so", stacklevel=2)
    names = {part: next(iter(own)) for part, own in found.items()}
    return choose(path, {part: own[names[part]] for part, own in found.items()}, names, validation)


def part_and_data_set(file: Path) -> tuple[str, str]:
    """Returns the part of a file, empty if none, and its data set, from its relative path.

    Hugging Face's ``map`` writes ``cache-*.arrow`` next to its inputs.
    """
    if file.name.startswith("cache-"):
        return "", ""
    folders = file.parts[:-1]
    above = folders[:-1] if folders and folders[-1].lower() in PARTS else folders
    if match := _OF_A_PART.fullmatch(file.name):
        return match["part"], "/".join(above)
    if match := _OF_A_NAMED_PART.fullmatch(file.name):
        return match["part"], "/".join((*above, match["name"]))
    for depth in reversed(range(len(folders))):
        if folders[depth].lower() in PARTS:
            return folders[depth], "/".join(folders[:depth])
    return "", ""


def _check_shards(path, files):
    """Raises UserError if files are numbered shards, but one is missing or occurs twice."""
    found = [(file, *map(int, match.groups())) for file in files if (match := _SHARD_OF.search(file.name))]
    for file, _, count in found:
        numbers = sorted(number for _, number, of in found if of == count)
        if numbers != list(range(count)) or len(numbers) != len(found):
            raise UserError(
                f"{path}: of the {count} shards of {file.relative_to(path)} there are {_shown(numbers)}"
                f"{'' if len(numbers) == len(found) else ', and others'}; expected each once, fetch it again"
            )


def _shown(items):
    return ", ".join(map(str, items[:5])) + (", ..." if len(items) > 5 else "")

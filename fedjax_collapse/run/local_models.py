"""The models that watched clients held after their training in a round, before the server's step: a file per round."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np

from fedjax_collapse.core import masks
from fedjax_collapse.core.records import UserError, Variables
from fedjax_collapse.core.round_arrays import read_npz, write_npz

FOLDER = "local"  # in a run's folder
SAVED = ("", "last", "all")  # of which evaluations: none, the last, all
_CLIENTS = "clients"  # [models] identities, beside an array [models, ...] for each path


def save_local_models(folder: Path, round: int, models: Mapping[int, Variables], kept: str) -> None:
    """Writes the models of these clients after a round; if ``kept`` is "last", removes the models of earlier rounds."""
    place = Path(folder) / FOLDER
    place.mkdir(exist_ok=True)
    arrays = [jax.device_get(masks.by_path(variables._asdict())) for variables in models.values()]
    stacked = {path: np.stack([each[path] for each in arrays]) for path in (arrays[0] if arrays else ())}
    write_npz(_file(place, round), {_CLIENTS: np.array(list(models), np.int32), **stacked})
    for path in place.glob("*.npz") if kept == "last" else ():
        if path != _file(place, round):
            path.unlink()


class LocalModels(Mapping[int, Mapping[int, Variables]]):
    """The local models of a run by round, and by client; a round is read when it is asked for."""

    def __init__(self, folder: Path, like: Variables):
        self._folder, self._like = Path(folder) / FOLDER, like

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(int(path.stem) for path in self._folder.glob("*.npz") if path.stem.isdecimal()))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, round: int) -> dict[int, Variables]:
        """Returns the models after this round by client; a client that was not in its cohort has none.

        Raises:
            UserError: the run has not saved them, or their file is damaged.
        """
        rounds = list(self)
        if round not in rounds:
            kept = f"of round {round}, expected one of {', '.join(map(str, rounds))}" if rounds else "were kept"
            hint = "they are kept with save_local='last' or 'all', and watch='all'"
            raise UserError(f"{self._folder}: no local models {kept}; {hint}")
        path = _file(self._folder, round)
        arrays = read_npz(path)
        clients = arrays.pop(_CLIENTS, np.zeros(0, int))
        expected = {name: np.shape(leaf) for name, leaf in masks.by_path(self._like._asdict()).items()}
        if len(clients) and {name: values.shape[1:] for name, values in arrays.items()} != expected:
            raise UserError(f"{path}: its arrays are not those of the run's network")
        return {
            int(client): masks.replace(self._like, {name: values[i] for name, values in arrays.items()})
            for i, client in enumerate(clients)
        }

    def __repr__(self) -> str:
        return f"LocalModels(rounds {', '.join(map(str, self)) or 'none'})"


def _file(place, round):
    return place / f"{round:06d}.npz"

"""Weights in safetensors, a format that other libraries read: a flat file of named arrays, without code.

    save_weights("fedavg.safetensors", load_run("runs/quickstart/fedavg/seed0").variables)

A name is the path of the array, such as ``params/Dense_0/kernel``; kernels are [..., in, out].
"""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import files, masks
from fedjax_collapse.core.records import UserError, Variables, installed


def save_weights(file: Path | str, variables: Variables) -> None:
    """Writes the parameters and running statistics of a network.

    Raises:
        UserError: safetensors is not installed, or the file cannot be written.
    """
    arrays = {name: np.asarray(leaf) for name, leaf in jax.device_get(masks.by_path(variables._asdict())).items()}
    content = _safetensors().save(arrays)
    try:
        with files.whole(Path(file)) as opened:
            opened.write(content)
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror or error})") from error


def load_weights(file: Path | str) -> Variables:
    """Returns the variables that ``save_weights`` wrote.

    Raises:
        UserError: safetensors is not installed, the file cannot be read, names are not of variables, or an array is not
            finite.
    """
    arrays = read_safetensors(file)
    check_finite(file, arrays)
    trees = {"params": {}, "batch_stats": {}}
    for name, array in arrays.items():
        collection, *path = name.split("/")
        if collection not in trees or not path:
            raise UserError(f"{file}: it holds {name}, expected names such as params/Dense_0/kernel")
        tree = trees[collection]
        for part in path[:-1]:
            tree = tree.setdefault(part, {})
        tree[path[-1]] = jnp.asarray(array)
    return Variables(**trees)


def read_safetensors(file: Path | str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file by name.

    Raises:
        UserError: safetensors is not installed, or the file cannot be read; as in ``check_names``.
    """
    try:
        files.reading(Path(file), follows_links=True).close()  # only regular files
        arrays = _safetensors().load_file(file)
    except UserError:
        raise
    except Exception as error:  # safetensors raises its own kinds of exceptions
        raise UserError(f"{file}: not a readable safetensors file ({error})") from error
    check_names(file, arrays)
    return arrays


def check_names(file: Path | str, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises UserError if the name of an array is the folder of other names, as ``a`` and ``a/b``."""
    for name in arrays:
        for folder in map(str, PurePosixPath(name).parents):
            if folder in arrays:
                raise UserError(
                    f"{file}: it holds {folder} and {name}, expected an array or others below it, not both; "
                    "leave out one of them"
                )


def check_finite(what: Path | str, arrays: Mapping[str, jax.Array | np.ndarray]) -> None:
    """Raises UserError if an array has NaN or infinity, also in the default precision."""
    for name, array in arrays.items():
        values, dtype = np.asarray(array), jax.dtypes.canonicalize_dtype(array.dtype)
        with np.errstate(over="ignore"):
            is_finite = not jnp.issubdtype(dtype, jnp.floating) or np.isfinite(values.astype(dtype, copy=False)).all()
        if not is_finite:
            raise UserError(f"{what}: {name} has NaN, infinity or values beyond {dtype}; expected finite weights")


def _safetensors():
    return installed("safetensors.numpy", "export", "safetensors is not installed")

"""Weights in safetensors, a format that other libraries read: a flat file of named arrays, without code.

    save_weights("fedavg.safetensors", load_run("runs/quickstart/fedavg/seed0").variables)

A name is the path of the array, as ``params/head/kernel``; kernels are [..., in, out].
"""

from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core import files, masks
from fedjax_collapse.core.records import UserError, Variables


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
        UserError: safetensors is not installed, the file cannot be read, or its names are not those of variables.
    """
    arrays = read_safetensors(file)
    trees = {"params": {}, "batch_stats": {}}
    for name, array in arrays.items():
        collection, *path = name.split("/")
        if collection not in trees or not path:
            raise UserError(f"{file}: it holds {name}, expected names such as params/head/kernel")
        tree = trees[collection]
        for part in path[:-1]:
            tree = tree.setdefault(part, {})
        tree[path[-1]] = jnp.asarray(array)
    return Variables(**trees)


def read_safetensors(file: Path | str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file by name.

    Raises:
        UserError: safetensors is not installed, or the file cannot be read.
    """
    try:
        files.reading(Path(file)).close()  # only regular files
        return _safetensors().load_file(file)
    except UserError:
        raise
    except Exception as error:  # safetensors raises its own kinds of exceptions
        raise UserError(f"{file}: not a readable safetensors file ({error})") from error


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError:
        raise UserError('safetensors is not installed: pip install "fedjax_collapse[export]"') from None
    return safetensors.numpy

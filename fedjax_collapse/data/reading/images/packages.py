"""Data files of an installed package, which is not imported."""

import importlib.util
import io
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.data.reading.listings import reading
from fedjax_collapse.data.reading.untrusted import unzipped


def find_in_package(package: str, file: str, extra: str) -> Path:
    """Returns the path of a package's file; ``extra`` is our extra that installs it.

    Raises:
        UserError: if the package is not installed, or has no such file.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f'{extra} is read from the package {package}: pip install "fedjax_collapse[{extra}]"')
    path = Path(spec.origin).parent / file
    if not path.is_file():
        raise UserError(f"{path}: there is no such file in {package}; install another version of it")
    return path


def read_pixels(path: Path, shape: tuple[int, ...], num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Reads images [rows, *shape] uint8 and labels [rows] from gzipped lines of pixels (0 to 255) and a label.

    Raises:
        UserError: if the file cannot be read, or has another format.
    """
    expected = f"expected lines of {np.prod(shape)} pixels of 0 to 255 and a label below {num_classes}"
    with reading(path, "cannot be read", f"{expected}, install it again"):
        lines = io.TextIOWrapper(io.BytesIO(unzipped(path)), encoding="ascii")
        values = np.loadtxt(lines, delimiter=",", ndmin=2)
    is_expected = values.shape[0] > 0 and values.shape[1] == np.prod(shape) + 1
    if not is_expected or not np.isin(values, np.arange(256)).all() or values[:, -1].max() >= num_classes:
        raise UserError(f"{path}: {values.shape[0]} lines of {values.shape[1]} numbers; {expected}, install it again")
    return values[:, :-1].astype(np.uint8).reshape(-1, *shape), values[:, -1].astype(int)

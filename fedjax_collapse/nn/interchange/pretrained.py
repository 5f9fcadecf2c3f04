"""Initial weights from a local file: of a vision transformer by the names of other libraries, or written by
``save_weights``.

    model = load_pretrained(Model(nn.ViT(100, size="B", patch=16), (224, 224, 3)), "vit_b16.safetensors")
    simulate(federation, model, FedAvg(...), rounds=10, key=key)

Files are safetensors, npz, or of ``torch.save``: a ViT of timm, Hugging Face, torchvision, vision_transformer or
big_vision, a ResNet of torchvision, a state dict of ``to_torch``, or what ``save_weights`` has written. They are
recognised by the names in them:

| names of a ViT | epsilon | gelu | positions of another grid |
|---|---|---|---|
| timm | 1e-6 | erf | cubic_antialias |
| Hugging Face, also those of its version 5 | 1e-12 | erf | cubic |
| torchvision | 1e-6 | erf | cubic_corners |
| JAX: vision_transformer and big_vision, also scanned | 1e-6 | tanh | corners |

Outputs are those of the other library only with its epsilon and GELU, which are options of the network, and for images
that are normalised as there: by 0.5 and 0.5 in most, by the constants of ImageNet for DeiT and torchvision. ResNets of
torchvision have ``stem_size=7``, ``stem_stride=2`` and a max-pool after it, which ours lack.
"""

import dataclasses
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np

from fedjax_collapse.core import files, masks
from fedjax_collapse.core.hashing import digest
from fedjax_collapse.core.records import Key, UserError, Variables
from fedjax_collapse.core.weight_files import check_finite, check_names, read_safetensors
from fedjax_collapse.nn.adapters import is_of_adapter
from fedjax_collapse.nn.interchange.torch_names import of_torchvision, of_twin, with_torch
from fedjax_collapse.nn.interchange.vit_names import NAMINGS, Naming
from fedjax_collapse.nn.model import Model
from fedjax_collapse.nn.networks.residual import ResidualNetwork
from fedjax_collapse.nn.networks.vit import ViT
from fedjax_collapse.schema.options import check_value, with_options

INTERPOLATIONS = ("cubic", "cubic_antialias", "cubic_corners", "linear", "corners")
Arrays = dict[str, np.ndarray]
_ZIP, _OLD_TORCH = b"PK\x03\x04", b"\x80\x02\x8a\n"  # first bytes, which no safetensors can have
_SHOWN = 4  # names in a message
_WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")  # of DataParallel and torch.compile
_BLOCK = re.compile(r"(?<=[._])\d+(?=[./])")  # the number of a block in a name


class Part(NamedTuple):
    """An array of a file."""

    paths: tuple[str, ...]  # our arrays, which it has one after the other
    shape: tuple[int, ...]


class Weights:
    """Arrays by path, equal to others with the same contents."""

    def __init__(self, leaves: Arrays) -> None:
        self.leaves, self.digest = leaves, digest(leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Weights({self.digest})"


def load_pretrained(
    model: Model, file: Path | str, interpolation: Annotated[str, INTERPOLATIONS] | None = None
) -> Model:
    """Returns the model with the weights of a file as its initial weights, which ``init`` returns.

    If the file has no classifier of the same shape, a warning says that the network's classifier stays random. Adapters
    that the file lacks keep their initial weights. ``reinitialize`` of the given model is applied afterwards.

    Args:
        model: its network is a ``ViT``, or the network whose weights ``save_weights`` or ``to_torch`` has written, or a
            ResNet as in torchvision.
        file: in one of the formats above.
        interpolation: how positions are adapted to another number of patches; by default as the file's library does.
            Cubic without and with a low-pass filter (PyTorch's bicubic, without and with antialias) or with corners
            kept in place (its align_corners), linear (PyTorch's bilinear), or linear with corners kept in place
            (SciPy's zoom of order 1).

    Raises:
        UserError: the file cannot be read, its names are not known, or arrays are missing, unexpected or of another
            shape; the first of them are named. An array is not finite, or has the name of a folder of others. The
            names are PyTorch's, which is not installed.
    """
    check_value("load_pretrained: model", model, Model)
    check_value("load_pretrained: file", file, Path | str)
    check_value("load_pretrained: interpolation", interpolation, Annotated[str, INTERPOLATIONS] | None)
    naming, arrays = _recognized(file, model, _read(Path(file)))
    if naming is not None:
        _check_network(file, naming, model.module)
    shapes = {
        path: leaf.shape
        for path, leaf in masks.by_path(model.variable_shapes()._asdict()).items()
        if path in arrays or not is_of_adapter(path)
    }
    parts, arrays = _with_head_if_same(file, naming, model, _parts(naming, model, shapes), arrays)
    if isinstance(model.module, ViT) and (naming is None or naming.names is None):
        _fit_positions(naming, model, parts, arrays, interpolation)
    _check(file, naming, parts, arrays)
    check_finite(file, {name: arrays[name] for name in parts})
    leaves = {}
    for name, part in parts.items():
        each = np.split(arrays[name], len(part.paths)) if len(part.paths) > 1 else [arrays[name]]
        for path, array in zip(part.paths, each, strict=True):
            leaves[path] = array if naming is None else naming.converted(array, shapes[path])
    return dataclasses.replace(
        model, reinitialize=with_options(_start_from, weights=Weights(leaves), then=model.reinitialize)
    )


def _start_from(model: Model, variables: Variables, key: Key, weights: Weights, then: Callable | None) -> Variables:
    old = masks.by_path(variables._asdict())
    for path, leaf in weights.leaves.items():
        if path not in old or old[path].shape != leaf.shape:
            raise UserError(f"load_pretrained: {path} does not fit: the network was changed after the file was read")
    leaves = {path: jnp.asarray(leaf, old[path].dtype) for path, leaf in weights.leaves.items()}
    variables = Variables(**masks.replace(variables._asdict(), leaves))
    return variables if then is None else then(model, variables, key)


def _read(file):
    """Returns the arrays of a file by name; no code in it is run."""
    try:
        with files.reading(file, follows_links=True) as opened:
            start = opened.read(4)
            opened.seek(0)
            if start not in (_ZIP, _OLD_TORCH):
                return read_safetensors(file)
            arrays = {}
            if start == _ZIP:
                with np.load(opened, allow_pickle=False) as found:
                    arrays = dict(found)  # all contents, whose checksums PyTorch does not compare
            if start == _OLD_TORCH or any(name.endswith("data.pkl") for name in arrays):
                opened.seek(0)
                arrays = with_torch("torch_files").read(opened)
    except UserError:
        raise
    except Exception as error:  # of several kinds if the file is damaged
        raise UserError(f"{file}: not a readable safetensors, npz or PyTorch file ({error})") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UserError(f"{file}: it holds {name}, expected npz, safetensors, or a state dict of torch.save")
    check_names(file, arrays)
    # NumPy has no bfloat16 and writes its two bytes as they are
    return {name: array.view(ml_dtypes.bfloat16) if array.dtype == "V2" else array for name, array in arrays.items()}


def _recognized(file, model, arrays) -> tuple[Naming | None, Arrays]:
    """Returns whose names they are, None for our own, and the arrays by these names, without counters of batches."""
    arrays = {_WRAPPERS.sub("", name): array for name, array in arrays.items()}
    arrays = {name: array for name, array in arrays.items() if not name.endswith("num_batches_tracked")}
    for naming in NAMINGS:
        for prefix in ("", *naming.prefixes):
            if prefix + naming.marker in arrays:
                own = (prefix, naming.top["head"])  # optimizer states, for example, are next to it
                kept = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(own)}
                return naming, {naming.canonical(name): array for name, array in _unstacked(kept)}
    if any(name.startswith("params/") for name in arrays):
        return None, arrays
    reason = ""
    if not isinstance(model.module, ViT) or "backbone.0.weight" in arrays:
        is_resnet = isinstance(model.module, ResidualNetwork) and model.module.norm != "none"
        try:
            return (of_torchvision if is_resnet and "conv1.weight" in arrays else of_twin)(model), arrays
        except UserError as error:
            reason = f" ({error})"
    markers = ", ".join(f"{naming.marker} ({naming.whose})" for naming in NAMINGS)
    found = f"it holds {_first(arrays) or 'nothing'}; expected the weights of a ViT, such as {markers}"
    raise UserError(f"{file}: {found}, or of save_weights{reason}")


def _unstacked(arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the arrays; arrays of big_vision's scanned blocks, [blocks, ...], one block at a time."""
    for name, array in arrays.items():
        if name.startswith(scanned := "Transformer/encoderblock/"):
            yield from ((f"{scanned[:-1]}_{i}/{name.removeprefix(scanned)}", each) for i, each in enumerate(array))
        else:
            yield name, array


def _check_network(file, naming, module):
    """Raises UserError for another network than a ViT; warns of options that are not the library's."""
    if naming.names is not None:
        if naming.whose == "torchvision" and module.stem_size == 7:
            reason = "with stem_stride=2 and a max-pool after the stem, which the network lacks"
            warnings.warn(f"{file}: outputs are those of torchvision only {reason}", stacklevel=3)
        return
    if not isinstance(module, ViT):
        kind = type(module).__name__
        raise UserError(f"{file}: it holds the weights of a ViT, by the names of {naming.whose}; the network is {kind}")
    differing = [name for name in ("epsilon", "gelu") if getattr(module, name) != getattr(naming, name)]
    if differing:
        has, usual = (", ".join(f"{name}={getattr(of, name)!r}" for name in differing) for of in (module, naming))
        message = f"{file}: outputs are those of {naming.whose} only with {usual}; the network has {has}"
        warnings.warn(message, stacklevel=3)


def _parts(naming, model, shapes) -> dict[str, Part]:
    """Returns the arrays of this network in a file, by name; with the classifier's if it is linear."""
    if naming is None:
        return {path: Part((path,), shape) for path, shape in shapes.items()}
    heads = model.module.dimensions()[2] if isinstance(model.module, ViT) else 1
    parts, linear = {}, _linear_head(naming, model)
    for path, shape in shapes.items():
        name = naming.name(path.removeprefix("params/"), linear)
        if name is not None:
            paths = (*parts[name].paths, path) if name in parts else (path,)
            paths = tuple(sorted(paths, key=naming.place))
            first, *others = naming.shape(path, shape, heads)
            parts[name] = Part(paths, (len(paths) * first, *others))
    return parts


def _linear_head(naming, model) -> str | None:
    """Returns the name of the classifier's layer if it is a weight and a bias on the features that a file has."""
    paths = _head(model)
    layer = paths[0].rpartition("/")[0] if paths else ""
    is_linear = set(paths) == {f"{layer}/kernel", f"{layer}/bias"}
    is_known = is_linear and (naming.has_projector or model.module.projector == "none")
    return layer.removeprefix("params/") if is_known else None


def _head(model):
    """Returns the paths of the classifier's arrays; empty for a fixed classifier."""
    try:
        mask = model.mask("head").params
    except UserError:
        return []
    return [f"params/{path}" for path, is_head in masks.by_path(mask).items() if is_head]


def _with_head_if_same(file, naming, model, parts, arrays) -> tuple[dict[str, Part], Arrays]:
    """Returns parts and arrays without arrays that features do not need, and without a classifier of another shape."""
    head = _head(model)
    of_head = {name: part.shape for name, part in parts.items() if part.paths[0] in head}
    reasons = [
        f"{name} is {_shown(arrays[name].shape) if name in arrays else 'missing'}, expected {_shown(shape)}"
        for name, shape in of_head.items()
        if name not in arrays or arrays[name].shape != shape
    ]
    if naming is not None and not of_head:
        reasons = ["the network's is not linear on the features"]
    if any(name.startswith("pre_logits/") for name in arrays):
        reasons = ["the file's follows pre_logits, a layer that the network lacks"]
    left_out = () if naming is None else naming.ignored
    if reasons:
        warnings.warn(f"{file}: the classifier keeps its initial weights: {', '.join(reasons)}", stacklevel=3)
        left_out = (*left_out, *of_head) if naming is None else (*left_out, naming.top["head"])
        parts = {name: part for name, part in parts.items() if name not in of_head}
    return parts, {name: array for name, array in arrays.items() if not name.startswith(left_out)}


def _fit_positions(naming, model, parts, arrays, interpolation):
    """Interpolates the positions of another grid of patches to the network's, if possible."""
    name = "params/positions" if naming is None else naming.top["positions"]
    *_, tokens, width = shape = parts[name].shape
    grid = tuple(extent // model.module.patch for extent in model.input_shape[:2])
    if name in arrays and arrays[name].shape[-1:] == (width,) and arrays[name].shape != shape:
        kind = interpolation or (naming.interpolation if naming else "cubic_antialias")
        fitted = fit_positions(arrays[name].reshape(-1, width), grid, tokens > math.prod(grid), kind)
        arrays[name] = arrays[name] if fitted is None else fitted.reshape(shape)


def fit_positions(positions: np.ndarray, grid: tuple[int, int], has_token: bool, kind: str) -> np.ndarray | None:
    """Returns positions [n, d] of a square grid, interpolated to another grid, or None if the grid is not square.

    If n is a square plus 1, the first position is the class token's. If n is a square, the class token has position 0,
    as in big_vision, which adds it after the positions.
    """
    side = math.isqrt(len(positions))
    has_row = side * side != len(positions)
    side = math.isqrt(len(positions) - has_row)
    if side * side + has_row != len(positions) or has_row > has_token:
        return None
    row, square = np.split(positions.astype(np.float64), [int(has_row)])
    rows, columns = (interpolation_matrix(extent, side, kind) for extent in grid)
    resized = np.einsum("ia,jb,abd->ijd", rows, columns, square.reshape(side, side, -1)).reshape(-1, row.shape[1])
    row = np.zeros((1, row.shape[1])) if has_token and not has_row else row
    return np.concatenate([row, resized])


def interpolation_matrix(new: int, old: int, kind: str) -> np.ndarray:
    """Returns the matrix [new, old] of an interpolation of ``INTERPOLATIONS``; of equal numbers it is the identity."""
    centres = np.linspace(0, old - 1, new) if kind.endswith("corners") else (np.arange(new) + 0.5) * old / new - 0.5
    sources, matrix = np.arange(old), np.zeros((new, old))
    if kind in ("linear", "corners"):
        return np.maximum(0, 1 - abs(np.clip(centres, 0, old - 1)[:, None] - sources))
    if kind == "cubic_antialias":
        weights = _cubic((sources - centres[:, None]) / max(old / new, 1), -0.5)
        return weights / weights.sum(axis=1, keepdims=True)
    for tap in range(-1, 3):  # outside, pixels repeat the edge
        at = np.floor(centres).astype(int) + tap
        np.add.at(matrix, (np.arange(new), np.clip(at, 0, old - 1)), _cubic(at - centres, -0.75))
    return matrix


def _cubic(distance, slope):
    """Returns the kernel of cubic convolution with this slope at distance 1."""
    x = abs(distance)
    near = (slope + 2) * x**3 - (slope + 3) * x**2 + 1
    far = slope * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _check(file, naming, parts, arrays):
    """Raises UserError with the names of all arrays that are missing, unexpected or of another shape."""
    problems = {
        "missing": [f"{name} {_shown(part.shape)}" for name, part in parts.items() if name not in arrays],
        "unexpected": [f"{name} {_shown(array.shape)}" for name, array in sorted(arrays.items()) if name not in parts],
        "wrong": [
            f"{name} {_shown(arrays[name].shape)}, expected {_shown(part.shape)}"
            for name, part in parts.items()
            if name in arrays and arrays[name].shape != part.shape
        ],
    }
    if any(problems.values()):
        found = "; ".join(f"{what} {_first(names)}" for what, names in problems.items() if names)
        whose = "save_weights" if naming is None else naming.whose
        raise UserError(f"{file}: not the weights of this network by the names of {whose}: {found}; change its options")


def _first(names: Iterable[str]) -> str:
    """Returns the first names, and how many there are if there are more."""
    names = list(names)
    merged = _merged(names)
    return ", ".join(merged[:_SHOWN]) + f", ... ({len(names)} in all)" * (len(merged) > _SHOWN)


def _merged(names: Iterable[str]) -> list[str]:
    """Returns the names, merged if they differ only in the number of the block, as ``blocks.0-11.norm1``."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for name in names:
        number = _BLOCK.search(name)
        ends = (name[: number.start()], name[number.end() :]) if number else (name, "")
        numbers.setdefault(ends, []).extend([int(number[0])] if number else [])
    return [f"{start}{_ranges(sorted(of_blocks))}{end}" for (start, end), of_blocks in numbers.items()]


def _ranges(numbers):
    is_range = len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if is_range else ",".join(map(str, numbers))


def _shown(shape):
    return str(list(shape))

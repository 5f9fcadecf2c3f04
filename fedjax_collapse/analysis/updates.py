"""Spectra of the updates of weight matrices, and overlaps between several clients' updates.

An update collapses if few directions carry its energy; clients disagree if these directions differ, and then their mean
has more of them than each update, but is shorter. Everything is in float64, from the smaller of the two Gram matrices
of an update, so singular values below 1e-8 of the largest are rounding errors.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_collapse.analysis.shapes import Values

_CUT = 1e-6  # of singular values, relative to the largest; smaller ones span no direction

Matrix = Float[np.ndarray, "inputs outputs"]
Factors = tuple[np.ndarray, np.ndarray]  # [inputs, rank] and [rank, outputs]


class Decomposition(NamedTuple):
    """Singular values of a matrix, descending, and its leading singular vectors in columns."""

    values: np.ndarray  # [the smaller side]
    inputs: np.ndarray  # [inputs, directions]
    outputs: np.ndarray  # [outputs, directions]


def as_matrices(params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns weights of two and more axes as matrices [inputs, outputs], by path; convolutions by their patches."""
    return {path: leaf.reshape(-1, leaf.shape[-1]) for path, leaf in params.items() if leaf.ndim > 1}


def decompose(matrix: Matrix, directions: int) -> Decomposition:
    """Returns the singular values and at most so many directions, fewer of a matrix of lower rank.

    NaN, without directions, if the matrix is not finite.
    """
    matrix = np.asarray(matrix, np.float64)
    is_wide = matrix.shape[0] < matrix.shape[1]
    rows = matrix.T if is_wide else matrix  # [longer, shorter]
    if not np.isfinite(rows).all():
        return Decomposition(np.full(rows.shape[1], np.nan), *(np.zeros((size, 0)) for size in matrix.shape))
    squares, vectors = np.linalg.eigh(rows.T @ rows)
    values = np.sqrt(np.maximum(squares[::-1], 0))
    count = min(directions, int(np.sum(values > _CUT * values[0])))
    short = vectors[:, ::-1][:, :count]
    long = rows @ short / values[:count]
    return Decomposition(values, *((short, long) if is_wide else (long, short)))


def energy(values: Values, directions: int) -> float:
    """Returns the fraction of the squared norm in the first directions, from 0 to 1; NaN for a zero matrix."""
    return _fraction(values, slice(directions))


def energy_beyond(values: Values, directions: int) -> float:
    """Returns 1 - ``energy``, precise for small fractions."""
    return _fraction(values, slice(directions, None))


def _fraction(values, part):
    squares = values**2
    total = squares.sum()
    return float(squares[part].sum() / total) if total > 0 else math.nan


def mean_rank(rank: Callable[[np.ndarray], float], of_layers: Sequence[np.ndarray]) -> float:
    """Returns the mean rank of the layers whose matrix is not 0, from their singular values; NaN if there is none."""
    return float(known_mean([rank(values) for values in of_layers if values[0] != 0]))


def known_mean(rows: np.ndarray | Sequence[float]) -> np.ndarray:
    """Returns the mean over the first axis without NaN; NaN if all values are NaN."""
    rows = np.asarray(rows, float)
    counts = np.sum(~np.isnan(rows), axis=0)
    return np.where(counts > 0, np.nansum(rows, axis=0) / np.maximum(counts, 1), np.nan)


def product_values(first: Float[np.ndarray, "inputs rank"], second: Float[np.ndarray, "rank outputs"]) -> Values:
    """Returns the singular values of a product of factors, descending, as many as its rank can be.

    From QR decompositions of the factors, so that no matrix [inputs, outputs] is formed if the rank is small; in
    float64, precise down to 1e-16 of the largest. NaN if a factor is not finite.
    """
    count = min(*first.shape, second.shape[1])
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        return np.full(count, np.nan)
    left, right = (np.linalg.qr(factor, mode="r") for factor in (first, second.T))
    return np.linalg.svd(left @ right.T, compute_uv=False)[:count]


def weighted_sum(products: Sequence[Factors], weights: Sequence[float] | np.ndarray) -> Factors:
    """Returns the factors of a sum of products, whose rank is the sum of theirs."""
    first = [weight * factor for weight, (factor, _) in zip(weights, products, strict=True)]
    return np.concatenate(first, axis=1), np.concatenate([factor for _, factor in products])


def cosines(
    first: Float[np.ndarray, "size directions"], second: Float[np.ndarray, "size others"]
) -> Float[np.ndarray, " smaller"]:
    """Returns the cosines of the principal angles between the spans of orthonormal columns, descending."""
    if not min(first.shape[1], second.shape[1]):
        return np.zeros(0)
    return np.minimum(np.linalg.svd(first.T @ second, compute_uv=False), 1)


def overlap(first: Float[np.ndarray, "size directions"], second: Float[np.ndarray, "size others"]) -> float:
    """Returns ``|U_1^T U_2|_F^2 / min(r_1, r_2)``: 1 if one span contains the other, 0 if they are orthogonal.

    NaN without directions.
    """
    smaller = min(first.shape[1], second.shape[1])
    return float(np.minimum(np.sum((first.T @ second) ** 2) / smaller, 1)) if smaller else math.nan  # 1 + rounding


class Aggregation(NamedTuple):
    """Difference of the server's change G from the clients' weighted mean update M."""

    error: float  # |M - G| / |M|
    cosine: float  # of M and G
    agreement: float  # |M|^2 / sum_k p_k |P_k|^2: 1 if all updates P_k are equal


def aggregation(
    updates: Sequence[Sequence[np.ndarray]],
    means: Sequence[np.ndarray],
    kept: Sequence[np.ndarray],
    weights: Sequence[float] | np.ndarray,
) -> Aggregation:
    """Returns the numbers of all layers together, NaN where undefined.

    Args:
        updates: matrices, by layer, then by client.
        means: M, by layer.
        kept: G, by layer, the change of the server's weights.
        weights: of the clients, of any sum.
    """
    shares = np.asarray(weights) / np.sum(weights)
    of_clients = sum(p * _inner(update, update) for layer in updates for p, update in zip(shares, layer, strict=True))
    of_mean, of_server, product, gap = np.sum(
        [
            (_inner(m, m), _inner(g, g), _inner(m, g), np.sum((m - g.astype(np.float64)) ** 2))
            for m, g in zip(means, kept, strict=True)
        ],
        axis=0,
    )
    return Aggregation(
        _ratio(math.sqrt(gap), math.sqrt(of_mean)),
        _ratio(product, math.sqrt(of_mean * of_server)),
        _ratio(of_mean, of_clients),
    )


def _inner(first, second):
    return np.vdot(first.astype(np.float64), second.astype(np.float64))


def _ratio(first, second):
    return float(first / second) if second > 0 else math.nan

"""Muon: steps along the orthogonalised momentum of each weight matrix, so that updates have full rank.

Jordan et al., "Muon" (2024); scaling of Liu et al. (arXiv 2502.16982). Weights of two and more axes are matrices
[inputs, outputs]: products as they are, convolution kernels with all axes but the last one as inputs, classifiers and
embeddings as well (Jordan leaves these and the first convolution out; optax and FedMuon's code do not), unless they are
``excluded``. These, biases, and the scales and shifts of normalizations are trained by AdamW with the same learning
rate.
"""

import functools
from collections.abc import Callable
from fnmatch import fnmatchcase

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from fedjax_collapse.core.records import PyTree, Scalar
from fedjax_collapse.schema.options import Decay, NonNegative, Positive

_COEFFICIENTS, _STEPS, _EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7


def muon(
    learning_rate: Scalar,
    beta: Decay = 0.95,
    weight_decay: NonNegative = 0.0,
    consistent_rms: Positive | None = None,
    excluded: str = "",
) -> optax.GradientTransformation:
    """Returns ``optax.contrib.muon`` for all weights of two and more axes.

    Args:
        learning_rate: about 0.02 by default; about AdamW's with ``consistent_rms``.
        beta: of the momentum.
        weight_decay: times the learning rate, it is subtracted from the matrices; ``LocalTraining.weight_decay`` is
            added to the gradient, whose size does not matter here.
        consistent_rms: the root mean square of a step's entries, such as 0.2, instead of the factor
            ``sqrt(max(1, outputs / inputs))``.
        excluded: patterns of paths of weights that AdamW trains, separated by commas, such as ``Dense_0/*``, the
            classifier of ``small_cnn``.
    """
    return optax.contrib.muon(
        learning_rate,
        beta=beta,
        weight_decay=weight_decay,
        consistent_rms=consistent_rms,
        muon_weight_dimension_numbers=functools.partial(_axes_of_matrices, excluded.split(",")),
    )


def _axes_of_matrices(excluded, params):
    def axes(path, leaf):
        last, name = leaf.ndim - 1, jax.tree_util.keystr(path, simple=True, separator="/")
        is_matrix = last > 0 and not any(fnmatchcase(name, pattern) for pattern in excluded)
        return optax.contrib.MuonDimensionNumbers(tuple(range(last)), last) if is_matrix else None

    return jax.tree.map_with_path(axes, params)


def orthogonalize(matrix: Float[Array, "inputs outputs"], exact: bool = False) -> Float[Array, "inputs outputs"]:
    """Returns ``U V^T`` of the decomposition ``U S V^T``; a matrix that is 0 remains so.

    Unless ``exact``, by five steps of Newton-Schulz, which leave singular values between about 0.7 and 1.2.
    """
    norm = jnp.linalg.norm(matrix)
    if exact:
        left, _, right = jnp.linalg.svd(matrix, full_matrices=False)
        return jnp.where(norm > 0, jnp.matmul(left, right, precision="highest"), 0)
    is_tall = matrix.shape[0] > matrix.shape[1]
    x, (a, b, c) = (matrix.T if is_tall else matrix) / (norm + _EPS), _COEFFICIENTS
    for _ in range(_STEPS):
        gram = jnp.matmul(x, x.T, precision="highest")
        x = a * x + jnp.matmul(b * gram + c * jnp.matmul(gram, gram, precision="highest"), x, precision="highest")
    return x.T if is_tall else x


def by_matrices(
    of_matrix: Callable[[jax.Array], jax.Array], of_other: Callable[[jax.Array], jax.Array], params: PyTree
) -> PyTree:
    """Returns what the functions return for each weight, as a matrix [inputs, outputs], and for each other leaf."""

    def of(leaf):
        return of_matrix(leaf.reshape(-1, leaf.shape[-1])).reshape(leaf.shape) if leaf.ndim > 1 else of_other(leaf)

    return jax.tree.map(of, params)

"""Why label imbalance collapses features: deep linear networks under gradient flow and gradient descent.

Shi et al., "Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous Federated Learning" (ICLR 2023;
TPAMI 2023), theorem 1. A network ``W_{L+1} W_L ... W_1 x`` is trained by gradient flow on the cross-entropy **summed**
over N examples; its features are ``z = P x`` with ``P = W_L ... W_1``, so ``Cov(z) = P Cov(x) P^T`` (eq. 6). With

    G = (1/N) sum_n (e_y(n) - softmax_n) x_n^T

the weights follow ``dW_j/dt = N (W_{L+1} ... W_{j+1})^T G (W_{j-1} ... W_1)^T``. If the layers of P start balanced,
``W_{i+1}^T W_{i+1} = W_i W_i^T`` (assumption 1), they remain balanced, and the k-th singular value of P, with singular
vectors u_k and v_k, follows exactly

    d sigma_k / dt = N L sigma_k^(2 - 2/L) u_k^T W_{L+1}^T G v_k            (``balanced_rates``)

If u_k is also, up to sign, the k-th right singular vector of W_{L+1} (assumption 2), this is the theorem (eq. 4),

    d sigma_k / dt = N L sigma_k^(2 - 2/L) sqrt(sigma_k^(2/L) + M_k) u_{L+1,k}^T G v_k      (``theorem_rates``)

with u_{L+1,k} the left singular vectors of W_{L+1}, and ``M_k = sigma_{L+1,k}(0)^2 - sigma_k(0)^(2/L)``, which the
paper calls one constant M; it depends on k unless W_{L+1} is balanced too. Alignment is not conserved: the theorem
holds at the start, and less and less later. A random small start is nearly balanced, W_{L+1} included, and becomes
aligned as it grows (``random_network``, ``descend``). The paper's G has class means instead of examples,
``sum_c (N_c/N) (e_c - mean softmax_c) (mean x_c)^T``, which is the same only if all inputs of a class are equal. With
few classes its rank is low, so few singular values grow, which is the collapse.

All arrays are float64; x is [examples, inputs].
"""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from fedjax_collapse.analysis.shapes import Labels

Inputs = Float[np.ndarray, "examples inputs"]
Matrix = Float[np.ndarray, "classes inputs"]
Rates = Float[np.ndarray, " values"]


class LinearNetwork(NamedTuple):
    """Weights, or their rates of change."""

    layers: tuple[np.ndarray, ...]  # W_1 [width, inputs], ..., W_L [width, width]
    head: np.ndarray  # W_{L+1} [classes, width]

    @property
    def product(self) -> np.ndarray:
        """P = W_L ... W_1, [width, inputs]."""
        return _product(self.layers)

    @property
    def depth(self) -> int:
        """L."""
        return len(self.layers)


def balanced_network(
    shape: tuple[int, int, int],
    values: Float[np.ndarray, " width"],
    head_values: Float[np.ndarray, " smaller"],
    depth: int,
    rng: np.random.Generator,
    aligned: bool = True,
) -> LinearNetwork:
    """Returns a random balanced network, optionally aligned, as the theorem assumes at the start.

    ``shape``: inputs, width and classes, with at least as many inputs as width. ``values``: singular values of P, and
    ``head_values`` those of W_{L+1}, both descending.
    """
    inputs, width, classes = shape
    bases = [_orthonormal(rng, inputs, width), *(_orthonormal(rng, width, width) for _ in range(depth))]
    root = np.diag(values ** (1 / depth))
    layers = tuple(after @ root @ before.T for before, after in itertools.pairwise(bases))
    right = bases[-1] if aligned else _orthonormal(rng, width, width)
    size = min(classes, width)
    left = _orthonormal(rng, classes, size)
    return LinearNetwork(layers, left @ np.diag(head_values) @ right[:, :size].T)


def random_network(shape: tuple[int, int, int], scale: float, depth: int, rng: np.random.Generator) -> LinearNetwork:
    """Returns a network of independent normal weights with standard deviation ``scale / sqrt(inputs of the layer)``.

    ``shape``: inputs, width and classes. It is neither balanced nor aligned.
    """
    inputs, width, classes = shape
    sizes = itertools.pairwise((inputs, *depth * (width,), classes))
    *layers, head = (scale / np.sqrt(before) * rng.normal(size=(after, before)) for before, after in sizes)
    return LinearNetwork(tuple(layers), head)


def loss(network: LinearNetwork, inputs: Inputs, labels: Labels) -> float:
    """Returns the cross-entropy in nats, summed over the examples."""
    logits = inputs @ (network.head @ network.product).T
    largest = logits.max(axis=1)
    sums = np.log(np.sum(np.exp(logits - largest[:, None]), axis=1)) + largest
    return float(np.sum(sums - logits[np.arange(len(labels)), labels]))


def gradient_matrix(network: LinearNetwork, inputs: Inputs, labels: Labels) -> Matrix:
    """Returns the exact G: minus the gradient of the mean cross-entropy with respect to the product of all weights."""
    return _residuals(network, inputs, labels).T @ inputs / len(labels)


def class_mean_gradient_matrix(network: LinearNetwork, inputs: Inputs, labels: Labels) -> Matrix:
    """Returns the paper's G, from the means of each class with examples; its rank is at most their number."""
    residuals, found = _residuals(network, inputs, labels), np.zeros((len(network.head), inputs.shape[1]))
    for c in np.unique(labels):
        of_class = labels == c
        found += of_class.mean() * np.outer(residuals[of_class].mean(axis=0), inputs[of_class].mean(axis=0))
    return found


def flow(network: LinearNetwork, inputs: Inputs, labels: Labels) -> LinearNetwork:
    """Returns the rates of change of all weights."""
    gradient = len(labels) * gradient_matrix(network, inputs, labels)
    weights = (*network.layers, network.head)
    rates = [
        _product((np.eye(weights[j].shape[0]), *weights[j + 1 :])).T
        @ gradient
        @ _product((np.eye(inputs.shape[1]), *weights[:j])).T
        for j in range(len(weights))
    ]
    return LinearNetwork(tuple(rates[:-1]), rates[-1])


def integrate(
    network: LinearNetwork, inputs: Inputs, labels: Labels, time: float, steps: int
) -> Iterator[LinearNetwork]:
    """Returns the network at the start and after each of ``steps`` Runge-Kutta steps (fourth order) up to ``time``."""
    size = time / steps
    yield network
    for _ in range(steps):
        first = flow(network, inputs, labels)
        second = flow(_moved(network, size / 2, first), inputs, labels)
        third = flow(_moved(network, size / 2, second), inputs, labels)
        fourth = flow(_moved(network, size, third), inputs, labels)
        for part, rate in ((1, first), (2, second), (2, third), (1, fourth)):
            network = _moved(network, part * size / 6, rate)
        yield network


def descend(
    network: LinearNetwork, inputs: Inputs, labels: Labels, learning_rate: float, steps: int
) -> Iterator[LinearNetwork]:
    """Returns the network at the start and after each of ``steps`` steps of gradient descent on the **mean** loss."""
    yield network
    for _ in range(steps):
        network = _moved(network, learning_rate / len(labels), flow(network, inputs, labels))
        yield network


def singular_value_rates(network: LinearNetwork, inputs: Inputs, labels: Labels) -> Rates:
    """Returns ``u_k^T (dP/dt) v_k`` for each singular value of P, descending, for any network."""
    rates, layers = flow(network, inputs, labels).layers, network.layers
    changes = (_product((*layers[:j], rates[j], *layers[j + 1 :])) for j in range(len(layers)))
    left, _, right = np.linalg.svd(network.product, full_matrices=False)
    return np.einsum("ik,ij,kj->k", left, sum(changes), right)


def balanced_rates(network: LinearNetwork, gradient: Matrix, num_examples: int) -> Rates:
    """Returns the same if P is balanced; ``gradient`` is a G."""
    left, values, right = np.linalg.svd(network.product, full_matrices=False)
    scale = num_examples * network.depth * values ** (2 - 2 / network.depth)
    return scale * np.einsum("ik,ij,kj->k", left, network.head.T @ gradient, right)


def theorem_rates(network: LinearNetwork, gradient: Matrix, num_examples: int, offsets: Rates) -> Rates:
    """Returns the same by theorem 1, if the network is also aligned; ``offsets``: M, ``head_offsets`` at the start.

    0 for singular values beyond those of W_{L+1}.
    """
    left, values, right = np.linalg.svd(network.product, full_matrices=False)
    head_left, _, head_right = np.linalg.svd(network.head, full_matrices=False)
    size = len(head_right)
    signs = np.sign(np.einsum("ik,ki->k", left[:, :size], head_right))
    along = np.zeros(len(values))
    along[:size] = signs * np.einsum("ik,ij,kj->k", head_left, gradient, right[:size])
    of_head = np.sqrt(np.maximum(values ** (2 / network.depth) + offsets, 0))
    return num_examples * network.depth * values ** (2 - 2 / network.depth) * of_head * along


def head_offsets(network: LinearNetwork) -> Rates:
    """Returns M_k, ``sigma_{L+1,k}^2 - sigma_k^(2/L)``, with 0 for singular values that W_{L+1} does not have."""
    values = np.linalg.svd(network.product, compute_uv=False)
    of_head = np.linalg.svd(network.head, compute_uv=False)
    squares = np.zeros(len(values))
    squares[: len(of_head)] = of_head**2
    return squares - values ** (2 / network.depth)


def imbalance(network: LinearNetwork) -> float:
    """Returns the deviation from assumption 1: the largest entry of any ``W_{i+1}^T W_{i+1} - W_i W_i^T``."""
    layers = network.layers
    gaps = (after.T @ after - before @ before.T for before, after in itertools.pairwise(layers))
    return max((float(np.abs(gap).max()) for gap in gaps), default=0.0)


def alignment(network: LinearNetwork) -> Rates:
    """Returns ``|<u_k, k-th right singular vector of W_{L+1}>|``, 1 under assumption 2, for all k of W_{L+1}."""
    left = np.linalg.svd(network.product, full_matrices=False)[0]
    right = np.linalg.svd(network.head, full_matrices=False)[2]
    return np.abs(np.einsum("ik,ki->k", left[:, : len(right)], right))


def _residuals(network, inputs, labels):
    """``e_y - softmax``, [examples, classes]."""
    logits = inputs @ (network.head @ network.product).T
    return np.eye(len(network.head))[labels] - softmax(logits, axis=1)


def _moved(network, time, rates):
    return jax.tree.map(lambda weight, rate: weight + time * rate, network, rates)


def _product(matrices):
    """Returns the last matrix times ... times the first."""
    return functools.reduce(lambda product, matrix: matrix @ product, matrices)


def _orthonormal(rng, rows, columns):
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]

"""Terms that spread the classifier's outputs over the classes, and representations over the sphere.

* Son et al., "FedUV: Uniformity and Variance for Heterogeneous Federated Learning" (CVPR 2024). Where the paper is
  silent, details follow the released code and are options.
* Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere"
  (ICML 2020).
* Liao et al., "Rethinking the Representation in Federated Unsupervised Learning with Non-IID Data" (CVPR 2024).
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from fedjax_collapse.core.records import Scalar, check_choice
from fedjax_collapse.losses.norms import centre, negligible, root, squared_distances
from fedjax_collapse.losses.shapes import Features, Logits, Mask, Value

DDOFS = (0, 1)
HINGES = ("plain", "squared", "none")
KERNEL_SCALES = (1, 2)
MEDIANS = ("lower", "average")


def classifier_variance(logits: Logits, mask: Mask, ddof: int = 1, hinge: str = "plain") -> Value:
    """Returns FedUV's variance term: the shortfall of class probabilities' deviations from one-hot rows'.

    With ``s_j`` the standard deviation of ``softmax(logits)[:, j]`` over the N true rows and ``c`` the same of the
    D x D identity (``1/sqrt(D)`` for ``ddof=1``, ``sqrt(D-1)/D`` for ``ddof=0``), the mean over the D classes of

    * ``plain``: ``max(0, c - s_j)``;
    * ``squared``: ``max(0, c - s_j)^2``;
    * ``none``: ``c - s_j``, negative where s_j exceeds c.

    Divisors are ``N - ddof`` and ``D - ddof``. The released code has ``ddof=1``, for which even a balanced one-hot
    batch has a small loss; for ``ddof=0`` it has none. 0 if N < 2. The gradient is 0 at s_j = 0.

    Raises:
        UserError: if ``ddof`` or ``hinge`` is unknown.
    """
    check_choice("feduv ddof", ddof, DDOFS)
    check_choice("feduv hinge", hinge, HINGES)
    classes = logits.shape[1]
    centred, count = centre(jax.nn.softmax(jnp.where(mask[:, None], logits, 0)), mask)
    deviations = root(jnp.sum(centred**2, axis=0) / jnp.maximum(count - ddof, 1))
    shortfalls = ((1 - 1 / classes) / max(classes - ddof, 1)) ** 0.5 - deviations
    if hinge != "none":
        shortfalls = jax.nn.relu(shortfalls)
    if hinge == "squared":
        shortfalls = shortfalls**2
    return jnp.where(count < 2, 0, jnp.mean(shortfalls))


def hyperspherical_uniformity(
    features: Features, mask: Mask, kernel_scale: int = 2, median: str = "lower", attached: bool = True
) -> Value:
    """Returns FedUV's uniformity term: mean Gaussian similarity of the pairs i < j of true rows, between 0 and 1.

    ``mean_{i<j} exp(-||z_i - z_j||^2 / (kernel_scale * sigma))``, with sigma the median of the non-zero squared
    distances. Despite the name, rows are not normalised: sigma makes the value independent of the features' scale and
    position. For equal rows the value is 1 and the gradient 0 (NaN in the released code). With fewer than two true
    rows the value is 0.

    Args:
        kernel_scale: 2 in the paper, 1 in the released code.
        median: of an even number of distances, the ``lower`` of the middle two (released code) or their ``average``.
        attached: whether the gradient flows through sigma (as in the code), divided evenly among the distances that are
            equal to it. It is then orthogonal to a rescaling of the features; otherwise it also inflates them.

    Raises:
        UserError: if ``kernel_scale`` or ``median`` is unknown.
    """
    check_choice("feduv kernel_scale", kernel_scale, KERNEL_SCALES)
    check_choice("feduv median", median, MEDIANS)
    centred, _ = centre(features, mask)  # does not change distances, and reduces rounding in their gradient
    squares = squared_distances(centred, centred)
    pairs = jnp.triu(mask[:, None] & mask[None], 1)
    sigma = _median_of_nonzero(squares, pairs, median)
    sigma = sigma if attached else jax.lax.stop_gradient(sigma)
    kernel = jnp.exp(-squares / (kernel_scale * sigma))
    return jnp.sum(jnp.where(pairs, kernel, 0)) / jnp.maximum(jnp.sum(pairs), 1)


def pair_uniformity(units: Features, mask: Mask, exponent: Scalar = 2.0) -> Value:
    """Returns ``log mean_{i<j} exp(-t ||z_i - z_j||^2)`` over pairs of true rows, t the ``exponent``; 0 if N < 2.

    Rows should have norm 1; then it is the loss of Wang & Isola, of which ``analysis.geometry`` has the measure.
    """
    units = jnp.where(mask[:, None], units, 0)
    pairs = jnp.triu(mask[:, None] & mask[None], 1)
    kernel = jnp.where(pairs, jnp.exp(-exponent * squared_distances(units, units)), 0)
    count = jnp.sum(pairs)
    return jnp.where(count > 0, jnp.log(jnp.where(count > 0, jnp.sum(kernel), 1) / jnp.maximum(count, 1)), 0)


def tangent_distance(
    rows: Features,
    points: Features,
    tangents: Float[Array, "tangents features"],
    directions: Float[Array, "directions features"],
    mask: Mask,
) -> Value:
    """FedU2's uniformity: the distance of the true rows from as many random points, in the planes at ``tangents``.

    Rows and points y are mapped to ``log_t(y) = v arccos(<t, y>) / ||v||`` with ``v = y - <t, y> t``, and projected on
    each direction, which is not scaled. The result is the mean over tangents, directions and ranks of the squared
    difference of the sorted projections; 0 without true rows. Points and tangents have norm 1, rows should have it.
    Cosines are clipped at 1e-4 from -1 and 1, where there is no gradient.
    """

    def projected(rows):  # [batch, tangents, directions], in order of the batch
        rows = jnp.where(mask[:, None], rows, 0)
        cosine = jnp.matmul(rows, tangents.T, precision="highest")
        angle = jnp.arccos(jnp.clip(cosine, -1 + 1e-4, 1 - 1e-4))
        length = jnp.sqrt(jnp.maximum(jnp.sum(rows**2, axis=1, keepdims=True) - cosine**2, 1e-8))
        on_directions, of_tangents = (jnp.matmul(x, directions.T, precision="highest") for x in (rows, tangents))
        found = (on_directions[:, None] - cosine[..., None] * of_tangents[None]) * (angle / length)[..., None]
        return jnp.sort(jnp.where(mask[:, None, None], found, jnp.inf), axis=0)

    is_true = (jnp.arange(len(mask)) < jnp.sum(mask))[:, None, None]  # padding is last
    first, second = (jnp.where(is_true, projected(of), 0) for of in (rows, points))
    return jnp.sum((first - second) ** 2) / (jnp.maximum(jnp.sum(mask), 1) * len(tangents) * len(directions))


def _median_of_nonzero(squares, pairs, median):
    """Returns the median of the non-zero ``squares`` over ``pairs``, all above the diagonal; 1 if there are none."""
    batch = squares.shape[0]
    if batch < 2:
        return jnp.ones((), squares.dtype)
    counted = pairs & (squares > negligible(squares))
    count = jnp.sum(counted)
    rows, columns = map(jnp.asarray, np.triu_indices(batch, 1))
    values = jax.lax.stop_gradient(jnp.where(counted, squares, jnp.inf))[rows, columns]
    ordered, order = jax.lax.sort((values, jnp.arange(len(values))), num_keys=1)

    def ranked(rank):  # rank 0 is the smallest; all distances that are equal to it share its gradient
        distances, tied = squares[rows[order], columns[order]], ordered == ordered[rank]
        shifts = jnp.where(tied, distances - jax.lax.stop_gradient(distances), 0)
        return ordered[rank] + jnp.sum(shifts) / jnp.sum(tied)

    lower = ranked(jnp.maximum(count - 1, 0) // 2)
    middle = lower if median == "lower" else (lower + ranked(count // 2)) / 2
    return jnp.where(count > 0, middle, 1)

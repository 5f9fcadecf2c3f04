"""Distances of the batch's features from a standard normal distribution, without labels: SIGReg, Weak-SIGReg, VISReg.

* Balestriero & LeCun, "LeJEPA" (arXiv 2511.08544): SIGReg.
* The repository kreasof-ai/sigreg: Weak-SIGReg. No paper was accessible to us.
* Wu, Balestriero & Levine, "VISReg" (arXiv 2606.02572).

Features have to reach both sides of 0: behind a ReLU none of the three can be near its minimum. All of them have the
gradient of the mean, so that features are moved to 0 as well.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from fedjax_collapse.core.records import check_choice
from fedjax_collapse.losses.norms import centre, root, smaller_gram, squared_gram_norm
from fedjax_collapse.losses.shapes import Features, Mask, Value

POINTS = {"code": (3 / 16, 16), "paper": (5 / 8, 8)}  # distance of two frequencies, and how many there are above 0


def characteristic_distance(
    features: Features, mask: Mask, directions: Float[Array, "features directions"], points: str = "code"
) -> Value:
    """SIGReg: the squared distance of the features' characteristic function from the standard normal's, times N.

    With ``p`` the N true rows, projected on a direction, and ``phi(t) = exp(-t^2 / 2)``, the mean over directions of

        ``N integral phi(t) ((mean cos(t p) - phi(t))^2 + (mean sin(t p))^2) dt``

    by trapezoids, at 17 points from -5 to 5 (``paper``), or of which 17 are from 0 to 3 (``code``, the released one).
    Columns of ``directions`` are scaled to norm 1. The features are not centred: at 0, the gradient is exactly 0, and
    far from the scale of a normal distribution it vanishes. 0 if N < 2.

    Raises:
        UserError: if ``points`` is unknown.
    """
    check_choice("sigreg points", points, POINTS)
    step, last = POINTS[points]
    features, count = jnp.where(mask[:, None], features, 0), jnp.sum(mask).astype(features.dtype)
    t = step * jnp.arange(last + 1, dtype=features.dtype)
    phi = jnp.exp(-(t**2) / 2)
    weights = phi * step * jnp.where((t == 0) | (t == t[-1]), 1, 2)  # of both signs of t
    angles = t[:, None, None] * jnp.matmul(features, _unit(directions), precision="highest")[None]

    def mean(values):  # [points, directions]
        return jnp.sum(jnp.where(mask[None, :, None], values, 0), axis=1) / jnp.maximum(count, 1)

    distances = (mean(jnp.cos(angles)) - phi[:, None]) ** 2 + mean(jnp.sin(angles)) ** 2
    return jnp.where(count < 2, 0, count * jnp.mean(jnp.sum(weights[:, None] * distances, axis=0)))


def identity_distance(features: Features, mask: Mask, sketch: Float[Array, "features sketched"] | None = None) -> Value:
    """Weak-SIGReg: ``||C - I||_F`` with C the covariance, divisor N - 1, of the N true rows times ``sketch``.

    Without ``sketch`` C is of the features. With d features and N <= d, the value is at least ``sqrt(d + 1 - N)``;
    with a sketch of k columns of variance 1/d, isotropic features have about ``sqrt(k (k + 1) / d)``. 0 if N < 2.
    """
    centred, count = centre(features, mask)
    if sketch is not None:
        centred = jnp.matmul(centred, sketch, precision="highest")
    scaled = centred / jnp.sqrt(jnp.maximum(count - 1, 1))
    if scaled.shape[0] < scaled.shape[1]:  # ||C||^2 - 2 tr C + d, without C
        squares = squared_gram_norm(scaled) - 2 * jnp.sum(scaled**2) + scaled.shape[1]
    else:
        squares = jnp.sum((smaller_gram(scaled) - jnp.eye(scaled.shape[1], dtype=scaled.dtype)) ** 2)
    return jnp.where(count < 2, 0, root(squares))


def sliced_normality(
    features: Features, mask: Mask, directions: Float[Array, "features directions"]
) -> dict[str, Value]:
    """VISReg's three terms of the N true rows, by name.

    With mu the features' means and sigma their standard deviations (divisor N) plus 1e-6:

    * ``scale``: ``mean_j (sigma_j - 1)^2``;
    * ``shape``: the mean over directions and ranks r of ``(sorted_r - q_r)^2``: the standardized features on a
      direction, in order, and the quantiles of a normal distribution at ``r / (N + 1)``. The gradient does not flow
      through sigma. A feature that is constant on the batch has no gradient here (in the released code a large one);
    * ``centre``: ``mean_j mu_j^2``.

    Columns of ``directions`` are scaled to norm 1. All are 0 if N < 2.
    """
    centred, count = centre(features, mask)
    mean = jnp.sum(jnp.where(mask[:, None], features, 0), axis=0) / jnp.maximum(count, 1)
    variance = jnp.sum(centred**2, axis=0, keepdims=True) / jnp.maximum(count, 1)
    deviation = root(variance) + 1e-6
    standardized = jnp.where(variance > 0, centred / jax.lax.stop_gradient(deviation), 0)
    projected = jnp.matmul(standardized, _unit(directions), precision="highest")
    ranks = jnp.arange(1, len(mask) + 1)
    is_true = ranks <= jnp.sum(mask)
    ordered = jnp.sort(jnp.where(mask[:, None], projected, jnp.inf), axis=0)
    at = jnp.where(is_true, ranks, 1).astype(jnp.promote_types(features.dtype, jnp.float32)) / (count + 1)
    gaps = jnp.where(is_true[:, None], ordered, 0) - jnp.where(is_true, jax.scipy.special.ndtri(at), 0)[:, None]
    shape = jnp.sum(gaps**2) / (jnp.maximum(count, 1) * directions.shape[1])
    terms = {"scale": jnp.mean((deviation - 1) ** 2), "shape": shape, "centre": jnp.mean(mean**2)}
    return {name: jnp.where(count < 2, 0, term) for name, term in terms.items()}


def _unit(directions):
    return directions / jnp.maximum(jnp.linalg.norm(directions, axis=0, keepdims=True), 1e-12)

"""Robust aggregation of the uploads of a cohort, some of whose clients may be malicious.

Functions of the uploads u_i of all clients, a tree of arrays [cohort, ...]. The n uploads with ``counted`` [cohort]
True count; the values of others have no effect. Clients have equal weights unless weights are given.
"""

import jax
import jax.numpy as jnp
import optax

from fedjax_collapse.core.records import PyTree, Scalar, UserError
from fedjax_collapse.losses.norms import root
from fedjax_collapse.optim.aggregation import per_client, weighted_sum


def check_cohort(rule: str, cohort_size: int, needed: int, formula: str) -> None:
    """Raises UserError if a cohort has fewer than ``needed`` clients, which ``formula`` states in the message."""
    if cohort_size < needed:
        raise UserError(
            f"{rule}: a cohort has {cohort_size} clients, expected at least {formula} = {needed}; "
            "lower this option or let more clients take part"
        )


def mean_of(stacked: PyTree, chosen: jax.Array) -> PyTree:
    """Returns the mean of the uploads that are chosen [cohort], bool; 0 of none."""
    return weighted_sum(stacked, _shares(chosen.astype(jnp.result_type(float))))


def median(stacked: PyTree, counted: jax.Array) -> PyTree:
    """Returns the median of every coordinate, for even n the mean of the two in the middle."""
    return jax.tree.map(lambda leaf: _median(_sorted(leaf, counted), jnp.sum(counted)), stacked)


def trimmed_mean(stacked: PyTree, counted: jax.Array, trim: jax.Array | int) -> PyTree:
    """Returns the mean of every coordinate without its ``trim`` lowest and highest values; at least one remains."""
    n = jnp.sum(counted)
    trim = jnp.minimum(trim, jnp.maximum(n - 1, 0) // 2)

    def of(leaf):
        position = per_client(jnp.arange(len(leaf)), leaf)
        kept = (position >= trim) & (position < n - trim)
        return _mean(_sorted(leaf, counted), kept, n - 2 * trim)

    return jax.tree.map(of, stacked)


def bulyan(stacked: PyTree, counted: jax.Array, ids: jax.Array, attackers: jax.Array | int) -> PyTree:
    """Returns, in every coordinate, the mean of the n - 4f values closest to the median of n - 2f chosen uploads.

    Krum chooses these one by one among those that remain.
    """
    distances, n = squared_distances(stacked, counted), jnp.sum(counted)

    def choose(_, left):
        among = jnp.where(left[:, None] & left[None], distances, jnp.inf)
        return left & (krum_ranks(among, left, ids, attackers) > 0)

    chosen = counted & ~jax.lax.fori_loop(0, jnp.maximum(n - 2 * attackers, 1), choose, counted)
    closest = jnp.minimum(jnp.maximum(n - 4 * attackers, 1), n)

    def of(leaf):
        values = _sorted(leaf, chosen)
        gaps = jnp.abs(values - _median(values, jnp.sum(chosen))[None])
        values = jnp.take_along_axis(values, jnp.argsort(gaps, axis=0), axis=0)
        return _mean(values, per_client(jnp.arange(len(leaf)), leaf) < closest, closest)

    return jax.tree.map(of, stacked)


def geometric_median(stacked: PyTree, weights: jax.Array, iterations: int, smoothing: Scalar) -> PyTree:
    """Returns the smoothed geometric median by Weiszfeld's algorithm, of uploads with ``weights`` [cohort], perhaps 0.

    It starts at the weighted mean.
    """

    def step(_, centre):
        closeness = weights / jnp.maximum(smoothing, norms(_from(stacked, centre)))
        return weighted_sum(stacked, _shares(closeness))

    return jax.lax.fori_loop(0, iterations, step, weighted_sum(stacked, _shares(weights)))


def clipped_mean(
    stacked: PyTree, counted: jax.Array, max_norm: Scalar, iterations: int = 1, centre: PyTree | None = None
) -> PyTree:
    """Returns the centre, 0 by default, plus the mean difference to it, each clipped to a norm; repeated from there."""
    centre = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), stacked) if centre is None else centre

    def step(_, centre):
        gaps = _from(stacked, centre)
        sizes = norms(gaps)
        scales = jnp.minimum(1, max_norm / jnp.maximum(sizes, jnp.finfo(sizes.dtype).tiny))
        shares = _shares(counted.astype(sizes.dtype))
        return jax.tree.map(jnp.add, centre, weighted_sum(gaps, scales * shares))

    return jax.lax.fori_loop(0, iterations, step, centre)


def trusted_mean(stacked: PyTree, counted: jax.Array, trusted: PyTree) -> PyTree:
    """Returns the mean of the uploads, each with the norm of the trusted one, weighted by its cosine to it if positive.

    0 if no cosine is positive.
    """
    products = sum(
        jnp.sum((leaf * own[None]).reshape(len(leaf), -1), axis=1)
        for leaf, own in zip(jax.tree.leaves(stacked), jax.tree.leaves(trusted), strict=True)
    )
    sizes, size = norms(stacked), root(optax.tree.norm(trusted, squared=True))
    product = sizes * size
    cosines = jnp.where(product > 0, products / jnp.where(product > 0, product, 1), 0)
    trust = jnp.where(counted, jnp.maximum(cosines, 0), 0)
    scales = jnp.where(sizes > 0, size / jnp.where(sizes > 0, sizes, 1), 0)
    return weighted_sum(stacked, _shares(trust) * scales)


def squared_distances(stacked: PyTree, counted: jax.Array) -> jax.Array:
    """Returns the squared distances [cohort, cohort] of uploads; infinite on the diagonal and if one does not count.

    Computed from the Gram matrix, at full precision, of differences to the upload nearest to the mean, as
    ``|a|^2 + |b|^2 - 2 a.b`` cancels in rounding. An outlier moves the mean itself, which is also rounded; these
    distances are exact for updates of small integers.
    """
    sizes = norms(_from(stacked, mean_of(stacked, counted)))
    nearest = jnp.argmin(jnp.where(counted, sizes, jnp.inf))
    differences = _from(stacked, mean_of(stacked, jnp.arange(len(counted)) == nearest))
    centred = jax.tree.map(lambda leaf: jnp.where(per_client(counted, leaf), leaf, 0), differences)
    rows = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(centred)]
    gram = sum(jnp.matmul(leaf, leaf.T, precision=jax.lax.Precision.HIGHEST) for leaf in rows)
    squares = jnp.diag(gram)
    distances = jnp.maximum(squares[:, None] + squares[None] - (gram + gram.T), 0)  # symmetric to the bit
    is_pair = counted[:, None] & counted[None] & ~jnp.eye(len(counted), dtype=bool)
    return jnp.where(is_pair, distances, jnp.inf)


def norms(stacked: PyTree) -> jax.Array:
    """Returns the norm [cohort] of each upload."""
    squares = (jnp.sum((leaf**2).reshape(len(leaf), -1), axis=1) for leaf in jax.tree.leaves(stacked))
    return root(sum(squares))


def restrict(tree: PyTree, like: PyTree) -> PyTree:
    """Returns the part of a tree of params that is uploaded: with None where ``like`` has None."""
    return jax.tree.map(lambda u, leaf: None if u is None else leaf, like, tree, is_leaf=lambda leaf: leaf is None)


def krum_ranks(distances: jax.Array, counted: jax.Array, ids: jax.Array, attackers: jax.Array | int) -> jax.Array:
    neighbours = jnp.maximum(jnp.sum(counted) - attackers - 2, 1)
    nearest = jnp.sort(distances, axis=1)
    scores = jnp.sum(jnp.where(jnp.arange(len(ids)) < neighbours, nearest, 0), axis=1)
    order = jnp.lexsort((ids, scores, ~counted))
    return jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))


def _sorted(leaf, counted):
    """Returns the values of every coordinate in ascending order, then infinity for clients that do not count."""
    return jnp.sort(jnp.where(per_client(counted, leaf), leaf, jnp.inf), axis=0)


def _median(values, n):
    """Returns the median of the first n of sorted values; 0 if n is 0."""
    last = jnp.maximum(n - 1, 0)
    middle = (jnp.take(values, last // 2, axis=0) + jnp.take(values, n // 2, axis=0, mode="clip")) / 2
    return jnp.where(n > 0, middle, 0)


def _mean(values, kept, n):
    return jnp.sum(jnp.where(kept, values, 0), axis=0) / jnp.maximum(n, 1)


def _from(stacked, centre):
    return jax.tree.map(lambda leaf, c: leaf - c[None], stacked, centre)


def _shares(weights):
    """Returns the weights divided by their sum; 0 if all are 0."""
    total = jnp.sum(weights)
    return jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 0)

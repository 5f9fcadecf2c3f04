"""Base classes and functions of methods that aggregate low-rank adapters; a and b are the papers' A^T and B^T."""

from collections.abc import Mapping
from typing import ClassVar

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Outputs, PyTree, UserError, Variables
from fedjax_collapse.methods.base import NEEDS_MEAN, ClientView, Exclusion, FinishView, Method, RoundView, Setup
from fedjax_collapse.nn.adapters import SCALE, Adapter, adapters, with_adapters
from fedjax_collapse.schema.options import Count, option


def decompose(matrix: jax.Array, rank: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the largest singular values [rank] with vectors [in, rank] and [rank, out], of signs that are unique.

    The entry of largest size of each vector [out] is positive, so that a resumed run has the same bits.
    """
    left, values, right = jnp.linalg.svd(matrix, full_matrices=False)
    largest = jnp.take_along_axis(right, jnp.argmax(jnp.abs(right), axis=1)[:, None], axis=1)
    signs = jnp.where(largest < 0, -1, 1).astype(matrix.dtype)
    return (left * signs[:, 0])[:, :rank], values[:rank], (right * signs)[:rank]


def closest(matrix: jax.Array, old: Adapter, is_balanced: bool = False) -> Adapter:
    """Returns the adapter, of the old one's rank and scale, whose product is closest to the matrix.

    The columns of a are orthonormal, and b has the singular values; with ``is_balanced`` both have their roots. If the
    matrix has fewer singular values than the rank, b is 0 and a keeps its old columns, which can still be trained.
    """
    left, values, right = decompose(matrix, len(old.scale))
    is_there = values > jnp.finfo(values.dtype).eps * max(matrix.shape) * values[0]
    sizes = jnp.sqrt(jnp.where(is_there, values, 1)) if is_balanced else jnp.ones_like(values)
    b = (jnp.where(is_there, values / sizes, 0) / old.scale)[:, None] * right
    return Adapter(jnp.where(is_there, left * sizes, old.a), b, old.scale)


_OF_FACTORS = Exclusion(
    ("upload",),
    "{other} changes uploads, but {own} computes the server's adapters from the trained ones; leave one out",
)
_OF_REPLACED = Exclusion(
    ("init_memory", "correct"),
    "{other} corrects changes of a client's adapters by earlier changes, but {own} replaces the adapters; "
    "leave one out",
)


class LowRank(Method):
    """A method for networks with adapters, whose state at the server is the server's adapters, by layer.

    Its report, by default the mean product, is computed from the clients' factors, which are sent in its place:
    ``M = sum_k p_k a_k s_k b_k`` [in, out], by layer.

    A method that ``replaces_adapters`` changes their columns, so that earlier momentum and corrections do not apply.
    """

    freeze = "base"
    needs = ("adapters",)
    makes_adapters = True
    not_sent = ("shared/*", "report/*")
    replaces_adapters: ClassVar[bool] = False

    def check_with(self, setup: Setup) -> None:
        if self.replaces_adapters and not setup.training.momentum_reset:
            raise UserError(
                f"{type(self).__name__}: training.momentum_reset=False would move a client's adapters by the momentum "
                "of replaced adapters; expected momentum_reset=True"
            )

    @property
    def excludes(self) -> tuple[Exclusion, ...]:
        return NEEDS_MEAN + (_OF_FACTORS,) * self.has("finish") + (_OF_REPLACED,) * self.replaces_adapters

    def init_shared(self, variables: Variables, shapes: Outputs) -> PyTree:
        return adapters(variables.params)

    def finish(self, view: FinishView) -> tuple[PyTree, PyTree]:
        own = adapters(view.public.params).items()
        return view.memory, {layer: view.client.weight * adapter.product for layer, adapter in own}

    def after_round(self, shared: PyTree, before: Variables, after: Variables, measured: PyTree) -> PyTree:
        return adapters(after.params)


class Ranked(LowRank):
    """A method whose clients may have adapters of different ranks.

    A client of rank r_k starts from the first r_k entries of the server's adapters, with the scale of its own rank; its
    product is the server's truncated product. ``padded`` undoes this change of scale.

    Args:
        ranks: the clients' ranks by identity, repeated; () is the network's for all.
    """

    ranks: tuple[Count, ...] = option(())
    received: ClassVar[str] = SCALE

    def check_with(self, setup: Setup) -> None:
        super().check_with(setup)
        most = setup.model.adapters.rank
        if self.ranks and max(self.ranks) > most:
            raise UserError(f"{type(self).__name__}: ranks {self.ranks}: expected at most {most}, the network's rank")

    @property
    def unused(self) -> tuple[str, ...]:
        """Clients of the network's rank start from the received adapters."""
        return () if self.ranks else ("receive",)

    def makes_own(self) -> bool:
        """Whether clients use personal models; truncated models of the server do not count."""
        return False

    def rank_of(self, view: RoundView) -> jax.Array:
        """Returns the rank of a client's adapters."""
        ranks = self.ranks or (view.model.adapters.rank,)
        return jnp.asarray(ranks)[view.client.id % len(ranks)]

    def receive(self, view: ClientView) -> tuple[Variables, PyTree]:
        rank = self.rank_of(view)
        own = view.model.adapters.scale(rank)
        new = {
            layer: Adapter(a, b * (scale / own)[:, None], jnp.where(jnp.arange(len(scale)) < rank, own, 0))
            for layer, (a, b, scale) in adapters(view.server.params).items()
        }
        return view.server._replace(params=with_adapters(view.server.params, new)), view.memory


def padded(view: FinishView) -> dict[str, Adapter]:
    """Returns a client's adapters in the server's scale, with the same products; 0 after the client's rank."""
    found, server = {}, adapters(view.server.params)
    for layer, (a, b, own) in adapters(view.public.params).items():
        scale = server[layer].scale
        found[layer] = Adapter(jnp.where(own > 0, a, 0), b * (own / scale)[:, None], scale)
    return found


def mean_factors(update: PyTree, old: Mapping[str, Adapter]) -> dict[str, Adapter]:
    """Returns the adapters whose factors are the clients' means, from the server's old ones and its update."""
    moves = adapters(update)
    return {layer: Adapter(a + moves[layer].a, b + moves[layer].b, scale) for layer, (a, b, scale) in old.items()}


def change(update: PyTree, old: Mapping[str, Adapter], new: Mapping[str, Adapter]) -> PyTree:
    """Returns the server's update by which its adapters become the new ones."""
    return with_adapters(update, {layer: jax.tree.map(jnp.subtract, new[layer], old[layer]) for layer in new})

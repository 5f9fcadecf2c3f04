"""A client's round on an outline of the network, which tells what depends on what without the network's cost."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Batch, Client, ClientState, Examples, Key, Outputs, PyTree, Variables
from fedjax_collapse.nn.model import Model
from fedjax_collapse.training import local
from fedjax_collapse.training.algorithm import FedAvg


@dataclasses.dataclass(frozen=True)
class Outline(Model):
    """The model with the network left out: its outputs depend on the same inputs and have the same shapes."""

    real: Model | None = None

    def init(self, key: Key) -> Variables:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.real.variable_shapes())

    def output_shapes(self, variables: Variables, levels: bool = False) -> Outputs:
        shapes = self.real.initial_shapes()
        return shapes if levels else shapes._replace(levels=())

    def initial_shapes(self) -> Outputs:
        return self.real.initial_shapes()

    def mask(self, name: str) -> Variables:
        return self.real.mask(name)

    def apply(
        self, variables: Variables, batch: Batch, train: bool, key: Key | None = None, levels: bool = False
    ) -> tuple[Outputs, PyTree]:
        sources = (variables.params, batch.inputs) if train else (variables, batch.inputs)
        total = sum(jnp.sum(leaf) for leaf in jax.tree.leaves(sources))

        def made(shape, dtype):
            return jnp.full(shape, total.astype(dtype))

        shapes = self.output_shapes(variables, levels)
        outputs = jax.tree.map(lambda leaf: made((len(batch.mask), *leaf.shape[1:]), leaf.dtype), shapes)
        if not train:
            return outputs, variables.batch_stats
        return outputs, jax.tree.map(lambda leaf: leaf + made((), leaf.dtype), variables.batch_stats)


def outline_of(model: Model) -> Outline:
    """Returns the outline of a model."""
    return Outline(**vars(model), real=model)


def shapes_of_known() -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of what the server also knows about a client."""
    whole, real = (jax.ShapeDtypeStruct((), kind) for kind in (jnp.int32, jnp.result_type(float)))
    return {"round": whole, "id": whole, "weight": real, "num_clients": whole, "mean_size": real}


def shapes_of_own(algorithm: FedAvg, train: Examples, state: ClientState) -> PyTree:
    """Returns the shapes of what only the client has."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    rows, size = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((algorithm.training.batch_size,), ()))
    examples = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), train)
    held_out = size if algorithm.having("held_out") else None
    return {"examples": examples, "rows": rows, "size": size, "held_out": held_out, "state": state, "key": key}


def context_of(algorithm: FedAvg, model: Outline, given: Mapping[str, Any]) -> local.LocalContext:
    """Returns a client's round.

    Args:
        algorithm: the algorithm.
        model: the outline.
        given: ``received``, a ``Server``, and what the shapes of ``known`` and ``own`` are of.
    """
    known, own = dict(given["known"]), dict(given["own"])
    round, examples = known.pop("round"), own.pop("examples")
    return local.LocalContext(algorithm, model, examples, given["received"], round, Client(**known, **own))

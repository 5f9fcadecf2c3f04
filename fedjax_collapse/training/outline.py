"""A client's round on an outline of the network, which shows dependencies without the network's cost."""

import dataclasses

import jax
import jax.numpy as jnp

from fedjax_collapse.core.records import Batch, Client, ClientState, Examples, Key, Outputs, PyTree, Variables
from fedjax_collapse.nn.model import Model
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

    def apply_to_inputs(
        self, variables: Variables, batch: Batch, train: bool, key: Key | None, levels: bool
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


def client_of(algorithm: FedAvg, train: Examples, state: ClientState) -> Client:
    """Returns a client with the first batch of the examples, or of their shapes."""
    count, one = min(algorithm.training.batch_size, train.labels.shape[0]), jnp.ones(())
    return Client(
        id=jnp.zeros((), jnp.int32),
        size=jnp.asarray(count, jnp.int32),
        weight=one,
        key=jax.random.key(0),
        num_clients=jnp.ones((), jnp.int32),
        mean_size=one * count,
        held_out=jnp.zeros((), jnp.int32) if algorithm.having("validation") else None,
        rows=jnp.arange(count),
        state=state,
    )

"""Programs to compile for a target: one local step of a network, and a whole round of a method."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from experiments.benchmarks.compiling.costs import compiled_for
from experiments.benchmarks.compiling.topologies import Chip
from experiments.benchmarks.networks import CLASSES
from experiments.benchmarks.systems import engine_rounds
from experiments.benchmarks.workloads import IMAGE_SIZE, Data
from fedjax_collapse import FedAvg, LocalTraining, Model, engine
from fedjax_collapse.config import build
from fedjax_collapse.core import masks
from fedjax_collapse.core.records import Batch, Examples, Variables
from fedjax_collapse.core.target import Target

_TRAINING = LocalTraining(momentum=0.9)


def network(
    name: str,
    target: Target,
    options: Mapping[str, Any],
    shape: tuple[int, int, int] | None = None,
    classes: int = CLASSES,
) -> Model:
    """Returns the network for images of this shape, by default 32x32x3 where they suffice, lowered for the target.

    Raises:
        UserError: if there is no such network or option.
    """
    size = IMAGE_SIZE.get(name, 32)
    return Model(build.network(name, options, classes), shape or (size, size, 3)).on(target)


def step(model: Model, device: jax.Device, clients: int, batch_size: int) -> jax.stages.Lowered:
    """Returns one step of SGD with momentum of this many clients in parallel, each with its own weights and images.

    With adapters, only these and the head are each client's own, and trained. Straight-line code, as inside the loop of
    a round: its compiler's estimates of operations can be summed.
    """
    fixed = model.mask("base" if model.adapters else "none").params

    def one(variables, momentum, batch, frozen):
        def loss(params):
            whole = variables._replace(params=masks.fill(params, frozen))
            outputs, batch_stats = model.apply(whole, batch, train=True)
            return model.task.loss(outputs, batch), batch_stats

        gradient, batch_stats = jax.grad(loss, has_aux=True)(variables.params)
        updates, momentum = optimizer.update(gradient, momentum, variables.params)
        params = jax.tree.map(jnp.add, variables.params, updates)
        return Variables(params, batch_stats), momentum

    optimizer, lead = _TRAINING.make_optimizer(), () if clients == 1 else (clients,)
    variables = model.variable_shapes()
    frozen = masks.without(masks.invert(fixed), variables.params)
    variables = variables._replace(params=masks.without(fixed, variables.params))
    momentum = jax.eval_shape(optimizer.init, variables.params)
    images = jax.ShapeDtypeStruct((batch_size, *model.input_shape), jnp.float32)
    row = functools.partial(jax.ShapeDtypeStruct, (batch_size,))
    batch = Batch(images, row(jnp.int32), row(bool))

    def on_device(tree, lead=()):
        sharding = SingleDeviceSharding(device)
        return jax.tree.map(lambda leaf: leaf.update(shape=(*lead, *leaf.shape), sharding=sharding), tree)

    program = jax.jit(jax.vmap(one, (0, 0, 0, None)) if lead else one, donate_argnums=(0, 1))
    return program.lower(*on_device((variables, momentum, batch), lead), on_device(frozen))


def rounds(
    algorithm: FedAvg, model: Model, client_map: engine.ClientMap, num_clients: int, examples: int = 50
) -> tuple[engine.RoundSpec, FedAvg, engine.Assignment, Examples]:
    """Returns the arguments of ``engine.lower`` for this many clients with so many images each, all in every round."""
    shape, count = model.input_shape, num_clients * examples
    data = Data(np.zeros((count, *shape), np.uint8), np.arange(count) % CLASSES, 128.0, 64.0)
    parts = np.split(np.arange(count), num_clients)
    run, compiled = engine_rounds.prepare(data, parts, algorithm, model, client_map)
    return compiled, algorithm.enabled(), engine.Assignment(run.federation.ownership), run.federation.train


def fitting(
    compiled: engine.RoundSpec, algorithm: FedAvg, data: engine.Assignment, examples: Examples, chip: Chip
) -> tuple[engine.RoundSpec, float]:
    """Returns the rounds with as many clients at once as fit on the chip, and the bytes that they need.

    Raises:
        UserError: if not even one client at a time fits.
    """

    def needed(layout):
        lowered = engine.lower(dataclasses.replace(compiled, layout=layout), algorithm, data, examples)
        return engine.memory.program_bytes(functools.partial(compiled_for, lowered))

    stored = engine.memory.size_in_bytes((examples, data.ownership))
    beside = f"{stored / 2**20:.1f} MiB of examples"
    layout, size = engine.memory.fit(compiled.layout, needed, chip.memory - stored, beside)
    return dataclasses.replace(compiled, layout=layout), size

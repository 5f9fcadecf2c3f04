"""The library and the reference in the same rounds, in float64: three of the five clients in each, by default two.

Some clients take part twice, some once and one never.
"""

import jax
import jax.numpy as jnp
import numpy as np
from conftest import assert_close

from fedjax_collapse import FedAvg, Model, engine, nn
from fedjax_collapse.core import masks
from fedjax_collapse.training.server import own_parts
from reference.rounds import TRAINING, Rounds

COHORT_SIZE, KEY = 3, 7


def small_model(federation, **options):
    """The references' network and its initial variables."""
    with jax.enable_x64(True):
        model = Model(nn.SmallCNN(4, (5, 8), **options), federation.input_shape)
        return model, jax.device_get(model.init(jax.random.key(0)))


def run_library(federation, algorithm, rounds=2, key=KEY, **options):
    """The library's state after the rounds; the options are the network's."""
    model, variables = small_model(federation, **options)
    with jax.enable_x64(True):
        algorithm.check(model)
        algorithm = jax.tree.map(jnp.asarray, algorithm)
        state = engine.init(algorithm, model, variables, federation.num_clients, jax.random.key(key))
        static = engine.Rounds(model, engine.Layout(engine.Chunked(2), COHORT_SIZE, rounds))
        data = engine.Data(federation.ownership)
        state, _ = engine.with_first_reports(static, algorithm, state, data, federation.train)
        state = engine.run_rounds(static, algorithm, state, data, federation.train, rounds).state
        return jax.device_get(state._replace(key=None))


def run_reference(federation, method, training=TRAINING, rounds=2, key=KEY):
    """The reference's rounds."""
    with jax.enable_x64(True):  # random draws differ without
        plain = Rounds(federation, method, small_model(federation)[1], training)
        return plain.run(jax.random.key(key), rounds, COHORT_SIZE)


def run_both(federation, methods, method):
    """The library's state, and the reference's server."""
    return run_library(federation, FedAvg(TRAINING, methods)), run_reference(federation, method).server.dump()


def assert_same_rounds(federation, algorithm, method, rounds=2, key=KEY):
    """The server's variables, and what every client keeps of its own, are the reference's; what is private or frozen,
    and nothing else, is at the server bit for bit as it was."""
    state = run_library(federation, algorithm, rounds, key)
    expected = run_reference(federation, method, algorithm.training, rounds, key)
    assert_close(state.server.variables, expected.server.dump(), 1e-10)
    model, variables = small_model(federation)
    is_private = model.mask(algorithm.private_part)
    own = [masks.select(is_private, expected.personal(i).dump()) for i in range(federation.num_clients)]
    with jax.enable_x64(True):
        found = own_parts(algorithm, state.server, state.clients)
    assert_close(found, jax.tree.map(lambda *leaves: np.stack(leaves), *own), 1e-10)
    is_constant = masks.by_path(is_private)
    is_frozen = masks.by_path(model.mask(algorithm.training.freeze))
    before, after = masks.by_path(variables), masks.by_path(state.server.variables)
    for path, constant in is_constant.items():
        assert np.array_equal(before[path], after[path]) == (constant or is_frozen[path]), path

"""Rounds of the engine, below ``simulate``, from initial variables."""

import jax
import jax.numpy as jnp

from fedjax_collapse import Participation, engine
from fedjax_collapse.engine import rounds

CHUNKED = engine.Chunked(2)


def start_rounds(
    federation, model, algorithm, client_map=CHUNKED, cohort_size=None, max_rounds=2, variables=None, module=rounds,
    key=1, rule=None,
):  # fmt: skip
    """What ``run_rounds`` of the module takes, where it expects it, but for the number of rounds.

    Cohorts are of all clients by default. First reports are in the state.
    """
    algorithm, rule = client_map.replicate(jax.tree.map(jnp.asarray, (algorithm, rule or Participation())))
    variables = model.init(jax.random.key(0)) if variables is None else variables
    state = engine.init(algorithm, model, variables, federation.num_clients, jax.random.key(key))
    data, examples = engine.Assignment(federation.ownership, rule), federation.train
    if module is rounds:
        state = engine.distribute(client_map, state)
        data, examples = client_map.replicate((data, examples))
    static = engine.RoundSpec(model, engine.Layout(client_map, cohort_size or federation.num_clients, max_rounds))
    state, _ = module.with_first_reports(static, algorithm, state, data, examples)
    return static, algorithm, state, data, examples


def run_rounds(federation, model, algorithm, client_map=CHUNKED, num_rounds=2, **options):
    """State without padding, record and watched client after the rounds, on the host."""
    advance = engine.run_rounds(*start_rounds(federation, model, algorithm, client_map, **options), num_rounds)
    state = engine.without_padding(advance.state, federation.num_clients)
    return jax.device_get(advance._replace(state=state._replace(key=jax.random.key_data(state.key))))

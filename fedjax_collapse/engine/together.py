"""Several runs as one program: seeds, or values of numeric hyper-parameters, on an axis of their own.

A client map lays out the runs as it lays out clients: ``Vectorized()`` trains them side by side on one device,
``Sharded(2, Chunked(1))`` gives every device its share of them, one after another. Each run's numbers are those of the
run alone under the same ``Layout``.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.algorithms.base import Algorithm
from fedjax_collapse.engine.client_maps import Chunked, ClientMap, Sharded, Vectorized
from fedjax_collapse.engine.cohort import device_steps
from fedjax_collapse.engine.layout import Layout
from fedjax_collapse.engine.rounds import RoundRecord, State, run_rounds
from fedjax_collapse.records import Examples, Model, Ownership, PyTree, Variables


def lay_out_runs(client_map: ClientMap, num_runs: int) -> tuple[ClientMap, ClientMap]:
    """Client maps of the runs and of the clients of each, on the devices of ``client_map``: each device gets whole
    runs, one after another; on a single device they go side by side."""
    match client_map:
        case Sharded(num_devices, inner):
            return Sharded(min(num_devices, num_runs), Chunked(1)), inner
    return Vectorized(), client_map


def is_faster(client_map: ClientMap, sizes: Sequence[np.ndarray], batch_size: int) -> bool:
    """Whether whole runs on each device end before one run after another, its clients dealt to all devices.

    Dealt clients wait for the device with most steps, whole runs for the device with most runs. ``sizes``: of each run.
    On a single device runs side by side were not faster on a CPU, and not measured elsewhere.
    """
    if client_map.num_devices == 1 or len(sizes) < 2:
        return False
    steps = [device_steps(of_run, batch_size, client_map) for of_run in sizes]
    whole = [of_run.sum() for of_run in steps]
    longest = max(sum(whole[device :: client_map.num_devices]) for device in range(client_map.num_devices))
    return bool(longest < sum(of_run.max() for of_run in steps))


def stack_runs(runs: Sequence[tuple[Algorithm, State, Ownership]], run_map: ClientMap) -> tuple:
    """The runs' algorithms, states and ownerships, each stacked on a leading axis, where ``run_together`` wants them.

    Padded to a multiple of ``run_map.clients_at_once`` with runs whose clients own nothing.
    """
    algorithm, state, ownership = runs[-1]
    idle = (algorithm, state, ownership._replace(sizes=jnp.zeros_like(ownership.sizes)))
    padded = [*runs, *[idle] * (-len(runs) % run_map.clients_at_once)]
    stacked = jax.tree.map(lambda *leaves: _stack(leaves), *padded)
    return tuple(run_map.deal(part) for part in stacked)


def split_runs(stacked: PyTree, num_runs: int) -> list[PyTree]:
    """What belongs to each of the stacked runs, on one device; without those that only pad."""
    return _split_runs(jax.device_put(stacked, jax.devices()[0]), num_runs)


@functools.partial(jax.jit, static_argnames="num_runs")  # one call: each slice by itself would cost as much
def _split_runs(stacked, num_runs):
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stacked) for i in range(num_runs)]


def run_together(
    algorithms: Algorithm,
    states: State,
    examples: Examples,
    ownerships: Ownership,
    num_rounds: jax.Array | int,
    *,
    model: Model,
    layout: Layout,
    run_map: ClientMap,
) -> tuple[State, RoundRecord, Variables]:
    """``run_rounds`` of every run, stacked; all but ``examples``, which are common to all runs, is as ``stack_runs``
    returned it. ``states`` are donated."""
    statics = dict(model=model, layout=layout, run_map=run_map)
    return _run_together_compiled(algorithms, states, examples, ownerships, num_rounds, **statics)


def compile_together(*arguments, model: Model, layout: Layout, run_map: ClientMap) -> jax.stages.Compiled:
    """The program that ``run_together`` runs on these arguments, and has then compiled."""
    return _run_together_compiled.lower(*arguments, model=model, layout=layout, run_map=run_map).compile()


def _run_together(algorithms, states, examples, ownerships, num_rounds, *, model, layout, run_map):
    def run(shared, own):
        algorithm, state, ownership = own
        return (), run_rounds(algorithm, state, shared[0], ownership, shared[1], model=model, layout=layout)

    return run_map(run, (examples, num_rounds), (algorithms, states, ownerships))[1]


_run_together_compiled = jax.jit(
    _run_together, static_argnames=("model", "layout", "run_map"), donate_argnames="states"
)


def _stack(leaves):
    return jnp.stack(leaves) if isinstance(leaves[0], jax.Array) else np.stack(leaves)

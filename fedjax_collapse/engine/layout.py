"""What the compiled rounds of a run are specialised to, and what of it follows from the network and the data."""

from typing import NamedTuple

import jax
import numpy as np

from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.records import Model

_SHALLOW = 10  # layers up to which a program that holds the network's step twice still compiles fast
_WORTHWHILE = 0.03  # share of the computed samples that must be saved


class Layout(NamedTuple):
    """How rounds are laid out on the hardware. It changes speed and memory, and the order of float summation alone.

    ``halve_short_batches``: a batch whose true rows fit into half of it costs half.
    """

    client_map: ClientMap
    cohort_size: int
    max_rounds: int = 1  # in one call
    halve_short_batches: bool = False


def halves_short_batches(client_map: ClientMap, model: Model, sizes: np.ndarray, batch_size: int) -> bool:
    """Whether it pays to compile a client's step for half a batch as well.

    Not under ``vmap``, where a branch costs both of its cases, nor for deep networks, which would take twice as long to
    compile, nor where nearly all batches are full.
    """
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    is_shallow = sum(leaf.ndim >= 2 for leaf in jax.tree.leaves(params)) <= _SHALLOW
    if not client_map.runs_clients_alone or not is_shallow or batch_size < 2:
        return False
    whole, halved = (np.sum(padded_sizes(sizes, batch_size, halves)) for halves in (False, True))
    return bool(whole - halved >= _WORTHWHILE * whole)


def padded_sizes(sizes: np.ndarray, batch_size: int, halves: bool) -> np.ndarray:
    """Samples that are computed in an epoch of clients with so many examples; ``halves``: in halves of a batch."""
    full, rest = np.divmod(sizes, batch_size)
    least = batch_size // 2 if halves else batch_size
    return full * batch_size + np.where(rest <= least, least * (rest > 0), batch_size)

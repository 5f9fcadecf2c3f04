"""What the compiled rounds of a run are specialised to, and what of it follows from the network and the data."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.engine.skipping import KEEP_ALL, KeepAll
from fedjax_collapse.nn.model import Model

_SMALL_LAYERS, _SMALL_WEIGHTS = 12, 5_000_000
_SHALLOW = 10  # layers up to which a program that holds the network's step twice still compiles fast
_WORTHWHILE = 0.03  # share of the computed samples that must be saved


class Layout(NamedTuple):
    """How rounds are laid out on the hardware. It changes speed and memory, and the order of float summation alone.

    ``batch_parts``: into how many parts a batch is cut; one whose true rows fit into fewer costs no more than those.
    """

    client_map: ClientMap
    cohort_size: int
    max_rounds: int = 1  # in one call
    batch_parts: int = 1


@dataclasses.dataclass(frozen=True)
class Rounds:
    """All that a round is compiled for, but the structure of what it is given; a static argument.

    ``run_map``: how several runs are laid out, each by ``layout``; None for one run.
    ``watch``: whose local models are kept after a call's last round: ``one``, the member of its cohort with the lowest
    identity; ``all`` of its cohort; or those of some identities.
    ``diverging``: what a round does with clients that diverge.
    """

    model: Model
    layout: Layout
    run_map: ClientMap | None = None
    watch: str | tuple[int, ...] = "one"
    diverging: KeepAll = KEEP_ALL

    @property
    def num_watched(self) -> int:
        """How many clients are watched."""
        return {"one": 1, "all": self.layout.cohort_size}.get(self.watch) or len(self.watch)

    def watched_ids(self, cohort: jax.Array, num_clients: jax.Array) -> jax.Array:
        """Identities of the clients that are watched, as many for every cohort; behind the last one's are nobody's."""
        match self.watch:
            case "one":
                return jnp.min(cohort)[None]
            case "all":
                return jnp.sort(cohort)[: self.layout.cohort_size]
        ids = jnp.asarray(self.watch, cohort.dtype)
        return jnp.where(jnp.isin(ids, cohort), ids, num_clients)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """Those that take part in them."""
        return (self.run_map or self.layout.client_map).devices


def check_watch(watch: str | tuple[int, ...], num_clients: int) -> None:
    """Raises UserError if that is nobody to watch."""
    ids = watch if isinstance(watch, tuple) else ()
    if watch in ("one", "all") or (ids and all(isinstance(i, int) and 0 <= i < num_clients for i in ids)):
        return
    raise UserError(f"watch {watch!r}: expected one, all, or a tuple of identities from 0 to {num_clients - 1}")


def clients_at_once(target: Target, model: Model) -> int:
    """How many clients side by side are a good first choice on a device; ``layout="timed"`` measures it.

    One on a CPU. Ten on a GPU, which one client of these networks does not fill, and of small networks on a TPU: deeper
    and larger ones are no faster there with ten, and take ten times the memory (``docs/accelerators.md``).
    """
    kernels = _kernels(model)
    is_small = len(kernels) <= _SMALL_LAYERS and sum(map(math.prod, kernels)) <= _SMALL_WEIGHTS
    return 10 if target.platform == "gpu" or (target.is_tpu and is_small) else 1


def batch_parts(client_map: ClientMap, model: Model, sizes: np.ndarray, batch_size: int) -> int:
    """Into how many parts it pays to cut a batch: a client's step is compiled for each number of them.

    One under ``vmap``, where a branch costs all of its cases; for deep networks, which compile for long; and where
    nearly all batches are full. Four for dense networks, which compile at once, else two.
    """
    kernels = _kernels(model)
    parts = min(4 if all(len(shape) == 2 for shape in kernels) else 2, batch_size)
    if not client_map.runs_clients_alone or len(kernels) > _SHALLOW:
        return 1
    whole, cut = (np.sum(padded_sizes(sizes, batch_size, number)) for number in (1, parts))
    return parts if whole - cut >= _WORTHWHILE * whole else 1


def _kernels(model):
    """Shapes of the network's weights, without biases and what normalisations have."""
    params = jax.eval_shape(model.init, jax.random.key(0)).params
    return [leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim > 1]


def padded_sizes(sizes: np.ndarray, batch_size: int, parts: int) -> np.ndarray:
    """Samples that are computed in an epoch of clients with so many examples."""
    full, rest = np.divmod(sizes, batch_size)
    part = -(-batch_size // parts)
    return full * batch_size + np.minimum(-(-rest // part) * part, batch_size)

"""The static description that the compiled rounds of a run are specialised to."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_collapse.core.records import UserError
from fedjax_collapse.core.target import Target
from fedjax_collapse.engine.client_maps import ClientMap
from fedjax_collapse.nn.model import Model

_SMALL_LAYERS, _SMALL_WEIGHTS = 12, 5_000_000
_SHALLOW = 10  # layers up to which a program that contains the network's step twice still compiles fast
_TOKEN_PARTS, _CACHED = 4, 2**20  # parts if each token has a label; weights that leave a core's cache
_WORTHWHILE, _MUCH = 0.03, 0.25  # the least fraction of the computed samples that has to be saved; by deep networks


class Layout(NamedTuple):
    """The layout of rounds on the hardware. It changes only speed, memory and the order of float summation.

    Args:
        client_map: lays out the clients.
        cohort_size: clients in a round.
        max_rounds: the most rounds in one call.
        batch_parts: the number of parts into which a batch is divided, by examples or, if each token has a label, by
            tokens. Parts without true rows are not computed, in branches of the program; 0 has no branch.
    """

    client_map: ClientMap
    cohort_size: int
    max_rounds: int = 1
    batch_parts: int = 0


@dataclasses.dataclass(frozen=True)
class RoundSpec:
    """Everything that a round is compiled for, except for the shapes of its arguments; a static argument.

    Args:
        model: the model.
        layout: the layout of each run.
        run_map: lays out several runs; None for one run.
        watch: the clients whose local models are returned after a call's last round: ``one``, the member of its cohort
            with the lowest identity; ``all`` of its cohort; or a tuple of identities.
        skips: whether a round is repeated without clients that diverge (``skipping.py``).
        rule: the classes of the rule of participation and of its sampler, which the structure of an argument does not
            tell apart (``FedAvg.methods``).
    """

    model: Model
    layout: Layout
    run_map: ClientMap | None = None
    watch: str | tuple[int, ...] = "one"
    skips: bool = False
    rule: tuple[type, ...] = ()

    @property
    def num_watched(self) -> int:
        """The number of watched clients."""
        return {"one": 1, "all": self.layout.cohort_size}.get(self.watch) or len(self.watch)

    def watched_ids(self, cohort: jax.Array, num_clients: jax.Array) -> jax.Array:
        """Returns ``num_watched`` identities; ``num_clients`` stands for clients that are not in the cohort."""
        match self.watch:
            case "one":
                return jnp.min(cohort)[None]
            case "all":
                return jnp.sort(cohort)[: self.layout.cohort_size]
        ids = jnp.asarray(self.watch, cohort.dtype)
        return jnp.where(jnp.isin(ids, cohort), ids, num_clients)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices that the rounds use."""
        return (self.run_map or self.layout.client_map).devices


def check_watch(watch: str | tuple[int, ...], num_clients: int) -> None:
    """Raises UserError if ``watch`` does not select any clients."""
    ids = watch if isinstance(watch, tuple) else ()
    if watch in ("one", "all") or (ids and all(isinstance(i, int) and 0 <= i < num_clients for i in ids)):
        return
    raise UserError(f"watch {watch!r}: expected one, all, or a tuple of identities from 0 to {num_clients - 1}")


def clients_at_once(target: Target, model: Model) -> int:
    """Returns a good first choice for the number of clients that a device trains at once.

    One on a CPU. Ten on a GPU, which one client of these networks does not fill, and a hundred for small dense
    networks, whose rounds take less than half the time of ten; ten on a TPU for small networks: deeper and larger ones
    are no faster there with ten, and take ten times the memory (``docs/accelerators.md``). ``layout="timed"`` measures
    it.
    """
    kernels = _kernels(model)
    is_small = len(kernels) <= _SMALL_LAYERS and sum(map(math.prod, kernels)) <= _SMALL_WEIGHTS
    if target.platform == "gpu":
        return 100 if is_small and _is_dense(kernels) else 10
    return 10 if target.is_tpu and is_small else 1


def batch_parts(
    client_map: ClientMap, model: Model, sizes: np.ndarray, batch_size: int, of_tokens: bool = False
) -> int:
    """Returns the number of parts into which it pays to divide a batch.

    A client's step is compiled for each number of parts. None under ``vmap``, where a branch costs all of its cases,
    and if nearly all batches are full. Four for dense networks, which compile fast, otherwise two; for deep networks,
    which compile slowly, only if that saves much. ``of_tokens``, four: a batch is then cut by its tokens, as most
    sequences end with padding. Else one for large networks on a CPU: without a branch, which ends before the params
    are updated in place, XLA copies them in every step.
    """
    if not client_map.runs_clients_alone:
        return 0
    if of_tokens:
        return _TOKEN_PARTS
    kernels = _kernels(model)
    is_deep = len(kernels) > _SHALLOW
    parts = min(4 if _is_dense(kernels) and not is_deep else 2, batch_size)
    whole, cut = (np.sum(padded_sizes(sizes, batch_size, number)) for number in (1, parts))
    if whole - cut >= (_MUCH if is_deep else _WORTHWHILE) * whole:
        return parts
    return int(client_map.target.is_cpu and sum(map(math.prod, kernels)) >= _CACHED)


def _kernels(model):
    """Returns the shapes of the network's weights, without biases and the parameters of normalisation layers."""
    return [leaf.shape for leaf in jax.tree.leaves(model.variable_shapes().params) if leaf.ndim > 1]


def _is_dense(kernels):
    return all(len(shape) == 2 for shape in kernels)


def padded_sizes(sizes: np.ndarray, batch_size: int, parts: int) -> np.ndarray:
    """Returns the number of samples computed in an epoch by clients of these sizes, including padding."""
    full, rest = np.divmod(sizes, batch_size)
    part = -(-batch_size // parts)
    return full * batch_size + np.minimum(-(-rest // part) * part, batch_size)

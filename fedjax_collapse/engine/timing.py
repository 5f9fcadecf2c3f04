"""The fastest lowering of each convolution of a network on a device: timed once, then remembered.

What compilers say of a GPU's programs is how much they move, not how fast its libraries are; and two CPUs of different
makers do not agree either. So each layer is run by itself, forward and backward, with as many clients side by side as
a round has, in a loop as a round's steps are.
"""

import functools
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedjax_collapse.core.target import Target
from fedjax_collapse.nn.inspection import convolutions
from fedjax_collapse.nn.lowerings.convolution import TimedLowerings, candidates, convolve
from fedjax_collapse.nn.model import Model
from fedjax_collapse.storage.timing_cache import remembered

WORTHWHILE = 2**25  # multiply-adds of a layer: timing those with less takes longer than most studies would win by it
_CLEARLY = 0.9  # share of the time that another lowering may take to replace that of the rule; less is noise
_SECONDS = 0.05  # that a timing lasts at least
_TIMINGS = 5  # the fastest counts
_HOPELESS = 3  # times the fastest one's; whatever never took less is not timed again


def with_timed_lowerings(
    model: Model,
    batch_size: int,
    clients: int,
    device: jax.Device,
    least_work: int = 0,
    announce: Callable[[str], None] = lambda line: None,
) -> Model:
    """The model whose convolutions take the lowerings that are fastest on the device; itself if it has none.

    ``clients``: how many train side by side there. The seconds of every lowering are kept in the cache folder, where
    an equal layer, device, precision and version of JAX finds them again. That of ``auto`` stays unless another one is
    clearly faster, and for layers of less than ``least_work`` multiply-adds on a batch of each client. ``announce`` is
    called with a line before anything is timed, which takes seconds to a minute.
    """
    model = model.on(Target.of(device))
    used, chosen = convolutions(model, batch_size), []
    if not used:
        return model
    layers = {layer: rule for layer, rule in used if clients * batch_size * layer.work >= least_work}
    line = f"timing lowerings of {len(layers)} convolutions, once on this machine"
    tell = functools.cache(lambda: announce(line))
    behind = {layer for layer, _ in used[1:]}  # the network's images need no gradient
    for layer, rule in layers.items():
        arguments = layer, batch_size, clients, layer in behind
        seconds = {rule: math.inf} | _remembered(device, arguments, tell)
        fastest = min(seconds, key=seconds.get)
        chosen.append((layer, fastest if seconds[fastest] < _CLEARLY * seconds[rule] else rule))
    return model.with_module(lowering=TimedLowerings(tuple(sorted(chosen))))


def _remembered(device, arguments, tell) -> dict[str, float]:
    """Seconds of one step of the layer by each lowering; of one without another to compare with, 0.

    ``arguments``: those of ``_compiled`` behind the device; ``tell`` is called before anything is timed.
    """
    lowerings = candidates(arguments[0], Target.of(device))
    if len(lowerings) == 1:
        return dict.fromkeys(lowerings, 0.0)

    def measure():
        tell()
        return _measure(lowerings, device, *arguments)

    return remembered("lowerings", device, (*arguments, lowerings), measure)


def _measure(lowerings, device, *arguments):
    """Seconds of a step by each lowering, timed by turns: what else the machine does disturbs all of them alike."""
    taken = {lowering: _compiled(lowering, device, *arguments) for lowering in lowerings}
    seconds = {lowering: taken[lowering](1) for lowering in lowerings}
    steps = {lowering: max(1, round(_SECONDS / seconds[lowering])) for lowering in lowerings}
    for _ in range(_TIMINGS):
        limit = _HOPELESS * min(seconds.values())
        for lowering in lowerings:
            if seconds[lowering] <= limit:
                seconds[lowering] = min(seconds[lowering], taken[lowering](steps[lowering]) / steps[lowering])
    return seconds


def _compiled(lowering, device, layer, batch_size, clients, has_gradient):
    """A function that says what so many steps of the layer take, forward and backward, of so many clients.

    ``has_gradient``: whether their images need a gradient too.
    """
    how = layer.convolution(lowering, Target.of(device))
    lead = () if clients == 1 else (clients,)

    def step(images, kernel):
        if not has_gradient:
            outputs, pull = jax.vjp(functools.partial(convolve, images, how=how), kernel)
            return images, kernel - 1e-3 * pull(outputs)[0]
        outputs, pull = jax.vjp(functools.partial(convolve, how=how), images, kernel)
        return jax.tree.map(lambda value, change: value - 1e-3 * change, (images, kernel), pull(outputs))

    @jax.jit
    def run(steps, images, kernel):
        each = jax.vmap(step) if lead else step
        return jax.lax.fori_loop(0, steps, lambda _, carry: each(*carry), (images, kernel))

    images = jnp.full((*lead, batch_size, *layer.image), 1e-2, layer.dtype)
    kernel = jnp.full((*lead, *layer.kernel), 1e-2, layer.dtype)
    arguments = jax.device_put((images, kernel), device)

    def taken(steps):
        start = time.perf_counter()
        jax.block_until_ready(run(steps, *arguments))
        return time.perf_counter() - start

    taken(1)  # compiles
    return taken

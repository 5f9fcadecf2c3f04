"""The fastest lowering of each convolution of a network on a device, timed once and cached.

The cost analysis of a GPU's programs gives the data they move, not the speed of its libraries, and CPUs of
different makers differ as well. So each layer is run by itself, forward and backward, with as many clients at once as
a round has, in a loop like that of a round's steps.
"""

import contextlib
import functools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from fedjax_collapse.core.target import Target
from fedjax_collapse.engine.memory import free_bytes, program_bytes, size_in_bytes
from fedjax_collapse.engine.timing_cache import cached_numbers
from fedjax_collapse.nn.inspection import convolutions
from fedjax_collapse.nn.lowerings.convolution import TimedLowerings, candidates, convolve
from fedjax_collapse.nn.model import Model

WORTHWHILE = 2**25  # multiply-adds of a layer; timing smaller layers takes longer than most studies would save
MIN_SPEEDUP = 0.9  # the largest fraction of the default lowering's time that replaces it; smaller gains are noise
_SECONDS = 0.05  # the least duration of a timing
_TIMINGS = 5  # of which the fastest counts
Wait = Callable[[str, int], contextlib.AbstractContextManager[Callable[[], None]]]
_HOPELESS = 3  # times the fastest time of a step; a lowering that took longer in a whole timing is not timed again


def with_timed_lowerings(
    model: Model,
    batch_size: int,
    clients: int,
    device: jax.Device,
    least_work: int = 0,
    wait: Wait = lambda what, total: contextlib.nullcontext(lambda: None),
) -> Model:
    """Returns the model with the lowerings of its convolutions that are fastest on the device.

    The lowering of ``auto`` stays unless another one is clearly faster. Timings are stored in the cache folder, where
    they are found again for an equal layer, device, precision and version of JAX.

    Args:
        model: the model; returned for this device's target, otherwise unchanged, if it has no convolutions, or if its
            network has no field ``lowering`` to choose them by.
        batch_size: of each client.
        clients: the number of clients that train at once on the device.
        device: the device.
        least_work: layers with fewer multiply-adds on a batch of each client are not timed.
        wait: called with a line and the number of layers, gives a context for the timing, which takes seconds to a
            minute, and in it a function that is called after each layer.
    """
    model = model.on(Target.of(device))
    used, chosen = convolutions(model, batch_size), []
    if not used or not hasattr(model.module, "lowering"):
        return model
    layers = {layer: rule for layer, rule in used if clients * batch_size * layer.work >= least_work}
    later = {layer for layer, _ in used[1:]}  # the inputs of the first layer, the images, need no gradient
    line = f"timing lowerings of {len(layers)} convolutions, once on this machine"
    with wait(line, len(layers)) as advance:
        for layer, rule in layers.items():
            seconds = {rule: math.inf} | _cached_seconds(device, layer, batch_size, clients, layer in later)
            fastest = min(seconds, key=seconds.get)
            chosen.append((layer, fastest if seconds[fastest] < MIN_SPEEDUP * seconds[rule] else rule))
            advance()
    return model.with_module(lowering=TimedLowerings(tuple(sorted(chosen))))


def _cached_seconds(device, *arguments) -> dict[str, float]:
    """Returns the seconds of one step of the layer by each lowering; 0 for the only candidate.

    ``arguments`` are those of ``_compiled`` after the device.
    """
    lowerings = candidates(arguments[0], Target.of(device))
    if len(lowerings) == 1:
        return dict.fromkeys(lowerings, 0.0)
    measure = functools.partial(_measure, lowerings, device, *arguments)
    return cached_numbers("lowerings", device, (*arguments, lowerings), measure)


def _measure(lowerings, device, *arguments):
    """Returns the seconds of a step by each lowering, timed alternately so that other load affects all alike.

    A lowering that does not fit into the device's memory is left out. The first run of a program may load libraries,
    and the first timed step only determines their number: to start a program on a GPU takes longer than many steps.
    """
    free = free_bytes([device])
    with ThreadPoolExecutor(len(lowerings)) as pool:
        programs = pool.map(lambda lowering: _compiled(lowering, device, free, *arguments), lowerings)
        compiled = dict(zip(lowerings, programs, strict=True))
    for first_run in compiled.values():
        first_run(1)
    seconds = {lowering: compiled[lowering](1) for lowering in lowerings}
    for timing in range(_TIMINGS):
        limit = _HOPELESS * min(seconds.values()) if timing else math.inf
        for lowering in lowerings:
            if seconds[lowering] <= limit:
                steps = max(1, round(_SECONDS / seconds[lowering]))
                seconds[lowering] = min(seconds[lowering], compiled[lowering](steps) / steps)
    return {lowering: taken for lowering, taken in seconds.items() if taken < math.inf}


def _compiled(lowering, device, free, layer, batch_size, clients, has_gradient):
    """Returns a function that measures the seconds of a number of steps of the layer, forward and backward.

    They are infinite if that needs more than the ``free`` bytes. ``has_gradient`` is whether the layer's inputs need
    a gradient too.
    """
    how = layer.convolution(lowering, Target.of(device))
    lead = () if clients == 1 else (clients,)

    def step(images, kernel):
        if not has_gradient:
            outputs, pull = jax.vjp(functools.partial(convolve, images, how=how), kernel)
            return images, kernel - 1e-3 * pull(outputs)[0]
        outputs, pull = jax.vjp(functools.partial(convolve, how=how), images, kernel)
        return jax.tree.map(lambda value, change: value - 1e-3 * change, (images, kernel), pull(outputs))

    def run(steps, images, kernel):
        each = jax.vmap(step) if lead else step
        return jax.lax.fori_loop(0, steps, lambda _, carry: each(*carry), (images, kernel))

    shapes = (*lead, batch_size, *layer.image), (*lead, *layer.kernel)
    arguments = [jax.ShapeDtypeStruct(shape, layer.dtype, sharding=SingleDeviceSharding(device)) for shape in shapes]
    compiled = functools.cache(jax.jit(run).lower(1, *arguments).compile)
    if size_in_bytes(arguments) + program_bytes(compiled) > free:
        return lambda steps: math.inf

    def seconds_of(steps):
        images, kernel = jax.block_until_ready([jnp.full(shape, 1e-2, layer.dtype, device=device) for shape in shapes])
        start = time.perf_counter()
        jax.block_until_ready(compiled()(steps, images, kernel))
        return time.perf_counter() - start

    return seconds_of

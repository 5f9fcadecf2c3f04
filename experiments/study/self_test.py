"""Compares compiled rounds with the debug layout, which runs the same round operation by operation.

The cases are rounds of federated averaging with each kind of layer, on small synthetic images. They are compiled in
this process, with its flags and for its device, and run uncompiled in another one, on a CPU and with the fewest
compiler optimizations. Known miscompilations (``fedjax_collapse/core/compiler_bugs.py``) are checked as well.
"""

import contextlib
import functools
import hashlib
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib
import numpy as np

import fedjax_collapse
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, nn, simulate
from fedjax_collapse.core import _jax_compat, compiler_bugs
from fedjax_collapse.engine.timing_cache import load_numbers, store_numbers
from fedjax_collapse.nn.network import HEADS
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.schema.user_code import one_line

TOLERANCE, LOOSE_TOLERANCE = 1e-4, 2e-2  # for float32 on CPUs; for products of lower precision
_CLASSES, _SIZES, _TESTS, _SIZE = 10, (20, 40), 32, 16
_TRAINING = LocalTraining(epochs=1, batch_size=32, learning_rate=0.05, momentum=0.5)
_KIND = "self_tests"

Found = dict[str, np.ndarray]


class Outcome(NamedTuple):
    """The result of a case: the largest relative difference, infinite if a program crashes, and its limit."""

    name: str
    difference: float
    limit: float

    @property
    def is_right(self) -> bool:
        return self.difference <= self.limit


def run() -> Iterator[Outcome]:
    """Yields the outcome of every case as soon as it is known, and caches all of them for ``verdict``."""
    found = []
    for outcome in _outcomes():
        found.append(outcome)
        yield outcome
    device, key = _place()
    store_numbers(_KIND, device, key, {outcome.name: float(outcome.is_right) for outcome in found})


def verdict() -> str:
    """Returns the last result of ``run`` with this code, device, flags and versions: passed, the error, or not run."""
    found = load_numbers(_KIND, *_place())
    if found is None:
        return "not run"
    wrong = [name for name, is_right in found.items() if not is_right]
    return f"wrong: {', '.join(wrong)}" if wrong else f"passed, {len(found)} cases"


def _outcomes():
    context, cases = multiprocessing.get_context("spawn"), models()  # a process that has started JAX cannot fork
    # a single process, since rounds share small programs
    with ProcessPoolExecutor(1, context, _compile_with_least_effort) as pool:
        try:
            expected = {name: pool.submit(uncompiled, model) for name, model in cases.items()}
            for name in compiler_bugs.PROGRAMS:
                is_right = compiler_bugs.is_right_in_fresh_process(name)
                yield Outcome(f"program {name}", 0.0 if is_right else np.inf, 0.0)
            for name, model in cases.items():
                yield _tried(name, model, expected[name])
        finally:  # also after Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)


def _tried(name, model, expected):
    is_exact = engine.available_devices()[0].platform == "cpu" and getattr(model.module, "dtype", None) is None
    limit = TOLERANCE if is_exact else LOOSE_TOLERANCE
    try:
        return Outcome(name, difference(compiled(model), expected.result()), limit)
    except Exception as error:  # from a compiler, or from the other process
        print(f"{name}: {one_line(error)}", file=sys.stderr)
        return Outcome(name, np.inf, limit)


def _compile_with_least_effort():
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    if jaxlib.__version__.startswith("0.10."):  # removed in later versions
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    _jax_compat.guard()
    jax.config.update("jax_platforms", "cpu")


def models() -> dict[str, Model]:
    """Returns networks that together have each kind of layer, by the names of their cases."""
    cnn = functools.partial(nn.SmallCNN, _CLASSES, norm="none")
    modules = {
        "dense layers": nn.MLP(_CLASSES, hidden=(32, 32)),
        "patches, BatchNorm, max-pool": cnn(channels=(8, 16), norm="batch", lowering="patches"),
        "Winograd F(2x2), GroupNorm": cnn(channels=(16,), norm="group", lowering="winograd2"),
        "Winograd F(4x4)": cnn(channels=(8,), lowering="winograd4"),
        "strips": cnn(channels=(8,), lowering="strips"),
        "product, BatchNorm with ReLU": nn.MobileNetV2(
            _CLASSES, width_multiplier=1 / 4, stages=((6, 3, 1, 2),), lowering="product+xla+fused_norm"
        ),
        "lax.conv, bfloat16": cnn(channels=(8,), lowering="xla", dtype="bfloat16"),
        "depthwise, excitation, dropout": nn.EfficientNetB0(
            _CLASSES, width_multiplier=1 / 4, stages=((6, 3, 2, 16, 1),)
        ),
    }
    for projector, (name, head) in zip(itertools.cycle(("moon", "feddecorr", "feduv")), HEADS.items(), strict=False):
        module = nn.MLP(_CLASSES, hidden=(32,), projector=projector, head=head)
        modules[f"projector {projector}, head {name}"] = module
    return {name: Model(module, _federation().input_shape) for name, module in modules.items()}


def compiled(model: Model) -> Found:
    """Returns the results of a round, compiled as in a run, on an accelerator with full products instead of TF32."""
    is_cpu = engine.available_devices()[0].platform == "cpu"
    with contextlib.nullcontext() if is_cpu else jax.default_matmul_precision("highest"):
        return _round(model, engine.Chunked(1))


def uncompiled(model: Model) -> Found:
    """Returns the results of a round in the debug layout."""
    return _round(model, engine.Loop())


def difference(found: Found, expected: Found) -> float:
    """Returns the largest norm of a difference, relative to the expected norm; infinite if a value is not finite."""
    if not all(np.isfinite(part).all() for part in (*found.values(), *expected.values())):
        return np.inf
    norm = np.linalg.norm
    return max(float(norm(found[part] - of_part) / (norm(of_part) or 1.0)) for part, of_part in expected.items())


def _round(model, client_map):
    """Returns a round's change of the variables, its metrics, and the logits of an evaluation, as vectors."""
    federation, key = _federation(), jax.random.key(0)
    model, before = model.on(client_map.target), jax.device_get(model.init(key))
    run = simulate(federation, model, FedAvg(_TRAINING), rounds=1, key=key, variables=before, client_map=client_map)
    change = jax.tree.map(lambda a, b: np.asarray(a, float) - b, jax.device_get(run.variables), before)
    with jax.disable_jit(not client_map.is_compiled):
        logits = evaluate(model, run.variables, federation.test).logits
    found = {**change._asdict(), "metrics": run.clients, "logits": logits}
    return {name: _vector(tree) for name, tree in found.items()}


def _vector(tree):
    leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(jax.device_get(tree))]
    return np.concatenate([np.zeros(0), *leaves])


@functools.cache
def _federation() -> Federation:
    """Returns two clients with 16x16x3 images; each class has its own colours."""
    rng, count = np.random.default_rng(0), sum(_SIZES)
    labels = rng.integers(0, _CLASSES, count + _TESTS)
    colours = rng.integers(0, 128, (_CLASSES, 1, 1, 3))
    images = (rng.integers(0, 128, (len(labels), _SIZE, _SIZE, 3)) + colours[labels]).astype(np.uint8)
    parts = np.split(np.arange(count), np.cumsum(_SIZES)[:-1])
    train, test = slice(count), slice(count, None)
    return Federation.from_arrays(images[train], labels[train], parts, images[test], labels[test], 128.0, 64.0)


def _place():
    """Returns the device, and the code, on which the verdict depends besides JAX and its flags."""
    sources = sorted(Path(fedjax_collapse.__file__).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return engine.available_devices()[0], code

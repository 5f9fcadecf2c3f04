"""Compiled rounds beside the debug layout, which runs the same round operation by operation.

A round with each kind of layer and rounds with every method, on small synthetic images: compiled in this process, with
its flags and for its device, and uncompiled in another one, on a CPU and with the least that compilers do. Also the
programs that a compiler is known to have got wrong (``fedjax_collapse/core/compiler_bugs.py``).
"""

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
from experiments.benchmarks.overheads import accepted
from experiments.config import names
from experiments.study.failures import one_line
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, nn
from fedjax_collapse.core import compiler_bugs
from fedjax_collapse.simulation.evaluation import evaluate
from fedjax_collapse.simulation.runs import Run, Schedule, initialize
from fedjax_collapse.storage.timing_cache import recalled, remember

TOLERANCE, LOOSE_TOLERANCE = 1e-4, 2e-2  # of float32 on CPUs; where products are of fewer bits
_CLASSES, _SIZES, _TESTS, _SIZE = 10, (20, 40), 32, 16
_TRAINING = LocalTraining(epochs=1, batch_size=32, learning_rate=0.05, momentum=0.5)
_TOGETHER = 7  # methods in a round, which compiles faster than a round of each
_KIND = "self_tests"

Found = dict[str, np.ndarray]


class Case(NamedTuple):
    """A round that is compared."""

    name: str
    model: Model
    algorithm: FedAvg = FedAvg(_TRAINING)


class Outcome(NamedTuple):
    """What is found of a case: the largest relative difference, infinite where a program crashes, and its limit."""

    name: str
    difference: float
    limit: float

    @property
    def is_right(self) -> bool:
        return self.difference <= self.limit


def run() -> Iterator[Outcome]:
    """The outcome of every case, as soon as it is known; all of them are remembered for ``verdict``."""
    found = []
    for outcome in _outcomes():
        found.append(outcome)
        yield outcome
    device, key = _place()
    remember(_KIND, device, key, {outcome.name: float(outcome.is_right) for outcome in found})


def verdict() -> str:
    """What ``run`` last found with this code, these devices, flags and versions: passed, what is wrong, or not run."""
    found = recalled(_KIND, *_place())
    if found is None:
        return "not run"
    wrong = [name for name, is_right in found.items() if not is_right]
    return f"wrong: {', '.join(wrong)}" if wrong else f"passed, {len(found)} cases"


def cases() -> list[Case]:
    """All rounds that are compared."""
    return [*layers(), *methods()]


def _outcomes():
    apart = multiprocessing.get_context("spawn")  # a process that has started JAX cannot fork
    with ProcessPoolExecutor(1, apart, _compile_with_least_effort) as pool:  # one, as rounds share small programs
        try:
            expected = [(case, pool.submit(uncompiled, case)) for case in cases()]
            for name in compiler_bugs.BUGS:
                is_right = compiler_bugs.is_right_in_fresh_process(name)
                yield Outcome(f"program {name}", 0.0 if is_right else np.inf, 0.0)
            for case, of_case in expected:
                yield _tried(case, of_case)
        finally:  # of Ctrl-C, too
            pool.shutdown(wait=False, cancel_futures=True)


def _tried(case, expected):
    try:
        return compare(case, compiled(case), expected.result())
    except Exception as error:  # of a compiler, or of the other process
        print(f"{case.name}: {one_line(error)}", file=sys.stderr)
        return Outcome(case.name, np.inf, TOLERANCE)


def _compile_with_least_effort():
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    if jaxlib.__version__.startswith("0.10."):  # later ones do not know it
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    compiler_bugs.guard()
    jax.config.update("jax_platforms", "cpu")


def layers() -> Iterator[Case]:
    """A round of federated averaging with each kind of layer."""
    cnn = functools.partial(nn.SmallCNN, _CLASSES, norm="none")
    modules = {
        "dense layers": nn.MLP(_CLASSES, hidden=(32, 32)),
        "patches, BatchNorm, max-pool": cnn(channels=(8, 16), norm="batch", lowering="patches"),
        "winograd, GroupNorm": cnn(channels=(16,), norm="group", lowering="winograd"),
        "strips": cnn(channels=(8,), lowering="strips"),
        "lax.conv, bfloat16": cnn(channels=(8,), lowering="xla", dtype="bfloat16"),
        "depthwise, excitation, dropout": nn.EfficientNetB0(
            _CLASSES, width_multiplier=1 / 4, stages=((6, 3, 2, 16, 1),)
        ),
    }
    heads = names.classes("head")
    for projector, name in itertools.zip_longest(("moon", "feddecorr", "feduv"), heads, fillvalue="linear"):
        module = nn.MLP(_CLASSES, hidden=(32,), projector=projector, head=heads[name])
        modules[f"projector {projector}, head {name}"] = module
    for name, module in modules.items():
        yield Case(name, Model(module, _federation().input_shape))


def methods() -> Iterator[Case]:
    """Rounds with every method, as many in one as go together."""
    modules = nn.MLP(_CLASSES, hidden=(32,)), nn.SmallCNN(_CLASSES, channels=(16,))
    models = [Model(module, _federation().input_shape) for module in modules]

    def model_for(group):
        algorithm = FedAvg(_TRAINING, {name: kind() for name, kind in group.items()})
        return next(filter(None, (accepted(algorithm, model) for model in models)), None), algorithm

    groups = []
    for name, kind in names.classes("method").items():
        open_groups = (group for group in groups if len(group) < _TOGETHER and model_for({**group, name: kind})[0])
        group = next(open_groups, None)
        if group is None:
            groups.append(group := {})
        group[name] = kind
    for group in groups:
        yield Case(", ".join(group), *model_for(group))


def compiled(case: Case) -> Found:
    """What the case's round leaves, compiled as in a run."""
    return _round(case, engine.Chunked(1))


def uncompiled(case: Case) -> Found:
    """The same of the debug layout."""
    return _round(case, engine.Loop())


def compare(case: Case, found: Found, expected: Found) -> Outcome:
    """The largest difference between what the two leave."""
    is_exact = engine.available_devices()[0].platform == "cpu" and getattr(case.model.module, "dtype", None) is None
    difference = max(_difference(found[part], expected[part]) for part in expected)
    return Outcome(case.name, difference, TOLERANCE if is_exact else LOOSE_TOLERANCE)


def _round(case, client_map):
    """What a round moves and logs, as vectors; of a network also the logits that an evaluation makes."""
    run, model = Run(_federation(), case.algorithm, jax.random.key(0)), case.model.on(client_map.target)
    start = initialize(run, model, Schedule(1))
    before = jax.device_get(start[1]._replace(key=()))  # the rounds take its buffers
    rounds = engine.Rounds(model, engine.Layout(client_map, len(_SIZES)))
    program = engine.Program(rounds, [start], run.federation.train)
    program.prepare()
    (advance,), (after,) = program.advance(1), program.states()
    variables, moved = after.server.variables, _moved(after.server, before.server)
    found = {
        "params": _vector(moved.variables.params),
        "statistics": _vector(moved.variables.batch_stats),
        "memory": _vector((moved._replace(variables=()), _moved(after.clients, before.clients))),
        "metrics": _vector(advance.record.metrics),
    }
    if not case.algorithm.methods:
        with jax.disable_jit(not client_map.is_compiled):
            found["logits"] = _vector(evaluate(model, variables, run.federation.test).logits)
    return found


def _moved(after, before):
    return jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), jax.device_get(after), before)


def _vector(tree):
    leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(jax.device_get(tree))]
    return np.concatenate([np.zeros(0), *leaves])


def _difference(found, expected):
    """Relative, of lengths; infinite where one is not finite."""
    if not np.isfinite(found).all() or not np.isfinite(expected).all():
        return np.inf
    length = np.linalg.norm(expected)
    return float(np.linalg.norm(found - expected) / (length or 1.0))


@functools.cache
def _federation() -> Federation:
    """Two clients of images 16x16x3; those of each class have their own colours."""
    rng, count = np.random.default_rng(0), sum(_SIZES)
    labels = rng.integers(0, _CLASSES, count + _TESTS)
    colours = rng.integers(0, 128, (_CLASSES, 1, 1, 3))
    images = (rng.integers(0, 128, (len(labels), _SIZE, _SIZE, 3)) + colours[labels]).astype(np.uint8)
    parts = np.split(np.arange(count), np.cumsum(_SIZES)[:-1])
    train, test = slice(count), slice(count, None)
    return Federation.from_arrays(images[train], labels[train], parts, images[test], labels[test], 128.0, 64.0)


def _place():
    """The device, and what the verdict depends on but its kind, JAX and the flags."""
    sources = sorted(Path(fedjax_collapse.__file__).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return engine.available_devices()[0], code

"""Compares compiled rounds with the debug layout, which runs the same round operation by operation.

The cases are a round with each kind of layer and rounds with every method, on small synthetic images. They are compiled
in this process, with its flags and for its device, and run uncompiled in another one, on a CPU and with the fewest
compiler optimizations. Known miscompilations (``fedjax_collapse/core/compiler_bugs.py``) are checked as well.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax
import jaxlib
import numpy as np

import fedjax_collapse
from fedjax_collapse import FedAvg, Federation, LocalTraining, Model, engine, nn
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.core import compiler_bugs
from fedjax_collapse.core.records import UserError
from fedjax_collapse.engine.timing_cache import load_numbers, store_numbers
from fedjax_collapse.nn.adapters import LoRA
from fedjax_collapse.nn.network import HEADS
from fedjax_collapse.run.evaluation import evaluate
from fedjax_collapse.run.runs import Run, Schedule, initialize
from fedjax_collapse.schema.user_code import one_line

TOLERANCE, LOOSE_TOLERANCE = 1e-4, 2e-2  # for float32 on CPUs; for products of lower precision
_CLASSES, _SIZES, _TESTS, _SIZE = 10, (20, 40), 32, 16
_TRAINING = LocalTraining(epochs=1, batch_size=32, learning_rate=0.05, momentum=0.5)
_PER_ROUND = 7  # methods in a round, which compiles faster than a round for each
_KIND = "self_tests"

Found = dict[str, np.ndarray]


class Case(NamedTuple):
    """A round that is compared."""

    name: str
    model: Model
    algorithm: FedAvg = FedAvg(_TRAINING)


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
    """Returns what ``run`` last found with this code, device, flags and versions: passed, what is wrong, or not run."""
    found = load_numbers(_KIND, *_place())
    if found is None:
        return "not run"
    wrong = [name for name, is_right in found.items() if not is_right]
    return f"wrong: {', '.join(wrong)}" if wrong else f"passed, {len(found)} cases"


def cases() -> list[Case]:
    """Returns all rounds that are compared."""
    return [*layers(), *methods()]


def _outcomes():
    context = multiprocessing.get_context("spawn")  # a process that has started JAX cannot fork
    # a single process, since rounds share small programs
    with ProcessPoolExecutor(1, context, _compile_with_least_effort) as pool:
        try:
            expected = [(case, pool.submit(uncompiled, case)) for case in cases()]
            for name in compiler_bugs.BUGS:
                is_right = compiler_bugs.is_right_in_fresh_process(name)
                yield Outcome(f"program {name}", 0.0 if is_right else np.inf, 0.0)
            for case, of_case in expected:
                yield _tried(case, of_case)
        finally:  # also after Ctrl-C
            pool.shutdown(wait=False, cancel_futures=True)


def _tried(case, expected):
    try:
        return compare(case, compiled(case), expected.result())
    except Exception as error:  # from a compiler, or from the other process
        print(f"{case.name}: {one_line(error)}", file=sys.stderr)
        return Outcome(case.name, np.inf, TOLERANCE)


def _compile_with_least_effort():
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    if jaxlib.__version__.startswith("0.10."):  # removed in later versions
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"
    compiler_bugs.guard()
    jax.config.update("jax_platforms", "cpu")


def layers() -> Iterator[Case]:
    """Yields a round of federated averaging with each kind of layer."""
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
    heads = HEADS
    for projector, (name, head) in zip(itertools.cycle(("moon", "feddecorr", "feduv")), heads.items(), strict=False):
        module = nn.MLP(_CLASSES, hidden=(32,), projector=projector, head=head)
        modules[f"projector {projector}, head {name}"] = module
    for name, module in modules.items():
        yield Case(name, Model(module, _federation().input_shape))


def methods() -> Iterator[Case]:
    """Yields rounds with every method, with as many compatible methods in one round as possible.

    By themselves are those of adapters, beside which the network is frozen, and those with noise for all uploads, which
    allow no other reports.
    """
    modules = nn.MLP(_CLASSES, hidden=(32,)), nn.SmallCNN(_CLASSES, channels=(16,))
    models = [Model(module, _federation().input_shape) for module in modules]

    def model_for(group):
        algorithm = FedAvg(_TRAINING, {name: kind() for name, kind in group.items()})
        return first_accepted(algorithm, models), algorithm

    def goes_with(group, extended):
        is_alone = any(kind.needs_adapters or kind().has("perturb") for kind in extended.values())
        return len(group) < _PER_ROUND and not is_alone and model_for(extended)[0]

    groups = []
    for name, kind in METHODS.items():
        group = next((group for group in groups if goes_with(group, {**group, name: kind})), None)
        if group is None:
            groups.append(group := {})
        group[name] = kind
    for group in groups:
        yield Case(", ".join(group), *model_for(group))


def compiled(case: Case) -> Found:
    """Returns the results of the case's round, compiled as in a run, on an accelerator with full products.

    Its default ones, TF32 on a GPU, round so much that methods which choose uploads by their distances differ by 4 %.
    """
    is_cpu = engine.available_devices()[0].platform == "cpu"
    with contextlib.nullcontext() if is_cpu else jax.default_matmul_precision("highest"):
        return _round(case, engine.Chunked(1))


def uncompiled(case: Case) -> Found:
    """Returns the results of the case's round in the debug layout."""
    return _round(case, engine.Loop())


def compare(case: Case, found: Found, expected: Found) -> Outcome:
    """Returns the largest difference between the two results."""
    is_exact = engine.available_devices()[0].platform == "cpu" and getattr(case.model.module, "dtype", None) is None
    difference = max(_difference(found[part], expected[part]) for part in expected)
    return Outcome(case.name, difference, TOLERANCE if is_exact else LOOSE_TOLERANCE)


def _round(case, client_map):
    """Returns the changes and metrics of a round, as vectors; for a network also the logits of an evaluation."""
    run, model = Run(_federation(), case.algorithm, jax.random.key(0)), case.model.on(client_map.target)
    start = initialize(run, model, Schedule(1))
    before = jax.device_get(start[1]._replace(key=()))  # the rounds donate its buffers
    rounds = engine.RoundSpec(model, engine.Layout(client_map, len(_SIZES)))
    program = engine.Program(rounds, [start], run.federation.train)
    program.prepare()
    (advance,), (after,) = program.advance(1), program.states()
    variables, change = after.server.variables, _change(after.server, before.server)
    found = {
        "params": _vector(change.variables.params),
        "statistics": _vector(change.variables.batch_stats),
        "memory": _vector((change._replace(variables=()), _change(after.clients, before.clients))),
        "metrics": _vector(advance.record.metrics),
    }
    if not case.algorithm.methods:
        with jax.disable_jit(not client_map.is_compiled):
            found["logits"] = _vector(evaluate(model, variables, run.federation.test).logits)
    return found


def _change(after, before):
    return jax.tree.map(lambda a, b: np.asarray(a, float) - np.asarray(b, float), jax.device_get(after), before)


def _vector(tree):
    leaves = [np.ravel(np.asarray(leaf, float)) for leaf in jax.tree.leaves(jax.device_get(tree))]
    return np.concatenate([np.zeros(0), *leaves])


def _difference(found, expected):
    """Returns the norm of the difference relative to the expected norm; infinite if a value is not finite."""
    if not np.isfinite(found).all() or not np.isfinite(expected).all():
        return np.inf
    length = np.linalg.norm(expected)
    return float(np.linalg.norm(found - expected) / (length or 1.0))


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


def accepted(algorithm: FedAvg, model: Model) -> Model | None:
    """The model with the first head, starting with its own, that all methods of the algorithm accept; None if none."""
    has_head = any(field.name == "head" for field in dataclasses.fields(model.module))
    heads = HEADS.values() if has_head else ()
    for other in (model, *(model.with_module(head=head) for head in heads)):
        try:
            algorithm.check(other)
        except UserError:
            continue
        return other
    return None


def first_accepted(algorithm: FedAvg, models: Sequence[Model]) -> Model | None:
    """The first model, perhaps with another head, or else the first one with adapters, that all methods accept."""
    adapted = dataclasses.replace(models[0], adapters=LoRA(2, 8.0, layers=("all",)))
    return next(filter(None, (accepted(algorithm, model) for model in (*models, adapted))), None)

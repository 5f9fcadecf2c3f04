"""Shared by all tests: eight CPU devices, float64 on demand, small federations."""

import contextlib
import gc
import inspect
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

# Hundreds of programs run for milliseconds each, so they are compiled with little effort, in 40 % of the time; without
# fused multiply-adds, which would round two programs of the same sums differently. XLA_FLAGS="" compiles as for users.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_max_isa=AVX"
    # a later JAX, as for Python 3.12, ends at a flag that it does not know; a program is compiled in one piece, as to
    # divide it takes longer than what is gained where each core has a test to run
    + " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    * version("jax").startswith("0.10."),
)

import jax
import numpy as np
import pytest
from flax import struct
from unrendered import svg as unrendered_svg

from fedjax_collapse import Federation, LocalTraining, Model, Participation, UserError, engine, nn, partition, simulate
from fedjax_collapse.engine import rounds as engine_rounds
from fedjax_collapse.engine import timing
from fedjax_collapse.run import simulation

TRAINING = LocalTraining(batch_size=8, learning_rate=0.05, momentum=0.5)  # of most tests, which so share programs
TWO_EPOCHS = TRAINING.replace(epochs=2)

gc.set_threshold(100_000, 20, 20)  # the search for garbage takes a tenth of the time otherwise: tracing makes much
jax.config.update("jax_num_cpu_devices", 8)
# compiled programs are kept beside pytest's own cache, for the other workers and for the next run
jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)


def pytest_collection_finish():
    """The objects of imports are never searched for garbage again."""
    gc.freeze()
    sys.dont_write_bytecode = True  # of a config that is changed within a second, the bytecode would still be the old


def long_where(long, values):
    """The parameters of a test, of which those with these names are marked ``long``."""
    return [pytest.param(value, marks=pytest.mark.long) if value in long else value for value in values]


def cases(*values):
    """The test's first parameter has these values in turn; its first ones, if they are tuples."""
    width = len(values[0]) if isinstance(values[0], tuple) else 1

    def mark(test):
        names = ",".join([*inspect.signature(test).parameters][:width])
        return pytest.mark.parametrize(names, values)(test)

    return mark


@pytest.fixture(autouse=True, scope="session")
def nothing_waits_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def clear_caches():
    """Compiled programs are dropped after a module if they are many: a process may hold only so many memory maps."""
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or len(maps.read_bytes().splitlines()) > 5000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def nothing_depends_on_seconds(monkeypatch):
    """No convolution is timed, as what is fastest beside other tests is chance; runs stop after evaluations only."""
    monkeypatch.setattr(timing, "_cached_seconds", lambda *arguments, **options: {})
    monkeypatch.setattr(simulation, "PATIENCE", float("inf"))


def forget_rounds():
    """Drops the programs of rounds, as they contain what a test has replaced in the library."""
    engine_rounds._run_rounds_compiled.clear_cache()
    engine_rounds._with_first_reports.clear_cache()


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """What the library caches, such as decoded data, is in the folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def unrendered(monkeypatch):
    """Figures of a page are made; to lay them out and to render them, which takes long, is left out."""
    monkeypatch.setattr("fedjax_collapse.results.plot.drawing.svg", unrendered_svg)


@pytest.fixture
def float64():
    """64-bit floats for the test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def float64_everywhere():
    """64-bit floats in all threads, also in those that read checkpoints."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def in_order(monkeypatch, float64):
    """Rows are not shuffled, and floats have 64 bits."""
    monkeypatch.setattr("fedjax_collapse.training.local.loop.shuffled_rows", lambda key, rows, size: rows)
    yield
    forget_rounds()


@pytest.fixture
def compiled():
    """Names of the functions that the test has compiled so far."""
    names = []

    def note(event, seconds, fun_name="", **_):
        if event.endswith("backend_compile_duration"):
            names.append(fun_name)

    jax.monitoring.register_event_duration_secs_listener(note)
    yield names
    jax.monitoring.unregister_event_duration_listener(note)


@pytest.fixture
def said(capsys):
    """What a program prints with these arguments, if it ends well."""

    def said(program, *arguments):
        assert program.main([*arguments]) == 0
        return capsys.readouterr().out

    return said


@pytest.fixture
def interruptible():
    """Ctrl-C as Python has it, also where pytest runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # left as it was
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def federation() -> Federation:
    """Five clients with 7 to 40 coloured images of four classes: ragged, with partial last batches."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 110)
    images = rng.integers(0, 100, (110, 8, 8, 2)) + 40 * labels[:, None, None, None] * (np.arange(8) % 2)[:, None, None]
    sizes = [23, 7, 40, 21, 19]
    parts = np.split(rng.permutation(110), np.cumsum(sizes)[:-1])
    return Federation.from_arrays(
        images.astype(np.uint8), labels, parts, images[:30].astype(np.uint8), labels[:30], 100.0, 64.0
    )


@pytest.fixture(scope="session")
def model(federation) -> Model:
    return Model(nn.SmallCNN(4, channels=(6,)), federation.input_shape)


@pytest.fixture(scope="session")
def network(federation) -> Model:
    """The smallest network, where it does not matter which."""
    return Model(nn.MLP(4, hidden=(6,)), federation.input_shape)


@pytest.fixture(scope="session")
def skewed(federation) -> Federation:
    """Clients with two of the four classes, with one and with all, of 9 to 31 examples."""
    all_classes, free, parts = [(0, 1), (2,), (0, 1, 2, 3), (2, 3), (0, 3)], set(range(110)), []
    for classes, size in zip(all_classes, (19, 9, 31, 13, 20), strict=True):
        own = [row for row in sorted(free) if np.array(federation.train.labels)[row] in classes][:size]
        parts.append(np.array(own))
        free -= set(own)
    parted = federation.with_partition(parts)
    assert [tuple(np.flatnonzero(counts)) for counts in parted.class_counts()] == all_classes
    return parted


@pytest.fixture(scope="session")
def of_one_class(federation) -> Federation:
    """Five clients with the examples of one class each, so that their updates point apart."""
    labels = np.asarray(federation.train.labels)
    first, *others = (np.flatnonzero(labels == c) for c in range(4))
    return federation.with_partition([first[:5], first[5:], *others])


@pytest.fixture(scope="session")
def digits() -> Federation:
    from fedjax_collapse import sources

    source = sources.digits()
    return Federation.from_source(source, partition.dirichlet(source.labels, 10, 0.1))


@struct.dataclass
class Given(Participation):
    """The cohort of every round is given."""

    cohort: jax.Array | None = None

    def draw(self, key, sizes, cohort_size):
        return self.cohort


@contextlib.contextmanager
def one_line(message):
    """Expects a UserError of one line that has the message."""
    with pytest.raises(UserError, match=message) as error:
        yield error
    assert "\n" not in str(error.value)


def check(message, function, /, *arguments, **options):
    """The call is rejected by one line that has the message."""
    with one_line(message):
        function(*arguments, **options)


def run_at_once(federation, model, algorithm, rounds=1, **options):
    """The result of a run whose clients are trained all at once, which compiles fastest."""
    arguments = dict(rounds=rounds, key=jax.random.key(0), client_map=engine.Vectorized()) | options
    return simulate(federation, model, algorithm, **arguments)


def assert_same_bits(first, second) -> None:
    """Every leaf of two trees is equal bit for bit (NaN equals NaN)."""
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), first, second)


def assert_close(first, second, tolerance: float) -> None:
    """Every leaf of two trees agrees; the tolerance is relative to its largest entry, absolute if that is below 1."""

    def check(a, b):
        a, b = np.asarray(a), np.asarray(b)
        largest = np.abs(b[np.isfinite(b)]).max(initial=1.0)
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * largest)

    jax.tree.map(check, first, second)

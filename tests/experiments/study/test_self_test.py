"""``fedjax-collapse check``: compiled rounds beside uncompiled ones, and the verdict that studies record."""

import numpy as np
import pytest
from conftest import cases

from experiments import launch
from experiments.commands import check
from experiments.study import self_test
from experiments.study.self_test import Outcome
from fedjax_collapse.nn.inspection import count_lowerings
from fedjax_collapse.nn.lowerings.convolution import LOWERINGS
from fedjax_collapse.nn.network import HEADS

pytestmark = pytest.mark.slow

RIGHT, WRONG = Outcome("first", 1e-6, 1e-4), Outcome("second", 1e-3, 1e-4)


@pytest.fixture
def find(monkeypatch, tmp_path):
    """A function that has the self-test find these outcomes; the cache is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(launch, "configure_jax", lambda cache: None)
    return lambda *outcomes: monkeypatch.setattr(self_test, "_outcomes", lambda: outcomes)


def test_the_verdict_is_cached_for_the_same_flags_and_code(find, monkeypatch, capsys):
    assert self_test.verdict() == "not run"
    find(RIGHT)
    assert check.main([]) == 0 and self_test.verdict() == "passed, 1 cases"
    printed = capsys.readouterr()
    assert "first" in printed.out and "1 of 1 right in" in printed.out and not printed.err
    with monkeypatch.context() as other:
        other.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true")
        assert self_test.verdict() == "not run"
    with monkeypatch.context() as other:
        other.setattr(self_test.Path, "read_bytes", lambda path: b"other code")
        assert self_test.verdict() == "not run"


def test_what_is_wrong_is_named_and_status_1(find, capsys):
    find(RIGHT, WRONG, Outcome("third", np.inf, 1e-4))
    assert check.main([]) == 1 and self_test.verdict() == "wrong: second, third"
    printed = capsys.readouterr()
    assert "1 of 3 right" in printed.out and printed.out.count("WRONG") == 2
    assert printed.err.startswith("error: compiled wrongly: second; third; see docs/") and printed.err.count("\n") == 1


def test_every_head_and_lowering_is_in_a_round():
    models = self_test.models().values()
    assert set(HEADS.values()) <= {getattr(model.module, "head", None) for model in models}
    assert {lowering for model in models for lowering in count_lowerings(model, 32)} == set(LOWERINGS) - {"auto"}


@pytest.fixture(scope="module")
def rounds():
    """A model, and the results of its round, compiled and not."""
    model = self_test.models()["dense layers"]
    return model, self_test.compiled(model), self_test.uncompiled(model)


def test_compiled_rounds_agree_with_the_debug_layout(rounds):
    _, found, expected = rounds
    assert self_test.difference(found, expected) < self_test.TOLERANCE / 10
    assert all(np.any(found[part]) for part in ("params", "metrics", "logits"))


@cases("params", "metrics", "logits")
def test_a_small_error_is_noticed(part, rounds):
    """One of a hundred numbers is a hundredth off, and all that depends on it as they were."""
    _, found, expected = rounds
    off = found[part].copy()
    largest = np.argsort(np.abs(off))[-len(off) // 100 :]
    off[largest] *= 1.01
    assert self_test.difference({**found, part: off}, expected) > self_test.TOLERANCE
    off[0] = np.nan
    assert self_test.difference({**found, part: off}, expected) == np.inf


def test_the_process_beside_it_gives_the_same(rounds, monkeypatch, tmp_path, capsys):
    """It compiles with other flags. A case that cannot be compiled is wrong, with a line that says why."""
    model, _, expected = rounds

    def compiled(given):
        if given is not model:
            raise RuntimeError("no such\ninstruction")
        return expected

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = model.with_module(hidden=(2,))
    monkeypatch.setattr(self_test, "models", lambda: {"dense layers": model, "broken": broken})
    monkeypatch.setattr(self_test.compiler_bugs, "PROGRAMS", {})
    monkeypatch.setattr(self_test, "compiled", compiled)
    assert [outcome.is_right for outcome in self_test.run()] == [True, False]
    assert self_test.verdict() == "wrong: broken"
    printed = capsys.readouterr().err
    assert "broken: " in printed and "no such instruction" in printed and printed.count("\n") == 1

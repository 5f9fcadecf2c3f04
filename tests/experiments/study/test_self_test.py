"""``fedjax-collapse check``: compiled rounds beside uncompiled ones, and the verdict that studies record."""

import numpy as np
import pytest

from experiments import launch
from experiments.commands import check
from experiments.study import self_test
from experiments.study.self_test import Outcome
from fedjax_collapse import nn
from fedjax_collapse.config.keys import METHODS
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


def test_wrong_arguments_are_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as error:
        check.main(["--what"])
    assert error.value.code == 2 and capsys.readouterr().err == "error: unrecognized arguments: --what\n"


def test_ctrl_c_leaves_the_last_verdict(find, monkeypatch, capsys):
    def interrupted():
        yield RIGHT
        raise KeyboardInterrupt

    find(RIGHT)
    check.main([])
    monkeypatch.setattr(self_test, "_outcomes", interrupted)
    assert check.main([]) == 130 and self_test.verdict() == "passed, 1 cases"
    assert "stopped" in capsys.readouterr().err


def test_every_method_head_and_lowering_is_in_a_round():
    cases = self_test.cases()
    assert {name for case in cases for name in case.algorithm.methods} == METHODS.keys()
    assert all(len(case.algorithm.methods) == 1 for case in cases if case.algorithm.having("perturb"))
    heads = {getattr(case.model.module, "head", None) for case in cases}
    assert set(HEADS.values()) <= heads
    lowerings = {lowering for case in cases for lowering in count_lowerings(case.model, 32)}
    assert lowerings == set(LOWERINGS) - {"auto"}


@pytest.fixture(scope="module")
def rounds():
    """A case, and what its round leaves, compiled and not."""
    case = next(case for case in self_test.layers() if isinstance(case.model.module, nn.MLP))
    return case, self_test.compiled(case), self_test.uncompiled(case)


def test_compiled_rounds_agree_with_the_debug_layout(rounds):
    outcome, (_, found, _) = self_test.compare(*rounds), rounds
    assert outcome.is_right and outcome.difference < outcome.limit / 10
    assert all(np.any(found[part]) for part in ("params", "metrics", "logits"))


@pytest.mark.parametrize("part", ["params", "metrics", "logits"])
def test_a_small_error_is_noticed(rounds, part):
    """One of a hundred numbers is a hundredth off, and all that depends on it as they were."""
    case, found, expected = rounds
    off = found[part].copy()
    largest = np.argsort(np.abs(off))[-len(off) // 100 :]
    off[largest] *= 1.01
    outcome = self_test.compare(case, {**found, part: off}, expected)
    assert not outcome.is_right and outcome.name == case.name
    off[0] = np.nan
    assert self_test.compare(case, {**found, part: off}, expected).difference == np.inf


def test_the_process_beside_it_gives_the_same(rounds, monkeypatch, tmp_path, capsys):
    """It compiles with other flags. A case that cannot be compiled is wrong, with a line that says why."""
    case, _, expected = rounds
    broken = case._replace(name="broken")

    def compiled(case):
        if case.name == "broken":
            raise RuntimeError("no such\ninstruction")
        return expected

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(self_test, "cases", lambda: [case, broken])
    monkeypatch.setattr(self_test.compiler_bugs, "BUGS", {})
    monkeypatch.setattr(self_test, "compiled", compiled)
    assert [outcome.is_right for outcome in self_test.run()] == [True, False]
    assert self_test.verdict() == "wrong: broken"
    printed = capsys.readouterr().err
    assert "broken: " in printed and "no such instruction" in printed and printed.count("\n") == 1

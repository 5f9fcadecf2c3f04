"""The code of the README and of its first pages runs as it stands."""

import ast
import re
import sys
from pathlib import Path

import jax
import pytest

from experiments.configs import quickstart
from fedjax_collapse import methods, simulate
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import resolve_arm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


LIBRARY, REGULARIZER = blocks(README)
ARMS = blocks((ROOT / "docs" / "studies.md").read_text())[0]


def test_library_example(capsys):
    """Twelve lines that train FedAvg and FedDecorr, and show that the latter uses more dimensions."""
    assert len([line for line in LIBRARY.splitlines() if line.strip()]) <= 12
    exec(compile(LIBRARY, "README.md", "exec"), {})
    (_, fedavg_rank), (_, feddecorr_rank) = (map(float, line.split()) for line in capsys.readouterr().out.splitlines())
    assert feddecorr_rank > fedavg_rank


@pytest.fixture
def feature_norm(tmp_path, monkeypatch):
    """The README's regularizer, in a file beside the library's own."""
    (tmp_path / "feature_norm.py").write_text(REGULARIZER)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    yield
    sys.modules.pop("fedjax_collapse.methods.feature_norm", None)


def test_a_regularizer_is_one_file(feature_norm):
    config = quickstart.get_config("smoke")
    config.clients, config.partition.alpha, config.training.epochs = 3, 5.0, 1
    config.network = dict(name="small_cnn", channels=(4,))
    config.arms = dict(both=dict(methods=dict(feature_norm=dict(strength=0.5), feddecorr=dict(strength=0.1))))
    arm = resolve_arm(plain(config), "both")
    federation = build.federations(arm, [0])[0]
    algorithm = build.algorithm(arm)
    result = simulate(federation, build.model(arm, federation), algorithm, rounds=1, key=jax.random.key(0))
    assert {"train/feature_norm/norm", "train/feddecorr/correlation"} <= set(result.metrics[-1])


def test_the_arms_of_the_example_can_be_built():
    config = quickstart.get_config("smoke")
    exec(ARMS, {"config": config})
    federation = build.federations(plain(config), [0])[0]
    for arm in config.arms:
        resolved = resolve_arm(plain(config), arm)
        build.algorithm(resolved).check(build.model(resolved, federation))


def test_the_examples_of_extending(tmp_path, monkeypatch):
    """All code of ``docs/extending.md``: its lines of a config, and the rest as the module that they name."""
    text = (ROOT / "docs" / "extending.md").read_text()
    statements = ast.parse("\n".join(blocks(text))).body
    of_config = [statement for statement in statements if ast.unparse(statement).startswith("config.")]
    module = [statement for statement in statements if statement not in of_config]
    (tmp_path / "my_module.py").write_text("\n".join(map(ast.unparse, module)))
    monkeypatch.syspath_prepend(str(tmp_path))
    config = quickstart.get_config("smoke")
    config.arms, config.participation = dict(mine=dict()), 0.5
    exec("\n".join(map(ast.unparse, of_config)), {"config": config})
    config.measurements, config.watch = dict(feature_norm="my_module:feature_norm"), "all"
    resolved = resolve_arm(plain(config), "mine")
    federation = build.federations(resolved, [0])[0]
    algorithm, schedule = build.algorithm(resolved), build.schedule(resolved)
    model = build.model(resolved, federation)
    made = [type(of).__name__ for of in (model.module, schedule.participation.sampler)]
    assert made == ["AttentionNet", "SmallestFirst"]
    assert list(algorithm.methods) == ["scaffold", "feddecorr", "extragradient", "top_k", "own_head"]
    result = simulate(
        federation, model, algorithm, rounds=1, key=jax.random.key(0), participation=schedule.participation,
        watch=schedule.watch, measurements=dict(schedule.measurements),
    )  # fmt: skip
    row = result.metrics[0]
    client, steps = max(enumerate(result.clients["steps"][-1]), key=lambda of: of[1])
    used, of_server = result.personal(client).params, result.variables.params
    assert steps > 0 and (used["head"]["kernel"] != of_server["head"]["kernel"]).any()
    assert (used["Dense_0"]["kernel"] == of_server["Dense_0"]["kernel"]).all()
    assert row["measured/feature_norm/lowest_local"] > 0 and row["measured/feature_norm/server"] > 0
    sys.modules.pop("my_module")

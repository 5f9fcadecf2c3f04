"""Every option with every kind of wrong value: it works, or one line says what is wrong, before anything starts.

FUZZ=all tries all of them, in a few minutes, FUZZ=<number> so many; the default takes a seeded sample.
"""

import copy
import itertools
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import cases, check
from small_studies import BASE, write_config

from experiments import launch
from experiments.configs import base
from experiments.study.groups import make_plan
from experiments.study.resolving import resolve
from fedjax_collapse import UserError
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain

NAN, INF = float("nan"), float("inf")
VALUES = (NAN, INF, -1, 0, 1.5, 1e30, 2**40, "abc", None, (), ("a",), (0,), {}, True)
LINES = (  # of the config
    "import sys",
    "inf, nan = float('inf'), float('nan')",
    "config.rounds, config.clients, config.partition.alpha, config.arms = 2, 3, 1.0, dict(only=dict())",
    "config.partition.min_size, config.network, config.engine.layout = 1, dict(name='mlp', hidden=(4,)), 'chunked'",
)
OPTIONS = {  # a section's keys beside those of base.py, and options of what it chooses; others: ``test_options.py``
    "network": (
        (dict(name="mlp", projector="moon"), "hidden projector projector_dim normalize_features head dtype"),
        (dict(name="mlp", head=dict(name="etf")), "head.name head.scale head.projector_dim head.seed"),
        (dict(name="resnet18", blocks=(1,), strides=(1,), width_multiplier=0.1), "blocks strides stem_size lowering"),
    ),
    "training": (
        (dict(), "steps phases optimizer task_loss clip_norm drop_last schedule schedule.name schedule.factor freeze"),
        (dict(momentum=0.0, optimizer=dict(name="sgd")), "optimizer.name optimizer.momentum optimizer.nesterov"),
        (dict(momentum=0.0, optimizer=dict(name="adam")), "optimizer.b1 optimizer.eps optimizer.mu_dtype"),
    ),
    "partition": (
        (dict(name="dirichlet", alpha=1.0), "alpha seed min_size max_tries"),
        (dict(name="from_file"), "path"),
    ),
    "methods": (
        (dict(), "feddecorr scaffold.normaliser fedrep.newcomers ccvr.when"),
        (dict(feddecorr=dict()), "feddecorr.strength feddecorr.variant feddecorr.name"),
    ),
    "server": (
        (dict(), "weighting optimized batch_norm name optimizer.learning_rate"),
        (dict(optimizer=dict(name="sgd", learning_rate=1.0)), "optimizer.momentum optimizer.accumulator_dtype"),
        (dict(optimizer=dict(name="damped_adam", learning_rate=1.0)), "optimizer.decay optimizer.tau"),
    ),
    "measurements": ((dict(), "mine"),),
    "data": ((dict(source="digits"), "test_fraction seed"), (dict(source="glyphs"), "image_size domains train_size")),
}


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    """Writes a config of twelve small images, with further lines; returns the argument that names it."""
    folder = tmp_path_factory.mktemp("fuzz")
    images, labels = np.arange(12 * 16).reshape(12, 4, 4, 1).astype(np.uint8), np.arange(12) % 3
    np.savez(folder / "data.npz", images=images, labels=labels, test_images=images, test_labels=labels)
    source = f"config.data.source = 'npz:{folder / 'data.npz'}'"
    return lambda *lines: write_config(folder, source, *LINES, *lines, of=BASE)


def paths():
    """Every key of base.py, and ``OPTIONS``, each with what of its section is set beside it."""
    for section, default in plain(base.get_config()).items():
        yield section, {}
        yield from ((f"{section}.{key}", {}) for key in (default if isinstance(default, dict) else ()))
    for section, choices in OPTIONS.items():
        yield from ((f"{section}.{name}", {section: beside}) for beside, names in choices for name in names.split())


CASES = list(itertools.product(paths(), VALUES, ("command line", "arm", "file")))


def sample():
    chosen = os.environ.get("FUZZ", "240")
    return CASES if chosen == "all" else random.Random(0).sample(CASES, int(chosen))


def prepare(config):
    """All that a study does before it trains."""
    study = resolve(config, Path())
    for cell in study.cells:
        make_plan(cell.values, build.federations(cell.values, study.seeds)[study.seeds[0]])


def put(tree, path, value):
    *parents, last = path.split(".")
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = value


def attempt(file, path, beside, value, way):
    """The study with the value, given in one of three ways."""
    changes = dict(beside) if beside else {}
    text = copy.deepcopy(changes)
    arguments = [file]
    if way == "command line":
        arguments += [f"--config.{section}.{k}={v}" for section, options in text.items() for k, v in options.items()]
        return prepare(launch.parse([*arguments, f"--config.{path}={value}"]).config)
    config = launch.parse(arguments).config
    put(text, path, value)
    if way == "arm":
        return prepare(config | dict(arms={"only": text}))
    for section, options in text.items():
        is_part = path.startswith(f"{section}.") and not beside
        config[section] = {**config[section], **options} if is_part else options
    return prepare(config)


NO_PROJECTION = "projector_dim 0 is too small, expected >= 1"
USUAL = {  # names of other codes, at the top, in a section, in an arm and in a method of an arm; and ours
    "num_clients = 10": "clients",
    "comm_round = 10": "rounds",
    "join_ratio = 0.1": "participation",
    "seed = 1": "seeds",
    "dataset = 'cifar10'": "data.source",
    "model = 'mlp'": "network.name",
    "momentum = 0.5": "training.momentum",
    "beta = 0.5": "partition.alpha",
    "arms = dict(a=dict(lr=0.1))": "training.learning_rate",
    "training.local_epochs = 5": "epochs",
    "training.batchsize = 8": "batch_size",
    "partition.beta = 0.5": "alpha",
    "methods = dict(fedprox=dict(mu=0.01))": "strength",
    "methods = {'ditto': {'lambda': 1}}": "strength",
    "arms = dict(a=dict(methods=dict(moon=dict(tau=0.5))))": "temperature",
}
WRONG = {line: f": did you mean '{name}'" for line, name in USUAL.items()}
WRONG |= {  # as a line of the config file
    "data = dict(source='folder')": "'folder' lacks its path: expected folder:<path>",
    "data = dict(source='digits:8')": "'digits:8': expected digits alone",
    "data = dict(source='flder:/x')": "unknown data source 'flder': did you mean 'folder'",
    "data = dict(source='isic2019:x')": "data.split_file is missing: isic2019 needs it",
    "data = dict(source='digits', sed=1)": "unknown option of data 'sed': did you mean 'seed'",
    "data = dict(source='glyphs', domains=('clean', 'clean'))": "each only once",
    "data = dict(source='digits', folder='x')": "'x': data source digits reads no files",
    "partition = dict(alpha=1.0)": "config.partition has no name",
    "partition = dict(name='domain')": "has no domains",
    "methods = dict(fedavg={})": "methods=dict(), without any",
    "methods = dict(fedbn={})": 'server=dict(batch_norm="local")',
    "methods = dict(freeze={})": 'freeze="head"',
    "methods = dict(scafold={})": "unknown method 'scafold': did you mean 'scaffold'",
    "rounds = 2**40": "config.rounds 1099511627776 does not fit into 32 bits",
    "seeds = (2**32,)": "seed 4294967296: expected an integer from 0 to 4294967295",
    "training.task_loss = 'math:sqrt'": "training.task_loss (TypeError): must be real number",
    "training.update(drop_last=True, batch_size=5)": "drop_last leaves no client a batch: batch_size 5 is more",
    "training.epochs = 1e30": "epochs 1e+30: the largest client would take 1e+30 steps in a round, expected less than",
    "network = dict(name='mlp', projector='moon', projector_dim=0)": NO_PROJECTION,
    "server.optimizer = dict(name='none', learning_rate=1.0)": "learning_rate: set server.optimizer.name, too",
    "server.optimizer = dict(name='sgd', momentum=0.5, learning_rate=1.0, accumulator_dtype='x')": "sgd cannot be made",
    "cohort.sampler.probability = 0.1": "unknown option of cohort.sampler 'probability'",
    "training.schedule = 'linear'": "unknown training.schedule 'linear': expected one of cosine, decay",
    "server.optimized = 'all'": "FedAvg: optimized 'all' without server_optimizer, expected both",
    "engine.clients_at_once = 4": "engine.clients_at_once 4: expected at most 3, the clients of a round",
    "engine.update(layout='vectorized', clients_at_once=2)": "expected 0, because layout vectorized has none",
    "engine.devices = 2": "engine.devices 2: expected 0 or 1, because layout chunked uses one",
    "arms = dict(only=dict(rounds='3'))": "arms.only.rounds",
    "arms = dict(only=dict(clients='3'))": "arm only: config.clients '3': expected int, got str",
    "arms = dict(only=None)": "arms.only None: expected dict, got NoneType",
    "arms = dict(only=dict(trainin=dict(epochs=1)))": "did you mean 'training'",
    "arms = dict(only=dict(rounds=3))": "set config.rounds",
    "methods = dict(moon=dict(needs_projector=True))": "MOON: network MLP has no projector",
    "engine = dict(layout='chunked')": "config.engine has no clients_at_once",
    "watch = '²'": "watch '²': expected one, all",
    "cohort.sampler = dict(name='available', probability=(0.5, 'a'))": "probability (0.5, 'a'): 'a': expected float",
}
SECTIONS = [name for name, default in plain(base.get_config()).items() if isinstance(default, dict)]
WRONG |= {f"_fields['{name}'] = None": f"config.{name} None: expected dict, got NoneType" for name in SECTIONS}
WRONG |= {f"__delitem__('{name}')": f"the config has no {name}: start from" for name in SECTIONS}
WRONG |= {
    f"{name} = dict(options=1)": f"config.{name} has no {'source' if name == 'data' else 'name'}: expected dict("
    for name in ("data", "network", "partition")
}
RIGHT = [
    "training.update(drop_last=True, batch_size=4)",
    "network.hidden = [4, 4]",
    "training.update(momentum=0.0, optimizer=dict(name='sgd', momentum=0.9, nesterov=True))",
    "server.optimizer = dict(name='sgd', learning_rate=1.0, momentum=0.9, nesterov=True)",
    "server.optimizer = dict(name='adam', learning_rate=1, mu_dtype='bfloat16')",
    "cohort.sampler = dict(name='available', probability=[0.5, 1, 1.0])",
]


def open_to_all(line):
    """The line, which may set what a config has not, and values of other types."""
    return f"with config.unlocked(), config.ignore_type(): config.{line}"


@pytest.mark.parametrize("line", WRONG)
def test_wrong_line_of_a_config_is_told_in_one_line(config_file, line):
    check(re.escape(WRONG[line]), prepare, launch.parse([config_file(open_to_all(line))]).config)


@pytest.mark.parametrize("line", RIGHT)
def test_right_line_of_a_config_works(config_file, line):
    prepare(launch.parse([config_file(open_to_all(line))]).config)


@cases(
    ("return None", "get_config returned a NoneType, expected a ConfigDict"),
    ("sys.exit('bye')", "^--config=.*: SystemExit: bye$"),
    ("open('absent')", "^--config=.*: FileNotFoundError: .*No such file or directory: 'absent'$"),
    ("from fedjax_collapse import UserError; raise UserError('expected smoke')", r"^config\.py: expected smoke$"),
)
def test_config_files_that_return_something_else(line, message, config_file):
    check(message, launch.parse, [config_file(line)])


def test_a_config_file_is_executed_once_and_as_a_module(tmp_path, recwarn):
    (tmp_path / "counted.py").write_text(
        "import dataclasses\nfrom pathlib import Path\nfrom experiments.configs import base\n"
        "@dataclasses.dataclass\nclass Own:\n    rounds: 'int' = 3\n"
        "def get_config(arg):\n    config = base.get_config()\n    config.rounds = Own().rounds\n"
        "    with Path(arg).open('a') as file:\n        file.write('x')\n    return config\n"
    )
    argument = f"--config={tmp_path / 'counted.py'}:{tmp_path / 'count'}"
    config = launch.parse([argument, "--config.clients=7", "--config.partition.min_size=3"]).config
    assert (config["rounds"], config["clients"], (tmp_path / "count").read_text()) == (3, 7, "x")
    assert not [warning for warning in recwarn if "load_module" in str(warning.message)]


def test_the_place_of_an_error_in_the_users_code_is_told(config_file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    own = "def loss(view):\n    return view.outputs.nothing\ndef part(labels, num_clients, seed):\n    return 1 / 0\n"
    (tmp_path / "fuzzed.py").write_text(own)
    with pytest.raises(UserError, match=r"training.task_loss \(AttributeError, .*fuzzed.py:2\): .*nothing"):
        prepare(launch.parse([config_file(), "--config.training.task_loss=fuzzed:loss"]).config)
    with pytest.raises(UserError, match=r"partition \(ZeroDivisionError, .*fuzzed.py:4\): division by zero"):
        prepare(launch.parse([config_file("config.partition = dict(name='fuzzed:part')")]).config)


@pytest.mark.slow
def test_every_option_works_or_one_line_says_what_is_wrong(config_file):
    wrong, file = [], config_file()
    for (path, beside), value, way in sample():
        try:
            attempt(file, path, beside, value, way)
        except UserError as error:
            if "\n" in str(error):
                wrong.append(f"{way}: {path}={value!r} beside {beside}: more than one line: {error}")
        except Exception as error:
            wrong.append(f"{way}: {path}={value!r} beside {beside}: {type(error).__name__}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)

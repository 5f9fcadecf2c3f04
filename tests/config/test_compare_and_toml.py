"""Methods by one word each on the command line, and configs that are TOML files."""

import re
from pathlib import Path

import pytest
from conftest import cases, check
from small_studies import error_of, start

from experiments.config_files import split_config
from experiments.study.parsing import default_workdir, parse
from experiments.study.resolving import resolve
from fedjax_collapse.config import build
from fedjax_collapse.config.base import get_config
from fedjax_collapse.config.keys import METHODS
from fedjax_collapse.config.plain_values import plain

STUDIES = (Path(__file__).parents[2] / "docs/studies.md").read_text()


def algorithms(*arguments):
    """The algorithm of every arm."""
    cells = resolve(parse(list(arguments)).config, Path()).cells
    return {cell.arm: build.algorithm(cell.values) for cell in cells}


def test_compared_methods_are_arms_with_their_published_defaults():
    """All that there are; those that are values of other keys change something else."""
    compared = algorithms(f"--compare={','.join((*build.ALIASES, *METHODS))}")
    assert list(compared) == [*build.ALIASES, *METHODS]
    fedavg = compared["fedavg"]
    for name, method in METHODS.items():
        assert compared[name] == fedavg.replace(methods={name: method()})
    others = [compared[name] for name in build.ALIASES]
    assert all(made != other for at, made in enumerate(others) for other in others[:at])


@cases(["--compare=fedprox,moon"], ["-compare", " moon, fedprox"], ["--compare=moon", "--compare=fedprox"])
def test_they_replace_the_arms_of_a_config(compared):
    """Also what its settings change in them, its sweep, and a paper's numbers by arm."""
    for name in ("quickstart", "feddecorr/table1:full", "feddecorr/tuning"):
        given = parse([f"--config={name}", *compared]).config
        cells = resolve(given, Path()).cells
        assert {cell.arm for cell in cells} == {"fedavg", "fedprox", "moon"}
        assert not any("arms" in setting for setting in given["settings"].values())
    own = "--config.arms.moon.methods.moon.strength=2.0", "--config.methods=top_k"
    made = algorithms("--config=quickstart", *compared, *own)
    assert made["moon"].methods == {"top_k": METHODS["top_k"](), "moon": METHODS["moon"](strength=2.0)}


def test_an_override_changes_no_alias():
    before = str(build.ALIASES)
    parse(["-compare=fedbn", "--config.arms.fedbn.server.batch_norm=average"])
    assert str(build.ALIASES) == before


@cases(
    (["--config.methods=fedprox,moon"], {"fedprox": {}, "moon": {}}),
    (["-config.methods='fedprox'"], {"fedprox": {}}),
    (["--config.methods=fedprox,my_method:Norm"], {"fedprox": {}, "Norm": {"name": "my_method:Norm"}}),
    (["--config.methods=moon", "--config.methods.moon.strength=2.0"], {"moon": {"strength": 2.0}}),
    (["--config.methods=dict(fedprox=dict(strength=0.1))"], {"fedprox": {"strength": 0.1}}),
)
def test_methods_of_one_algorithm(given, methods):
    """Without a config they are its only arm."""
    config = parse(given).config
    assert config["methods"] == methods and config["arms"] == {"_".join(methods): {}}
    assert parse(["--config=quickstart", *given]).config["arms"].keys() == {"fedavg", "feddecorr", "ccvr"}
    assert {**config, "methods": {}, "arms": {}} == plain(get_config())


def test_a_compared_method_is_not_in_all_arms():
    message = "all arms have moon, .*; its options are --config.arms.moon.methods.moon.KEY=VALUE"
    check(message, parse, ["--compare=fedprox,moon", "--config.methods.moon.strength=2.0"])


def test_the_default_folder_is_named_after_the_config_or_its_arms():
    options = ["--compare=fedprox,moon"], ["--config.methods=fedprox,moon"], ["--config=quickstart:smoke"]
    for arguments, name in zip(options, ("fedavg-fedprox-moon", "fedprox_moon", "quickstart"), strict=True):
        made = default_workdir(parse(arguments).config, split_config(arguments)[0])
        assert re.fullmatch(rf"runs/{name}-\w{{8}}", str(made))


@cases("--compare=moon,fedprx", "--config.methods=fedprx,moon")
def test_a_misspelt_method_is_one_line(option, tmp_path, capsys):
    assert start(option, f"--workdir={tmp_path / 'study'}") == 2
    error_of(capsys, "unknown method 'fedprx': did you mean 'fedprox'?")
    assert not (tmp_path / "study").exists()


@pytest.fixture
def toml(tmp_path):
    """Writes a TOML file; the argument that names it."""

    def write(text):
        (tmp_path / "my.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
        return f"--config={tmp_path / 'my.toml'}"

    return write


def test_the_toml_file_of_the_docs_is_the_config_in_python(toml):
    (text,) = re.findall(r"```toml\n(.*?)```", STUDIES, re.DOTALL)
    config = get_config()
    config.rounds, config.seeds, config.network = 20, (0, 1), dict(name="small_cnn", channels=(16, 32))
    config.arms = dict(fedavg=dict(), fedprox=dict(methods=dict(fedprox=dict(strength=0.1))))
    config.sweep = {"methods.fedprox.strength": (0.01, 0.1)}
    expected, found = plain(config), parse([toml(text)]).config
    for extra in ("weights", "adapters", "task"):  # a table changes a section, whose other values stay
        assert found["network"].pop(extra) == plain(get_config())["network"][extra]
    assert found == expected and list(found) == list(expected)
    assert len(resolve(found, Path()).cells) == 3


def test_options_follow_a_toml_file(toml):
    text = "participation = 1\nseeds = [1]\n[training]\nlearning_rate = 1\n[methods.fedprox]\n"
    options = ["participation=0.5", "training.learning_rate=0.1", "seeds=(2,3)", "partition.seed=4", "on_nan=None"]
    options += ["network.name=mlp", "methods.fedprox.strength=0.5"]
    found = parse([toml(text), *(f"--config.{option}" for option in options)]).config
    assert (found["participation"], found["seeds"], found["on_nan"]) == (0.5, (2, 3), None)
    assert (found["training"]["learning_rate"], found["training"]["momentum"]) == (0.1, 0.9)
    assert (found["partition"]["seed"], found["network"]["name"]) == (4, "mlp")
    assert found["arms"] == {"fedprox": {}} and found["methods"] == {"fedprox": {"strength": 0.5}}


def test_a_sweep_without_arms_stays_with_compared_methods(toml):
    given = toml("[sweep]\n'training.learning_rate' = [0.1, 0.2]"), "--compare=fedprox"
    assert len(resolve(parse(list(given)).config, Path()).cells) == 4


@cases(
    ("rounds = 'many'", "config.rounds 'many': expected int, got str"),
    ("round = 3", "unknown config key 'round': did you mean 'rounds'?"),
    ("seeds = 3", "config.seeds 3: expected tuple, got int"),
    ("methods = 3", "config.methods 3: expected dict, got int"),
    ("training = 3", "config.training 3: expected dict, got int"),
    ("title = 2020-01-01", "config.title: got a date, expected numbers, text,"),
    ("[cohort]\ndropout = 2.0", "cohort.dropout 2 is outside [0, 1]"),
    ("[training]\nepoch = 3", "unknown option of training 'epoch': did you mean 'epochs'?"),
    ("[methods.fedprox]\nstrenth = 3", "unknown option of methods.fedprox 'strenth': did you mean 'strength'?"),
    ("[sweep]\ntraining.epochs = [1]", "expected a tuple of values; a key with dots is in quotes"),
    ("rounds = 3\nseeds = (0,)", "my.toml: Invalid value (at line 2, column 9)"),
    (b"title = '\xff'", "my.toml: 'utf-8' codec can't decode"),
)
def test_a_wrong_toml_file_is_one_line(text, message, toml, tmp_path, capsys):
    assert start(toml(text), f"--workdir={tmp_path / 'study'}") == 2
    assert re.match("error: (.*/my.toml: |arm |sweep.)", error_of(capsys, message))
    assert not (tmp_path / "study").exists()


def test_nothing_follows_the_name_of_a_toml_file(toml, capsys):
    assert start(f"{toml('rounds = 0')}:smoke") == 2
    error_of(capsys, "my.toml:smoke: expected nothing after the name of a TOML file\n")

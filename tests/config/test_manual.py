"""What users are told of configs: ``--help``, the page of all keys, and where to find what has another name."""

import re

import pytest
from conftest import cases, check
from unrendered import ROOT

from experiments import launch
from experiments.commands import list_names, manual
from experiments.config_files import config_files
from experiments.configs import base
from experiments.study import parsing
from fedjax_collapse.config import keys as config_keys
from fedjax_collapse.config.keys import keys
from fedjax_collapse.schema.options import hints


def test_help_has_every_option_key_config_and_name(said):
    """Every field of a record is a key, but for those that are named as none: one that is added is found everywhere."""
    records = [record for parts in config_keys._PARTS.values() for record, names in parts if names == "..."]
    found = {name for key in keys() for name in key.split(".")} | {*" ".join(config_keys._ADDED.values()).split()}
    assert {field for record in records for field in hints(record)} <= found
    text = said(launch, "--help")
    assert all(option in text for option in ("--workdir", "--resume", "--workers", "--distributed", "Exit status"))
    assert all(str(file.relative_to(ROOT)) in text for file in config_files())
    completed = [option for of in parsing.command_line("")._actions for option in of.option_strings]
    assert all(f"\n  --config.{key}={of.option().default}" in text for key, of in keys().items())
    assert {f"--config.{key}" for key in keys()} <= {*completed}
    for name in ("feddecorr", "mobilenet_v2", "dirichlet", "damped_adam", "top_k", "digits"):
        assert re.search(rf"\b{name}\b", text)
    assert max(map(len, text.splitlines())) <= 130


def test_help_on_one_name_has_its_options(capsys, said):
    assert re.search(r"variant +'official' +'paper' \| 'pseudocode' \| 'official'", said(launch, "--help=feddecorr"))
    assert launch.main(["--help=feddecor"]) == 2
    assert "did you mean 'feddecorr'" in capsys.readouterr().err


def test_everything_with_a_name_is_listed_with_a_description(capsys, said):
    whole = said(list_names)
    for kind in list_names.KINDS:
        listed = dict(list_names.names(kind))
        assert len(listed) > 1 and all(len(text) > 2 for text in listed.values())
        part = said(list_names, kind)
        assert part in whole and all(f"\n  {name} " in part for name in listed)
    for kind, name in [("methods", "feddecorr"), ("data", "mnist5k"), ("configs", "fedmr/table1")]:
        assert name in dict(list_names.names(kind))
    assert dict(list_names.names("augmentations"))["moon_cifar100"] == "crop, flip, rotate(degrees=15.0)"
    with pytest.raises(SystemExit) as ended:
        list_names.main(["method"])
    assert ended.value.code == 2 and "choose from" in capsys.readouterr().err


def test_every_key_and_option_has_a_description(said):
    chosen = [choice for group in manual.choices().values() for choice in group]
    meanings = {(of.section, of.name, option.name): option.meaning for of in chosen for option in of.options}
    meanings |= {option.name: option.meaning for option in [key.option() for key in keys().values()]}
    assert len(meanings) > 300
    assert not [name for name, meaning in meanings.items() if len(meaning) < 5]
    of_base_class = meanings["network.name", "resnet18", "projector_dim"]
    of_module, of_optax = meanings["partition.name", "iid", "seed"], meanings["server.optimizer.name", "adam", "b1"]
    assert of_base_class == "number of outputs of the projector" and of_module == "seed of the draw"
    assert of_optax.startswith("Exponential decay rate")
    both = said(launch, "--help=isic2019")
    assert "data.source: isic2019" in both and "partition.name: isic2019" in both
    assert "      fewest examples of a client" in said(launch, "--help=dirichlet")


def test_keys_are_the_values_of_a_config():
    found, again = base.get_config(), base.get_config()
    found.methods.fedprox, found.partition.seed, found.arms.one = {}, 3, {}
    assert again == base.get_config() and again.partition.seed is None and not again.arms
    assert {name.split(".")[0] for name in keys()} == set(found)


def test_the_page_of_all_keys_is_of_this_code():
    """Else: fedjax-collapse manual > docs/configs.md"""
    assert (ROOT / "docs/configs.md").read_text() == manual.as_markdown()


@cases("quickstart", "experiments/configs/quickstart.py")
def test_configs_of_the_project_are_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in ([f"--config={name}"], ["--config", name]):
        assert {"fedavg", "feddecorr"} <= set(launch.parse(arguments).config["arms"])
    (tmp_path / "quickstart").write_text("not python")  # what is there goes first
    if name == "quickstart":
        check("name 'python' is not defined", launch.parse, [f"--config={name}"])

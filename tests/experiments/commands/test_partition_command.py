"""The command that shows a partition: the numbers, the files, the launcher's partition, and wrong input in one line."""

import json
import math
import sys

import numpy as np
import pytest
from conftest import cases
from small_studies import BASE, error_of, write_config

from experiments.commands import show_partition as command
from experiments.configs import base
from fedjax_collapse import sources
from fedjax_collapse.config import build
from fedjax_collapse.config.plain_values import plain

DOMAINS = "dict(source='glyphs', domains=('clean', 'outline', 'textured'), train_size=40, test_size=20, image_size=8)"


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def config_file(tmp_path):
    """A function that writes a config of these changes and returns the option that names it."""
    return lambda changes: write_config(tmp_path, changes, of=BASE)


def test_what_is_printed_and_written_is_what_the_launcher_makes(config_file, tmp_path, said):
    """And the indices that it writes give the same partition again."""
    option = config_file("config.clients, config.seeds = 6, (0, 5)")
    printed = said(command, option, "--config.partition.alpha=0.5", "--seed=5", f"--out={tmp_path / 'out'}")
    config = base.get_config()
    config.clients, config.seeds, config.partition.alpha = 6, (0, 5), 0.5
    federation = build.federations(plain(config), config.seeds)[5]
    counts = federation.class_counts()
    facts = json.loads((tmp_path / "out" / "partition.json").read_text())
    assert facts["seed"] == 5 and facts["sha256"] == federation.hashes() and facts["left_out"] == facts["repeated"] == 0
    assert facts["sizes"] == counts.sum(axis=1).tolist() and facts["examples"] == counts.sum()
    shares = [row[row > 0] / row.sum() for row in counts]
    np.testing.assert_allclose(facts["entropy"], [-(share * np.log(share)).sum() for share in shares], rtol=1e-12)
    assert facts["classes"] == [len(share) for share in shares]
    assert f"SHA-256 of the partition: {federation.hashes()['partition']}" in printed
    assert f"entropy of a client's classes: {np.mean(facts['entropy']):.3f} nats" in printed
    joint = counts / counts.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    information = sum(p * math.log(p / q) for p, q in zip(joint.flat, independent.flat, strict=True) if p)
    np.testing.assert_allclose(facts["mutual_information"], information, rtol=1e-12)
    assert f"mutual information of client and class: {information:.3f} nats" in printed
    with np.load(tmp_path / "out" / "partition.npz") as stored:
        np.testing.assert_array_equal(stored["class_counts"], counts)
    assert "<svg" in (tmp_path / "out" / "partition.svg").read_text()
    indices = json.loads((tmp_path / "out" / "indices.json").read_text())
    (tmp_path / "named.json").write_text(json.dumps({f"ward {i}": rows for i, rows in enumerate(indices)}))
    config.partition = dict(name="from_file", path=str(tmp_path / "named.json"))
    again = build.federations(plain(config), [0])[0]
    np.testing.assert_array_equal(again.class_counts(), counts)
    assert again.client_names == tuple(f"ward {i}" for i in range(6))


def test_domains_arms_and_examples_left_out(config_file, tmp_path, said):
    option = config_file(
        f"config.clients = 3; config.data = {DOMAINS}; config.partition = dict(name='domain', truncation=0.5);"
        "config.arms = dict(all=dict(partition=dict(truncation=0.0)),"
        "twice=dict(partition=dict(name='partially_disjoint', classes_per_client=4, double_pass=True)),)"
    )
    lines = said(command, option).splitlines()
    assert "by domain" in lines[0] and lines[2].split()[:2] == ["0", "20"]
    assert [line.split()[-1] for line in lines[2:5]] == ["clean", "outline", "textured"]
    assert "examples left out: 60; given more than once: 0" in lines
    for arm, expected in (("all", "left out: 0; given more than once: 0"), ("twice", "given more than once: 120")):
        assert expected in said(command, option, f"--arm={arm}", f"--out={tmp_path / arm}")


def test_shades_and_entropies_of_known_shares(config_file, tmp_path, said):
    """One class has entropy 0, two equal ones log 2; the largest count is the darkest."""
    first, second, third = (np.flatnonzero(sources.digits().labels == c)[:30].tolist() for c in range(3))
    (tmp_path / "parts.json").write_text(json.dumps([first[:3], second + third]))
    partition = f"dict(name='from_file', path='{tmp_path / 'parts.json'}')"
    few, many = said(command, config_file(f"config.clients, config.partition = 2, {partition}")).splitlines()[2:4]
    assert few == "     0       3        1    0.000  |.         |"
    assert many == f"     1      60        2    {math.log(2):.3f}  | @@       |"


@cases(
    ("pass", ["--out=/dev/null/x"], "cannot be written"),
    ("pass", ["--seed=1"], "unknown seed '1'"),
    ("config.arms = dict(a=dict(), b=dict())", ["--arm=a,b"], "expected one"),
    ("config.settings = dict(a=dict(clients=3))", [], "choose one by --setting=a"),
)
def test_wrong_input_is_one_line_and_status_2(changes, arguments, words, config_file, capsys):
    assert command.main([config_file(changes), *arguments]) == 2 and error_of(capsys, words)


def test_modules_beside_the_config_come_first(config_file, tmp_path, capsys, monkeypatch):
    """Also where Python or this project has one of that name; one that was imported before is named by its file."""
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("sched", "build"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(
            "import numpy as np\ndef in_turn(labels, num_clients, seed=0):\n"
            "    return np.array_split(np.arange(len(labels)), num_clients)\n"
        )
        assert command.main([config_file(f"config.partition = dict(name='{name}:in_turn')")]) == 0
        sys.modules.pop(name)
    assert command.main([config_file("config.partition = dict(name='json:in_turn')")]) == 2
    error_of(capsys, f"unknown name in json ({json.__file__}), of partition, 'in_turn'")

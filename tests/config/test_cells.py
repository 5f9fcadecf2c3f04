"""Studies of cells: what settings and sweeps make of a config, and what a start makes of its cells."""

import json
import weakref
from pathlib import Path

import pytest
from conftest import assert_same_bits, cases, check
from small_studies import write_config

from experiments import launch
from experiments.configs import base
from experiments.study import preparing, study, summaries
from experiments.study.processes.claim import claimed
from experiments.study.resolving import resolve
from fedjax_collapse import UserError, load_run
from fedjax_collapse.config.cells import arms_of, axis_names, cells_of, config_of, merged, shown_cells
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.resolving import resolve_arm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unrendered")]
SWEPT = "methods.feddecorr.strength"


@pytest.fixture
def config():
    return make_config()


def make_config():
    """Two settings of two arms, one of which is swept: six cells of one round."""
    config = base.get_config()
    config.rounds, config.clients, config.network = 1, 3, dict(name="mlp", hidden=(6,))
    config.partition.alpha, config.partition.seed = 1.0, 0
    config.training.update(epochs=1, batch_size=512)
    config.settings = {"iid": dict(partition=dict(name="iid")), "few 0.5": dict(data=dict(test_fraction=0.5), rounds=2)}
    config.arms = dict(plain=dict(), decorr=dict(methods=dict(feddecorr=dict(strength=0.1))))
    config.sweep = {SWEPT: (0.5, 0.25)}
    return config


CELLS = [f"{s}/{a}" for s in ("iid", "few 0.5") for a in ("plain", "decorr strength=0.5", "decorr strength=0.25")]


def test_cells_are_settings_with_arms_in_the_order_of_the_config_and_so_are_seeds(config):
    assert list(map(str, cells_of(plain(config)))) == CELLS
    assert [run.name for run in resolve(config, Path()).runs] == [(cell, 0) for cell in CELLS]
    assert list(map(str, cells_of(json.loads(config.to_json_best_effort())))) == CELLS  # as the report reads it
    config.seeds = (5, 0, 3)
    chosen = resolve(config, Path("s"), ["decorr strength=0.25", "plain", "plain"], (3, 5), ["iid"])
    assert [run.name for run in chosen.runs] == [(CELLS[i], seed) for i in (0, 2) for seed in (5, 3)]
    assert len(chosen.cells) == len(CELLS) and chosen.runs[0].folder == Path("s/iid/plain/seed5")
    config.settings, config.sweep = {}, {}
    assert cells_of(plain(config)) == [("", "plain", ""), ("", "decorr", "")]


def test_an_arm_goes_over_its_setting_and_what_a_setting_says_of_the_arm_over_both(config):
    config.settings = {"s": dict(training=dict(epochs=3, momentum=0.5), clients=7, arms=dict(b=dict(clients=9)))}
    config.arms, config.sweep = dict(a=dict(training=dict(epochs=4)), b=dict(clients=8)), {}
    a, b, common = (resolve_arm(plain(config), arm, "s") for arm in ("a", "b", None))
    keys = ("epochs", "momentum", "batch_size")
    assert (*(a["training"][key] for key in keys), a["clients"]) == (4, 0.5, 512, 7)
    assert [(own["training"]["epochs"], own["clients"]) for own in (b, common)] == [(3, 9), (3, 7)]
    assert not {"arms", "settings", "sweep", "paper"} & set(a)


def test_a_part_that_chooses_something_else_loses_its_arguments():
    config = dict(data=dict(source="digits", test_fraction=0.1), network=dict(name="mlp", hidden=(6,)), rounds=3)
    changes = dict(data=dict(source="glyphs"), network=dict(hidden=(7,), norm="none"))
    expected = dict(data=dict(source="glyphs"), network=dict(name="mlp", hidden=(7,), norm="none"), rounds=3)
    assert merged(config, changes) == expected and config["network"] == dict(name="mlp", hidden=(6,))


def test_where_data_are_and_what_validates_stay_with_another_source():
    """Of data alone: another section may have an option of that name, which goes with its choice."""
    common = dict(folder="x", validation_fraction=0.1)
    config = dict(data=dict(source="digits", seed=1) | common, partition=dict(name="mine", folder="y"))
    found = merged(config, dict(data=dict(source="mnist5k", folder="z"), partition=dict(name="iid")))
    assert found == dict(data=dict(source="mnist5k") | common | dict(folder="z"), partition=dict(name="iid"))


def test_a_sweep_over_two_axes(config):
    config.arms.third = dict(methods=dict(fedprox=dict(strength=0.1)))
    config.sweep = {"methods.feddecorr.strength": (0.5, 1), "training.epochs": (1, 2)}
    names = list(arms_of(plain(config)))
    assert names[:2] == ["plain epochs=1", "plain epochs=2"]
    assert names[2:4] == ["decorr strength=0.5 epochs=1", "decorr strength=0.5 epochs=2"] and len(names) == 2 + 4 + 2
    arm = resolve_arm(plain(config), "decorr strength=1 epochs=2", "iid")
    assert arm["methods"]["feddecorr"]["strength"] == 1 and arm["training"]["epochs"] == 2
    keys = ("methods.feddecorr.strength", "methods.fedprox.strength")
    assert list(axis_names(dict.fromkeys(keys)).values()) == ["feddecorr.strength", "fedprox.strength"]
    config.sweep = {"network.hidden": ((6,), (8, 4)), "partition.seed": (None,)}
    assert list(arms_of(json.loads(config.to_json_best_effort())))[:2] == [
        "plain hidden=6 seed=None",
        "plain hidden=8x4 seed=None",
    ]


def test_swept_values_of_data_are_settings_where_results_are_shown(config):
    """Beside declared settings; all other swept values stay in the names of the arms."""
    config.sweep = {SWEPT: (0.5,), "partition.alpha": (0.1, 10), "clients": (4,)}
    declared, config.settings = plain(config), {}
    found = shown_cells(plain(config))
    settings = [f"alpha={alpha} clients=4" for alpha in (0.1, 10)]
    assert [str(shown) for shown, _ in found.values()] == [
        f"{setting}/{arm}" for setting in settings for arm in ("plain", "decorr strength=0.5")
    ]
    assert list(map(str, found))[:2] == [f"{arm} {settings[0]}" for arm in ("plain", "decorr strength=0.5")]
    assert found["", f"decorr strength=0.5 {settings[1]}", ""][1].values["alpha"] == 10
    of_setting = config_of(plain(config), settings[1])
    assert of_setting["partition"]["alpha"] == 10 and list(of_setting["sweep"]) == [SWEPT]
    shown = list(dict.fromkeys(shown.setting for shown, _ in shown_cells(declared).values()))
    assert shown == [f"{name} {setting}" for name in ("iid", "few 0.5") for setting in settings]
    assert [config_of(declared, shown[2])[key] for key in ("clients", "rounds")] == [4, 2]
    declared["sweep"] = {SWEPT: (0.5,)}
    assert [*shown_cells(declared)] == [shown for shown, _ in shown_cells(declared).values()]
    paper = plain(config) | {"paper": PAPER}  # whose numbers are by arm
    assert {shown.setting for shown, _ in shown_cells(paper).values()} == {""}


def test_a_sweep_from_the_command_line(tmp_path):
    arms = "config.arms = dict(fedavg={}, feddecorr=dict(methods=dict(feddecorr=dict(strength=1))))"
    file = write_config(tmp_path, arms)
    option = "--config.sweep.methods.feddecorr.strength=(0.01,0.3)"
    names = ["fedavg", "feddecorr strength=0.01", "feddecorr strength=0.3"]
    assert list(arms_of(launch.parse([file, option]).config)) == names


def test_names_with_commas(tmp_path):
    arms = "config.arms = {name: {} for name in ('a', 'b', 'a,b', 'c, d', 'c')}"
    file = write_config(tmp_path, arms, "config.settings = {'0.1, iid': {}, 'x': {}}")
    for text, arms in (("a,b", ("a,b",)), ("b,a", ("b", "a")), ("c, d,a", ("c, d", "a"))):
        options = launch.parse([file, f"--arm={text}"])
        runs = resolve(options.config, Path(), options.arm).runs
        assert {run.cell.arm for run in runs} == set(arms)
    options = launch.parse([file, "--setting=x,0.1, iid"])
    runs = resolve(options.config, Path(), settings=options.setting).runs
    assert {run.cell.setting for run in runs} == {"x", "0.1, iid"}
    check("unknown arm 'd'", resolve, options.config, Path(), "c,d")  # names are split where that gives declared ones


def later(**changes):
    """The setting that is trained after another one."""
    return dict(settings={"iid": dict(partition=dict(name="iid")), "few 0.5": changes})


BAD_NAMES = ("..", "a\\b", "a\0b", "\ud800", " a")
TAKEN_NAMES = ("Summary.json", "provenance.json.tmp", ".lock", "report")
PAPER = dict(source="X, Table 1", comparable=True, values={"iid": {"plain": 50.0}})


@cases(
    (dict(settings={"a/b": {}}), "setting 'a/b': its runs are in a folder of that name"),
    *((dict(settings={name: {}}), "its runs are in a folder of that name; expected") for name in BAD_NAMES),
    *((dict(settings={name: {}}), "the study's folder has a file or folder of that name") for name in TAKEN_NAMES),
    (dict(settings={"x" * 300: {}}), "setting 'x{40}'...: .* it has 300 bytes, expected at most 200"),
    (dict(settings={"a": {"seeds": (1,)}}), r"settings.a.seeds: all settings .* set config.seeds"),
    (dict(settings={"a": {"arms": {"plan": {}}}}), "arm in settings.a.arms 'plan': did you mean 'plain'"),
    (later(partition=dict(name="iid", min_size=3)), "setting few 0.5: unknown option of partition 'min_size'"),
    (later(network=dict(name="mlpp")), "setting few 0.5, arm plain: unknown network 'mlpp'"),
    (dict(sweep={"training.epoch": (1,)}), "sweep.training.epoch: no arm has that key"),
    (dict(sweep={"training.epochs": 3}), "sweep.training.epochs: 3, expected a tuple"),
    (dict(sweep={"training.epochs": (3, 3)}), "expected no value twice"),
    (dict(means=dict(m=("iid", "c"))), "unknown setting in means.m 'c'"),
    (dict(means=dict(iid=("iid",))), "means.iid: expected at least one setting, and a name that no setting has"),
    (dict(paper=dict(source="X", comparable=True)), "config.paper has no values"),
    (dict(paper=PAPER | dict(comparable=False)), "explain why in paper.why"),
    (dict(paper=PAPER | dict(values={"iid": {"decor": 1.0}})), "arm in paper.values.iid 'decor'"),
    (dict(paper=PAPER | dict(values={"iid": {"plain": 101.0}})), "paper.values.iid.plain: 101.0, expected percent"),
    (dict(paper=PAPER | dict(metric="rounds_to_target", target="plan")), "unknown arm in paper.target 'plan'"),
    (dict(paper=PAPER | dict(target="plain")), "paper.target 'plain' belongs to paper.metric='rounds_to_target'"),
    (dict(paper=PAPER | dict(metric="acuracy")), "paper.metric 'acuracy': did you mean 'accuracy'"),
    (dict(paper=PAPER | dict(spreads={"iid": {"plain": -0.5}})), "paper.spreads.iid.plain: -0.5, expected a sta"),
    (dict(paper=PAPER | dict(spreads={"few 0.5": {"plain": 0.5}})), "few 0.5.plain: has no number in paper.values"),
    (dict(paper=PAPER | dict(columns={"iid": ("iid", "measured/nc/nc1")})), "setting or mean of that name"),
    (dict(paper=PAPER | dict(columns={"a": ("idd", "measured/nc/nc1")})), "setting in paper.columns.a 'idd'"),
    (dict(paper=PAPER | dict(columns={"a": ("iid", "measured/nc/nc1")})), "metric in paper.columns.a 'measured"),
)
def test_what_is_wrong_with_any_cell_is_one_line(changes, words, config, tmp_path):
    for key, value in changes.items():
        config[key] = value
    check(words, lambda: study.run_study(resolve(config, tmp_path / "study")))
    assert not (tmp_path / "study").exists()


@pytest.fixture
def trained(monkeypatch):
    """Runs are not trained but listed here, with their rounds; those of an arm called bad fail. A cell that several
    starts have is traced once."""
    trained, plans, plan = [], {}, preparing.plan_of

    def plan_of(cell, federation, wait):
        if repr(cell) not in plans:
            plans[repr(cell)] = plan(cell, federation, wait)
        return plans[repr(cell)]

    monkeypatch.setattr(preparing, "plan_of", plan_of)

    def train_group(group, console, should_stop, take):
        rounds = group.plan.schedule.rounds
        console.start_runs(list(group.runs), 0, rounds)
        for name, run in group.runs.items():
            if name[0].endswith("bad"):
                raise RuntimeError("of the user's code")
            trained.append((*name, rounds))
            run.folder.mkdir(parents=True, exist_ok=True)
            row = {"round": rounds, "accuracy": 0.5}
            (run.folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
            (run.folder / "summary.json").write_text(json.dumps({"headline": "server model", **row}))
        return True

    monkeypatch.setattr(study, "train_group", train_group)
    return trained


def test_study_of_cells_has_the_data_of_one_setting_at_a_time(config, tmp_path, trained, monkeypatch):
    """The federations of a setting are gone when the next one's are made."""
    alive, most, made = [], [], preparing.federations_of

    def federations_of(cells, seeds):
        most.append(sum(reference() is not None for reference in alive))
        federations = made(cells, seeds)
        alive.extend(weakref.ref(of_seed[0].train.inputs) for of_seed in federations.values())
        return federations

    monkeypatch.setattr(preparing, "federations_of", federations_of)
    folder = tmp_path / "study"
    assert study.run_study(resolve(config, folder, settings=["few 0.5"]))
    assert trained == [(cell, 0, 2) for cell in CELLS[3:]] and most == [0]
    assert study.run_study(resolve(config, folder))
    assert trained[3:] == [(cell, 0, 1) for cell in CELLS[:3]]  # the others are finished
    assert most == [0] * 4  # checked: both; trained: the first, whose data had been let go
    assert sorted(str(p.parent.relative_to(folder)) for p in folder.glob("*/*/*/summary.json")) == sorted(
        f"{cell}/seed0" for cell in CELLS
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary) == CELLS and all(of_cell["accuracy"]["n"] == 1 for of_cell in summary.values())
    starts = json.loads((folder / "provenance.json").read_text())["starts"]
    assert list(starts[-1]["layouts"]) == CELLS[:3] and list(starts[-1]["sha256"]) == CELLS
    assert "ran in 2 settings (iid, few 0.5) with 1 seed (0)" in (folder / "report.html").read_text()


def test_a_study_may_grow(config, tmp_path, trained, monkeypatch):
    """By an arm, a setting, seeds and a value of its sweep; what there is stays, and tables may change."""
    monkeypatch.setattr(summaries, "write_report", lambda study: study)

    def grown(**changes):
        config = make_config()
        arms = config.arms.to_dict() | dict(third={})
        for key, value in (dict(arms=arms, seeds=(1, 0), means=dict(both=("iid", "few 0.5"))) | changes).items():
            config[key] = value
        return config

    config.settings, config.sweep = dict(iid=dict(partition=dict(name="iid"))), {SWEPT: (0.5,)}
    assert study.run_study(resolve(config, tmp_path)) and trained == [(cell, 0, 1) for cell in CELLS[:2]]
    assert study.run_study(resolve(grown(), tmp_path))
    cells = list(map(str, cells_of(plain(grown()))))
    assert set(cells) == {*CELLS, "iid/third", "few 0.5/third"}
    assert set(trained) == {(cell, seed, 1 + (cell[0] == "f")) for cell in cells for seed in (0, 1)}
    assert list(json.loads((tmp_path / "summary.json").read_text())) == cells
    kept, shorter = (tmp_path / "config.json").read_text(), make_config().settings.to_dict()
    shorter["few 0.5"]["rounds"] = 1
    for change, words in (
        (dict(seeds=(1, 2)), r"seeds is \[1, 0\] there, \[1, 2\] here"),
        (dict(sweep={SWEPT: (0.25,)}), r"sweep.methods.* is \[0.5, 0.25\] there, \[0.25\] here"),
        (dict(settings={}, means={}), "settings.iid.partition.name is iid there, None here"),
        (dict(arms=make_config().arms), "arms.third is {} there, None here"),
        (dict(arms=make_config().arms.to_dict() | dict(third=dict(clients=2))), "arms.third.clients is None there, 2"),
        (dict(settings=shorter), "^[^;]* settings.few 0.5.rounds is 2 there, 1 here; choose another --workdir$"),
    ):
        check(words, lambda given=change: study.run_study(resolve(grown(**given), tmp_path)))
    assert (tmp_path / "config.json").read_text() == kept
    for key in ("settings", "arms"):  # without them runs have other places
        with claimed(tmp_path / key, plain(grown(**{key: {}}, means={}, sweep={}))):
            pass
        with pytest.raises(UserError, match=f"{key}.* is None there"), claimed(tmp_path / key, plain(grown(sweep={}))):
            pass


def test_a_cell_is_trained_as_the_same_study_without_settings(config, tmp_path):
    """Bit for bit, for its own number of rounds; and what is left of it is loaded again."""
    config.settings, config.sweep = {"few 0.5": config.settings["few 0.5"].to_dict()}, {}
    config.arms = dict(decorr=config.arms["decorr"].to_dict())
    alone = base.get_config()
    resolved = resolve_arm(plain(config), "decorr", "few 0.5")
    for key in resolved:
        alone[key] = resolved[key]
    alone.arms = dict(only=dict())
    folders = tmp_path / "cells", tmp_path / "alone"
    for each, folder in zip((config, alone), folders, strict=True):
        assert study.run_study(resolve(each, folder))
    runs = folders[0] / "few 0.5" / "decorr" / "seed0", folders[1] / "only" / "seed0"
    first, second = ((run / "metrics.jsonl").read_text() for run in runs)
    assert first == second and len(first.splitlines()) == 2
    params = [load_run(run).variables.params for run in runs]
    assert_same_bits(*params)

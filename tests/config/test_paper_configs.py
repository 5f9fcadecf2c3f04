"""Every config of a published table or figure: it can be made as it stands, and the rounds of its small version."""

import functools
import importlib
from pathlib import Path

import pytest
from conftest import long_where
from test_study_configs import stand_in

from experiments.benchmarks.published import PUBLISHED
from experiments.config_files import CONFIGS
from experiments.study.preparing import Examples, plan_of
from experiments.study.resolving import resolve
from fedjax_collapse.config import build
from fedjax_collapse.config.cells import Arm, arms_of, means_of, settings_of, shown_cells
from fedjax_collapse.config.plain_values import plain
from fedjax_collapse.config.published import by_setting
from fedjax_collapse.data import augment, partition
from fedjax_collapse.results.metrics import ACCURACY, TO_TARGET
from fedjax_collapse.results.paper import paper_of
from fedjax_collapse.results.study import Results, Run
from fedjax_collapse.results.tables import pivot
from fedjax_collapse.run.fingerprint import flatten

pytestmark = pytest.mark.slow

PAPERS = ("feddecorr", "fedmr", "feduv")
FILES = sorted(p for name in PAPERS for p in (CONFIGS / name).glob("*.py") if p.stem not in ("base", "__init__"))
PAGES = ("fedmr/table5", "fedmr/table7")
ONE = {"feddecorr/table8": "digits-0.1-resnet18", "fedmr/table5": "glyphs100-P10C10"}  # setting, of little work


def label(path):
    return f"{path.parent.name}/{path.stem}"


def module_of(path):
    return importlib.import_module(f"experiments.configs.{path.parent.name}.{path.stem}")


def config_of(path, arg):
    return module_of(path).get_config(arg)


@pytest.mark.parametrize("arg", ["full", "offline"])
@pytest.mark.parametrize("path", FILES, ids=label)
def test_only_its_full_version_is_compared_with_the_paper(path, arg):
    config = plain(config_of(path, arg))
    paper = paper_of(config)
    assert paper is None or arg == "full" or not paper.comparable
    names = {cell.values["partition"]["name"] for cell in resolve(config_of(path, arg), Path()).cells}
    assert all(callable(getattr(partition, name)) for name in names)
    assert f"--config=experiments/configs/{path.parent.name}/{path.name}:offline" in path.read_text()


@pytest.mark.parametrize("path", [path for path in FILES if "\nPAPER = {" in path.read_text()], ids=label)
def test_every_row_of_the_paper_has_a_number_for_each_column(path):
    """Settings and further columns."""
    config = config_of(path, "full")
    columns = [*config["settings"], *config["paper"].get("columns", ())]
    assert {len(row) for row in module_of(path).PAPER.values()} == {len(columns)}


@pytest.mark.parametrize("arg", ["full", "offline"])
@pytest.mark.parametrize("path", FILES, ids=label)
def test_its_report_has_every_row_and_column_of_the_table(path, arg):
    """Arms by settings and means over settings; and each of the paper's numbers at its place, beside or below ours."""
    config = plain(config_of(path, arg))
    paper, means = paper_of(config), means_of(config)
    measured = [metric for _, metric in paper.columns.values()] if paper else []
    metric = paper.metric if paper else ACCURACY
    row = {"round": 1} | dict.fromkeys(("accuracy", metric.name, *measured), 0.125)
    cells = [shown for shown, _ in shown_cells(config).values()]
    runs = [Run(cell.setting, cell.arm, 0, [row], [{"round": 1, "train": 0.125}]) for cell in cells]
    arms_in = {setting: {arm: Arm({}, arm, {}) for arm in arms_of(config)} for setting in settings_of(config)}
    (_, *columns), *rows = pivot(Results(Path(), config, runs, arms_in), metric, paper).rows
    table = {name: dict(zip(columns, cells, strict=True)) for name, *cells in rows}
    settings = [setting or metric.heading for setting in settings_of(config)]
    assert columns == [*settings, *(paper.columns if paper else ()), *means]
    assert [name for name in table if not name.endswith("(paper, not comparable)")] == list(arms_of(config))
    ours, form = ("0.125", ".6g") if paper and not paper.is_percent else ("12.50", ".2f")
    ours = "1" if metric == TO_TARGET else ours
    assert {cell.partition(" ")[0] for arm in arms_of(config) for cell in table[arm].values()} == {ours}
    for setting, of_arms in paper.values.items() if paper else ():
        for arm, value in of_arms.items():
            theirs = table[arm if paper.comparable else f"{arm} (paper, not comparable)"]
            spread = paper.spreads.get(setting, {}).get(arm)
            assert theirs[setting or metric.heading].endswith(
                f"{value:{form}}" if spread is None else f"{value:{form}} ± {spread:{form}}"
            )


@pytest.mark.parametrize("path", FILES, ids=label)
def test_smoke_is_the_same_study_as_offline(path):
    """The same arms; settings among its settings, which differ in the same keys; seconds of training."""
    offline, smoke = (plain(config_of(path, arg)) for arg in ("offline", "smoke"))
    assert list(arms_of(smoke)) == list(arms_of(offline)) and list(arms_of(offline)) == list(
        arms_of(plain(config_of(path, "full")))
    )
    assert set(settings_of(smoke)) <= set(settings_of(offline)) and smoke["rounds"] == 2 and smoke["seeds"] == (0,)
    assert len(settings_of(smoke)) <= 4


@pytest.mark.parametrize("name", PAPERS)
def test_small_is_one_setting_of_offline_and_two_million_examples(name):
    """With one seed, the same arms, and the paper's numbers for that setting, which are not comparable."""
    path = CONFIGS / name / "table1.py"
    offline, small = (plain(config_of(path, arg)) for arg in ("offline", "small"))
    ((setting, changes),) = settings_of(small).items()
    assert changes == offline["settings"][setting] and small["arms"] == offline["arms"] and len(small["seeds"]) == 1
    paper, whole = paper_of(small), paper_of(offline)
    assert not paper.comparable and paper.why and paper.values == {setting: whole.values[setting]}
    assert set(paper.values[setting]) == set(small["arms"]) and set(paper.spreads) <= {setting}
    examples = Examples(resolve(config_of(path, "small"), Path()).cells, small["seeds"]).of(setting)
    trained = sum(of_seed[0].ownership.sizes.sum() for of_seed in examples.values())
    assert trained * small["rounds"] * small["training"]["epochs"] <= 2_000_000


def test_networks_of_the_published_settings_fit_their_images():
    """Every network with every shape of image, of all full configs; data are not read."""
    made = {}
    for cell in [cell.values for path in FILES for cell in resolve(config_of(path, "full"), Path()).cells]:
        num_classes, shape = PUBLISHED[cell["data"]["source"]]
        shape = augment.output_shape(build.augmentation(cell["training"]["augmentation"]), shape)
        made[repr((cell["network"], num_classes, shape))] = cell, stand_in(num_classes, shape)
    assert len(made) > 15
    for given in made.values():
        build.model(*given)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_offline_data_can_be_divided_as_it_says(path):
    """For all seeds of every setting, on data that need no network; some client has a whole batch."""
    config = config_of(path, "offline")
    cells, parts = resolve(config, Path()).cells, ("data", "partition", "clients")
    for own in {repr([own[name] for name in parts]): own for _, _, own in cells}.values():
        for federation in build.federations(own, config.seeds).values():
            assert federation.num_clients == own["clients"]
            assert federation.ownership.sizes.max() >= own["training"]["batch_size"]


def small(path):
    """The small version, in one setting where it does not write its page: others differ in data or network alone."""
    config = config_of(path, "smoke")
    settings = plain(config)["settings"]
    if label(path) not in PAGES or label(path) in ONE:
        setting = ONE.get(label(path), next(iter(settings)))
        config.settings = {setting: settings[setting]}
    return config


def kinds(values):
    """The value of every key but for its numbers, of which only the type counts."""

    def kind(value):
        return {name: part if isinstance(part, (str, bool)) else type(part) for name, part in flatten(value).items()}

    return {(key, repr(kind(value))) for key, value in values.items()}


@functools.cache
def new_arms():
    """By config the arms of its small version in which some key has a kind of value that it has in no arm before."""
    seen, new = set(), {}
    for path in FILES:
        for cell in resolve(small(path), Path()).cells:
            if not kinds(cell.values) <= seen:
                new.setdefault(path, set()).add(cell.arm)
                seen |= kinds(cell.values)
    return new


@pytest.mark.parametrize("paper", long_where(["feddecorr"], PAPERS))
def test_rounds_of_small_versions_are_traced(paper):
    """Every kind of value of every key, with data; what compiled rounds compute is tested method by method."""
    for path, arms in new_arms().items():
        if path.parent.name == paper:
            spec = resolve(small(path), Path(), arms)
            examples = Examples(spec.cells, spec.seeds)
            for run in spec.runs:
                federation = examples.of(run.cell.setting)[run.cell.name][run.seed]
                assert plan_of(run.cell, federation).schedule.rounds == 2, path


def test_a_table_is_by_setting_and_arm():
    rows = {"a": (1.0, None), "b": (2.0, 3.0)}
    assert by_setting(rows, ("x", "y")) == {"x": {"a": 1.0, "b": 2.0}, "y": {"b": 3.0}}

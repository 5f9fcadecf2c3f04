"""Files of a run that are damaged, lost or cut short: a start continues to the same bits, or says in one line what is
wrong; and it changes nothing before it knows what it continues from."""

import contextlib
import random
import re
import shutil
import warnings
from pathlib import Path

import jax
import pytest
from conftest import assert_same_bits, cases, check
from small_studies import rows_of, start, tree, write_config

from fedjax_collapse import FedAvg, LocalTraining, UserError, engine, simulate
from fedjax_collapse.engine.timing_cache import cached_numbers
from fedjax_collapse.run.checkpoint import Checkpoints
from fedjax_collapse.run.history import KINDS, read_arrays
from fedjax_collapse.run.resumption import Folders, rounds_kept
from fedjax_collapse.run.runs import Run, Schedule, initialize

pytestmark = pytest.mark.slow

ALGORITHM = FedAvg(LocalTraining(epochs=1, batch_size=16, learning_rate=0.05))
SCHEDULE = Schedule(6, participation=0.6, checkpoint_every=2)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def stopped(federation, model, tmp_path_factory):
    """The folder of a run that was stopped after four of six rounds, with checkpoints of two and four."""
    folder, rows = tmp_path_factory.mktemp("stopped"), []
    options = dict(SCHEDULE._asdict(), key=jax.random.key(0), client_map=engine.Vectorized(), folder=folder)
    options["measurements"] = dict(options["measurements"])
    ends = dict(listener=lambda row, _: rows.append(row), should_stop=lambda: len(rows) == 4)
    simulate(federation, model, ALGORITHM, **options, **ends)
    assert rounds_kept(folder) == (2, 4)
    return folder


def flip(file, rng):
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def truncate(file, rng):
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])


DAMAGES = {
    "flip": (flip, 3),
    "truncate": (truncate, 1),
    "empty": (lambda file, rng: file.write_bytes(b""), 1),
    "delete": (lambda file, rng: file.unlink(), 1),
}


@pytest.fixture(scope="module")
def opened(federation, model, stopped, tmp_path_factory):
    """Opens a folder as a start does, without training: the round, state and history to continue from."""
    place = tmp_path_factory.mktemp("opening") / "run"
    shutil.copytree(stopped, place)
    run = Run(federation, ALGORITHM, jax.random.key(0), place)
    fresh = [initialize(run, model, SCHEDULE)[1]]

    def open_folder():
        folders = Folders([run], model, SCHEDULE)
        (state,), (history,) = folders.open(fresh), folders.histories
        return int(state.round), state, history

    return place, open_folder


@pytest.fixture
def opening(opened, stopped):
    """The same, of a folder that is whole."""
    shutil.rmtree(opened[0])
    shutil.copytree(stopped, opened[0])
    return opened


@pytest.mark.parametrize("kind", DAMAGES)
def test_whatever_happens_to_a_file_is_noticed_or_changes_nothing(opening, stopped, kind):
    """Every file of a run, of checkpoints too: a start resumes from what was there, else one line says why."""
    place, open_folder = opening
    damage, times = DAMAGES[kind]
    rng, outcomes = random.Random(kind), []
    template = open_folder()[1]
    states = {round: Checkpoints(stopped / "checkpoints").load(round, template)[0] for round in (2, 4)}
    files = sorted(path.relative_to(stopped) for path in stopped.rglob("*") if path.is_file() and path.stat().st_size)
    for name in [file for file in files for _ in range(times)]:
        shutil.rmtree(place)
        shutil.copytree(stopped, place)
        damage(place / name, rng)
        before = tree(place)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            try:
                round, state, history = open_folder()
            except UserError as error:
                assert "\n" not in str(error) and str(place) in str(error), name
                assert tree(place) == before, name
                outcomes.append("refused")
                continue
        assert_same_bits(jax.random.key_data(state.key), jax.random.key_data(states[round].key))
        assert_same_bits(state._replace(key=()), states[round]._replace(key=()))
        assert history.rows == rows_of(stopped)[:round], name
        for array in KINDS:
            assert_same_bits(read_arrays(place, array), read_arrays(stopped, array, round))
        assert (round == 2) == any("continues from round 2, to the same results" in str(w.message) for w in said), name
        outcomes.append(round)
    assert {2, 4} <= set(outcomes) if kind == "flip" else 2 in outcomes
    assert outcomes.count("refused") < len(outcomes) / 2


def test_without_a_whole_checkpoint_one_line_says_what_to_do(opening):
    place, open_folder = opening
    for round in ("2", "4"):
        flip(place / "checkpoints" / round / "state" / "_METADATA", random.Random(0))
    before = tree(place)
    check(r"4/state/_METADATA: differs .* no checkpoint is whole: restore it, or remove", open_folder)
    assert tree(place) == before


@cases(
    (lambda lines: [b"\x00" + lines[0][1:], *lines[1:]], "line 1: this row differs from what was written"),
    (lambda lines: [lines[0], lines[0], *lines[1:]], "line 2: round 1 comes after round 1"),
    (lambda lines: lines[1:], "line 1: round 2, expected round 1"),
)
def test_a_damaged_lost_or_doubled_row_is_named(change, words, opening):
    """None is emptied, as both checkpoints need it."""
    place, open_folder = opening
    lines = (place / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (place / "metrics.jsonl").write_bytes(b"".join(change(lines)))
    before = tree(place)
    check(rf"metrics\.jsonl, {words}", open_folder)
    assert tree(place) == before


@cases(
    (lambda lines: [lines[0], b"\x80" + lines[1][1:], *lines[2:]], (2,)),
    (lambda lines: [lines[0].replace(b'"round": 1', b'"round": 9'), *lines[1:]], (1,)),
    (lambda lines: lines[:1], (2, 3, 4)),
    (lambda lines: [lines[0].replace(b'"train": ', b'"train": 7'), *lines[1:]], ()),
)
def test_damaged_seconds_do_not_condemn_a_run(change, lost, opening, stopped):
    """Of the newest round, too; a warning says what is lost or may be wrong, and the results are those of before."""
    place, open_folder = opening
    whole = rows_of(stopped, "timing")
    (place / "timing.jsonl").write_bytes(b"".join(change((place / "timing.jsonl").read_bytes().splitlines(True))))
    words = f"seconds of round {', '.join(map(str, lost))} cannot be read" if lost else "its seconds may be wrong"
    with pytest.warns(UserWarning, match=rf"timing\.jsonl: .*{words}"):
        round, _, history = open_folder()
    assert round == 4 and tree(place).keys() == tree(stopped).keys()
    assert [row["round"] for row in history.timing] == [row["round"] for row in whole if row["round"] not in lost]
    assert all((place / name).read_bytes() == (stopped / name).read_bytes() for name in ("metrics.jsonl", "run.json"))
    assert rows_of(place, "timing") == [row for row in whole if row["round"] not in lost] or not lost


def test_what_comes_after_the_checkpoint_may_be_damaged(opening, stopped):
    place, open_folder = opening
    for name in ("metrics.jsonl", "timing.jsonl"):
        with (place / name).open("ab") as file:
            file.write(b'{"round": 5, "acc\x00\n\n{"round": 3}\n{"rou')
    (place / "spectra" / "000005.npz").write_bytes(b"PK")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_folder()[0] == 4
    assert tree(place) == tree(stopped)


def test_a_checkpoint_that_is_not_whole_does_not_count(tmp_path, monkeypatch):
    """Whatever a save that is killed leaves beside it is removed by the next one."""
    state, checkpoints = {"weights": jax.numpy.arange(3.0)}, Checkpoints(tmp_path)
    checkpoints.save(1, state, {})
    checkpoints.wait()
    with monkeypatch.context() as patch:
        patch.setattr("fedjax_collapse.run.checkpoint._hashes", lambda path: 1 / 0)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        checkpoints.save(2, state, {})
        with pytest.raises(ZeroDivisionError):
            checkpoints.wait()
    assert (tmp_path / "new" / "2").is_dir() and checkpoints.rounds == (1,)
    checkpoints.save(2, {"weights": jax.numpy.ones(3)}, {"a": 1})
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    assert checkpoints.load(2, state)[1] == {"a": 1} and checkpoints.load(2, state)[0]["weights"].tolist() == [1, 1, 1]
    checkpoints.save(3, state, {})
    assert checkpoints.rounds == (2, 3)


def test_a_timing_that_was_changed_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device, measured = jax.devices()[0], iter(({"1": 2.5}, {"1": 3.5}))
    assert [cached_numbers("t", device, 1, lambda: next(measured)) for _ in range(2)] == [{"1": 2.5}] * 2
    (file,) = tmp_path.rglob("*.json")
    file.write_text(file.read_text().replace("2.5", "2.0"))
    assert cached_numbers("t", device, 1, lambda: next(measured)) == {"1": 3.5}


def test_nothing_that_is_read_can_run_code():
    """No pickle: ``numpy.load`` and ``torch.load`` say so. The processes of one command send each other pickles."""
    own = {ROOT / "fedjax_collapse/core/processes.py", ROOT / "experiments/benchmarks/workloads.py"}
    for path in (*ROOT.glob("fedjax_collapse/**/*.py"), *ROOT.glob("experiments/**/*.py")):
        text = path.read_text()
        loads = re.findall(r"\b(?:np|numpy)\.load\([^)]*\)", text)
        assert all("allow_pickle=False" in call for call in loads), path
        loads = re.findall(r"\btorch\.load\([^)]*\)", text)
        assert all("weights_only=True" in call for call in loads), path
        imported = re.search(r"^\s*(?:import|from) (?:pickle|dill|joblib|shelve|marshal)\b", text, re.M)
        assert path in own or not imported, path
        assert "allow_pickle=True" not in text and "weights_only=False" not in text, path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a finished study of one small run, and what starts it again; the exit status."""
    place = tmp_path_factory.mktemp("study")
    config = write_config(place, "config.arms, config.engine.layout = dict(fedavg=dict()), 'vectorized'")

    def start_again():
        return start(config, f"--workdir={place / 'study'}", should_stop=lambda: False)

    assert start_again() == 0
    return place / "study", start_again


@cases(
    ("config.json", 2),
    ("fedavg/seed0/partition.npz", 0),
    ("fedavg/seed0/final.npz", 0),
    ("fedavg/seed0/timing.jsonl", 0),
    ("fedavg/seed0/clients.npz", 1),
)
def test_a_damaged_file_of_a_study_is_written_anew_or_named(name, status, study, capsys):
    """What follows from the rest is written again, what does not is one line."""
    folder, start = study
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[:20] + b"\x80" + whole[21:60])
    before = tree(folder)
    with pytest.warns(UserWarning, match="seconds of round 1") if "timing" in name else contextlib.nullcontext():
        assert start() == status
    assert (folder / "fedavg" / "seed0" / "metrics.jsonl").read_bytes() == before["fedavg/seed0/metrics.jsonl"]
    if status:
        lines = capsys.readouterr().err.splitlines()  # of a run's file: that of the run, and that of the report
        assert len(lines) == 1 + (status == 1)
        assert all(line.startswith("error: ") and (name in line or "--workdir" in line) for line in lines)
        assert all((folder / file).exists() for file in before)
    else:
        assert "timing" in name or (folder / name).read_bytes() == whole
    (folder / name).write_bytes(whole)

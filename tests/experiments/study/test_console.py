"""Progress and final table, on a terminal and elsewhere."""

import io
import re
import time
from pathlib import Path

import pytest
from conftest import cases

from experiments.study.progress.console import Console
from fedjax_collapse.config.cells import Arm
from fedjax_collapse.core import terminal
from fedjax_collapse.results import Results, Run

ROW = {"accuracy": 0.61234, "effective_rank": 12.34, "R": -0.41}
TIMING = {"compile": 0.0, "train": 1.5, "evaluate": 0.5, "samples": 3000, "samples_per_second": 2000.0}


def study_of(**measured) -> Results:
    """Three runs of fedavg, with mean ± standard deviation 0.5 ± 0.01 of what is recorded, and one of feddecorr."""
    rows = [{"round": 1} | dict.fromkeys(("accuracy", "effective_rank"), value) for value in (0.49, 0.5, 0.51)]
    runs = [Run("", "fedavg", seed, [row | measured]) for seed, row in enumerate(rows)]
    runs.append(Run("", "feddecorr", 0, [{"round": 1, "accuracy": 0.75, "effective_rank": None} | measured]))
    return Results(Path(), {}, runs, {"": {run.arm: Arm({}, run.arm, {}) for run in runs}})


SIX = {("fedavg", seed): 30 for seed in range(1, 7)}  # runs to come, and their rounds


@pytest.fixture(autouse=True)
def of_any_terminal(monkeypatch):
    """The environment of a terminal with colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)


class Stream(io.TextIOWrapper):
    """A text stream of a given encoding that may claim to be a terminal."""

    def __init__(self, encoding="utf-8", terminal=False):
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal, self.flushed = terminal, 0

    def isatty(self):
        return self.terminal

    def flush(self):
        self.flushed += 1
        super().flush()

    def text(self) -> str:
        return self.buffer.getvalue().decode(self.encoding)


def run(console: Console, arm="fedavg", rounds=range(1, 31), timing=TIMING, row=ROW, of=30) -> None:
    console.start_runs([(arm, 1)], rounds[0] - 1, of)
    for r in rounds:
        console.update([{"round": r} | row], [{"round": r} | timing])
    console.finish_runs()


def test_plain_lines_are_few_flushed_and_without_control_characters():
    stream = Stream()
    with Console(SIX, stream) as console:
        run(console)
    lines = stream.text().splitlines()
    assert lines[0] == "[1/6] fedavg seed 1: starts, compiling"
    shown = "[1/6] fedavg seed 1  round  1/30  accuracy 61.23 %  effective rank 12.3  R −0.410  2000"
    assert lines[1].startswith(shown)
    assert [int(line.split("round")[1].split("/")[0]) for line in lines[1:]] == [1, 6, 11, 16, 21, 26, 30]
    assert lines[1].endswith("left 0:58 (study 5:58)") and lines[-1].endswith("left 0:00 (study 5:00)")
    assert all(line.isprintable() for line in lines)
    assert stream.flushed >= len(lines)


def test_time_left_counts_rounds_between_evaluations():
    console = Console({("fedavg", 0): 20, ("fedavg", 1): 20}, Stream())
    console.start_runs([("fedavg", 0)], 10, 20)
    assert console.time_left() == (None, None)
    console.update([{"round": 12}], [{"compile": 0.0, "train": 6.0, "evaluate": 2.0}])
    assert console.time_left() == (8 * 4.0, 8 * 4.0 + 20 * 4.0)
    console.update([{"round": 14}], [{"compile": 0.0, "train": 2.0, "evaluate": 0.0}])
    assert console.time_left() == (6 * 1.0, 6 * 1.0 + 20 * 1.0)
    console.update([{"round": 16}], [{"compile": None, "train": None, "evaluate": None}])
    assert console.time_left()[0] == 4 * 1.0
    console.expect({("fedavg", 1): 5})
    assert console.time_left()[1] == 4 * 1.0 + 5 * 1.0
    console.leave_out([("fedavg", 1)])
    assert console.time_left()[1] == 4 * 1.0


def test_runs_of_an_arm_are_one_line_and_arms_are_never_averaged():
    """Mean and spread over seeds of each arm; the speed and the time left are those of their program."""
    stream = Stream()
    runs = [("fedavg", 0), ("fedavg", 2), ("b", 0)]
    with Console(dict.fromkeys([*runs, ("b", 2)], 10), stream) as console:
        console.start_runs(runs, 0, 10)
        rows = [{"round": 5, "accuracy": accuracy, "effective_rank": 4.0, "R": 0.5} for accuracy in (0.2, 0.4, 0.9)]
        console.update(rows, [TIMING | {"samples": 3000 * n} for n in (1, 1, 4)])
    first, of_fedavg, of_b = stream.text().splitlines()
    assert first == "[1-3/4] fedavg seeds 0, 2; b seed 0: starts, compiling"
    shared = "effective rank 4.0  R 0.500"
    assert of_fedavg == f"[1-3/4] fedavg seeds 0, 2  round  5/10  accuracy 30.00 ± 14.14 %  {shared}"
    speed = "4000 samples/s  left 0:06 (study 0:10)"
    assert of_b == f"[1-3/4] b seed 0  round  5/10  accuracy 90.00 %  {shared}  {speed}"


def test_the_line_on_cohorts_and_memory_is_printed_once_a_study():
    """But again for another cohort; and other lines about a run are printed each time."""
    stream = Stream()
    console = Console(SIX, stream)
    for number, cohort in enumerate([10, 10, 5, 10]):
        console.start_runs([("fedavg", number)], 0, 30)
        console.announce(f"cohorts of {cohort}, one by one; {number} MiB")
        console.update([{"round": 1} | ROW], [TIMING])
        console.announce("round 1 is not finite")
    text = stream.text()
    assert [int(n) for n in re.findall(r"(\d+) MiB", text)] == [0, 2] and text.count("is not finite") == 4


@cases(("utf-8", "±"), ("ascii", "+-"), ("cp1252", "±"))
def test_final_table_lines_up_and_fits_the_encoding(encoding, sign):
    stream = Stream(encoding)
    Console(stream=stream).print_table(study_of())
    *lines, note = stream.text().splitlines()
    assert f"50.00 {sign} 1.00" in lines[1] and lines[2].split() == ["feddecorr", "75.00", "75.00", "-", "1"]
    assert note.startswith("Accuracy: after the last round; best")
    assert len({len(line) for line in lines}) == 1


def test_notes_are_safe():
    stream = Stream("ascii")
    Console(stream=stream).note("a\x1b[31m é\nb")
    assert stream.text() == "a [31m ?\nb\n"


@cases("utf-8", "ascii")
def test_terminal_shows_a_live_display(encoding):
    stream = Stream(encoding, terminal=True)
    console = Console({("[red]é", seed): 30 for seed in range(1, 7)}, stream)
    with console:
        console.note("[bold]literal[/bold]")
        run(console, arm="[red]é")
    console.print_table(study_of())
    text = stream.text()
    assert "\x1b[" in text and "starts, compiling" in text and "round 30/30" in text and "[1/6] [red]" in text
    assert "[bold]literal[/bold]" in text and "Effective" in text and "left 0:58 (study 5:58)" in text


@cases(40, 120, 280)
def test_wide_tables_are_divided(columns, monkeypatch):
    """Into parts beside the arms' names, so that no cell is broken or cut; all in one where there is room."""
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Stream(terminal=True)
    Console(stream=stream).print_table(study_of(**{f"measured/nearest_centroid_{i}/server": 0.12345 for i in range(6)}))
    lines = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", stream.text()).splitlines() if line.strip()]
    rows = [line for line in lines if line.split()[0] in ("fedavg", "feddecorr")]
    assert max(map(len, lines)) <= columns
    assert sum(row.count("0.1235") for row in rows) == 2 * 6
    assert (len(rows) == 2) == (columns == 280) and (len(rows) > 8) == (columns == 40)


def test_live_display_ends_on_an_error():
    stream = Stream(terminal=True)
    with pytest.raises(KeyboardInterrupt), Console(SIX, stream) as console:
        console.start_runs([("fedavg", 1)], 0, 30)
        raise KeyboardInterrupt
    *_, end = stream.text().split("\x1b[?25h")  # the cursor is back, and the bars are erased
    assert set(end.split("\x1b[")[1:]) == {"1A", "2K"}


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    return Stream(terminal=True)


def test_wait_shows_nothing_of_short_work(screen):
    for stream in screen, Stream():
        with Console(stream=stream).wait("reading 9 runs", 9) as advance:
            advance()
        assert stream.text() == ""


def wait_for(words, stream):
    """Until another thread has shown the words."""
    for _ in range(1000):
        if words in stream.text():
            return
        time.sleep(0.01)
    raise AssertionError(stream.text())


def test_wait_is_one_line_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    stream = Stream()
    with Console(stream=stream).wait("reading 9 runs", 9) as advance:
        wait_for("reading 9 runs ...\n", stream)
        advance()
    assert stream.text() == "reading 9 runs ...\n"


def test_wait_is_a_bar_on_a_terminal_until_it_ends(monkeypatch, screen):
    """The number of parts may be known late."""
    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    console = Console(stream=screen)
    with console.wait("reading 9 runs") as advance:
        wait_for(" 0/? ", screen)
        advance()
        console.note("a line above it")
        advance(7, total=9)
        console.bars.refresh()
    assert "\x1b[2Ka line above it\n" in screen.text() and " 8/9 " in screen.text()
    assert screen.text().endswith("\r\x1b[2K\x1b[?25h\r")  # erased, and the cursor is back

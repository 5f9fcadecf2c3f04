"""What is shown during long waits, by a clock that the tests turn."""

import pytest
from test_console import Stream

from experiments import waiting
from experiments.study.progress.console import Console


@pytest.fixture
def timers(monkeypatch):
    """The timers that were started; a test calls ``ring`` where three seconds have passed."""
    started = []

    class Timer:
        def __init__(self, seconds, function):
            assert seconds == waiting.PATIENCE
            self.ring, self.is_cancelled = function, False

        def start(self):
            started.append(self)

        def cancel(self):
            self.is_cancelled = True

    monkeypatch.setattr(waiting, "Timer", Timer)
    return started


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return Stream(terminal=True)


def test_a_short_wait_shows_nothing(timers, terminal):
    for stream in terminal, Stream():
        with Console(stream=stream).wait("reading 9 runs", 9) as advance:
            advance()
        assert stream.text() == "" and timers[-1].is_cancelled
        timers[-1].ring()  # too late
        assert stream.text() == ""


def test_a_long_wait_is_one_line_where_there_is_no_terminal(timers):
    stream = Stream()
    with Console(stream=stream).wait("reading 9 runs", 9) as advance:
        timers[0].ring()
        for _ in range(9):
            advance()
    assert stream.text() == "reading 9 runs ...\n"


def test_a_long_wait_is_a_bar_on_a_terminal_until_it_ends(timers, terminal):
    console = Console(stream=terminal)
    with console.wait("reading 9 runs", 9) as advance:
        advance()
        timers[0].ring()
        assert "reading 9 runs" in terminal.text() and " 1/9 " in terminal.text()
        console.note("a line above it")
        advance(8)
    shown = terminal.text()
    assert " 9/9 " in shown and "a line above it" in shown
    assert shown.rstrip("\n").endswith("\x1b[2K") and "\x1b[?25h" in shown  # erased, and the cursor is back


def test_the_number_of_parts_may_be_known_late(timers, terminal):
    with Console(stream=terminal).wait("timing the methods") as advance:
        timers[0].ring()
        assert "/" not in terminal.text()
        advance(total=24)
    assert " 1/24 " in terminal.text()


def test_waits_may_be_nested(timers, terminal):
    console = Console(stream=terminal)
    with console.wait("preparing 2 runs", 2) as advance:
        timers[0].ring()
        with console.wait("timing lowerings", 3):
            timers[1].ring()
            assert "timing lowerings" in terminal.text()
        before = len(terminal.text())
        advance()
    after = terminal.text()[before:]
    assert "timing lowerings" not in after and "preparing 2 runs" in after


def test_the_bar_of_a_wait_that_fails_is_gone(timers, terminal):
    with pytest.raises(KeyboardInterrupt), Console(stream=terminal).wait("reading"):
        timers[0].ring()
        raise KeyboardInterrupt
    assert "\x1b[?25h" in terminal.text()


def test_by_default_it_is_on_standard_error(timers, capsys):
    with waiting.wait("timing the methods"):
        timers[0].ring()
    assert capsys.readouterr() == ("", "timing the methods ...\n")

"""What is shown during long waits, by a clock that the tests turn."""

import pytest
from test_console import Stream

from experiments.study.progress.console import Console
from fedjax_collapse.core import terminal


@pytest.fixture
def timers(monkeypatch):
    """The timers that were started; a test calls ``ring`` where three seconds have passed."""
    started = []

    class Timer:
        def __init__(self, seconds, function):
            assert seconds == terminal.PATIENCE
            self.ring = function

        def start(self):
            started.append(self)

        def cancel(self):
            self.ring = None

        def join(self):
            assert self.ring is None  # or it might still show something

    monkeypatch.setattr(terminal, "Timer", Timer)
    return started


@pytest.fixture
def screen(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")
    return Stream(terminal=True)


def test_a_short_wait_shows_nothing(timers, screen):
    for stream in screen, Stream():
        with Console(stream=stream).wait("reading 9 runs", 9) as advance:
            advance()
        assert stream.text() == ""


def test_a_long_wait_is_one_line_where_there_is_no_terminal(timers):
    stream = Stream()
    with Console(stream=stream).wait("reading 9 runs", 9) as advance:
        timers[0].ring()
        for _ in range(9):
            advance()
    assert stream.text() == "reading 9 runs ...\n"


def test_a_long_wait_is_a_bar_on_a_terminal_until_it_ends(timers, screen):
    """The number of parts may be known late."""
    console = Console(stream=screen)
    with console.wait("reading 9 runs") as advance:
        timers[0].ring()
        assert "reading 9 runs" in screen.text() and " 0/? " in screen.text()
        advance()
        console.note("a line above it")
        advance(7, total=9)
        console.bars.refresh()
    assert "\x1b[2Ka line above it\n" in screen.text() and " 8/9 " in screen.text()
    assert screen.text().endswith("\r\x1b[2K\x1b[?25h\r")  # erased, and the cursor is back


def test_waits_may_be_nested(timers, screen):
    console = Console(stream=screen)
    with console.wait("preparing 2 runs", 2) as advance:
        timers[0].ring()
        with console.wait("timing lowerings", 3):
            timers[1].ring()
            assert "timing lowerings" in screen.text()
        before = len(screen.text())
        advance()
        console.bars.refresh()
    after = screen.text()[before:]
    assert "timing lowerings" not in after and "preparing 2 runs" in after

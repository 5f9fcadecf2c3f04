"""For systems that run all their rounds in one call, and tell of each by calling a function."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator

from experiments.benchmarks import Round

MANY = 10**6  # rounds, of which such a system is to run more than anybody asks for


class _Over(BaseException):
    """Ends a system of whose rounds there were enough."""


def rounds_of(train: Callable[[Callable[[Round], None]], None]) -> Iterator[Round]:
    """What ``train(report)`` reports, which waits after each until the next is asked for.

    It runs in a thread of its own, and what it raises is raised here. Closing the iterator ends it, and waits for that.
    """
    reports, asked = queue.SimpleQueue(), queue.SimpleQueue()

    def report(round):
        reports.put(round)
        if not asked.get():
            raise _Over

    def run():
        asyncio.set_event_loop(asyncio.new_event_loop())  # which only the main thread has by itself
        try:
            train(report)
            reports.put(None)
        except BaseException as error:
            reports.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while (found := reports.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield found
            asked.put(True)
    finally:
        asked.put(False)
        thread.join()

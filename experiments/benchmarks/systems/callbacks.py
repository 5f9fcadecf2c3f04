"""Turns a training loop that reports its rounds to a callback into an iterator of rounds."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator

from experiments.benchmarks import Round

MANY = 10**6  # rounds to ask such a loop for: more than are ever timed


class _Over(BaseException):
    """Raised in the loop to end it when no more rounds are needed."""


def rounds_of(train: Callable[[Callable[[Round], None]], None]) -> Iterator[Round]:
    """Yields the rounds that ``train(report)`` reports; ``report`` blocks until the next round is requested.

    ``train`` runs in a separate thread; its exceptions are raised here. Closing the iterator ends the thread.
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
        except BaseException as error:
            reports.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while not isinstance(found := reports.get(), BaseException):
            yield found
            asked.put(True)
        raise found
    finally:
        asked.put(False)
        thread.join()

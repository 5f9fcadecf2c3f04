"""For systems that run all their rounds in one call, and tell of each by calling a function."""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator

from experiments.benchmarks import Round


def rounds_of(train: Callable[[Callable[[Round], None]], None]) -> Iterator[Round]:
    """What ``train(report)`` reports, as it does; it runs in a thread of its own, and what it raises is raised here.

    Closing the iterator waits for the end of ``train``.
    """
    reports = queue.SimpleQueue()

    def run():
        asyncio.set_event_loop(asyncio.new_event_loop())  # which only the main thread has by itself
        try:
            train(reports.put)
            reports.put(None)
        except BaseException as error:
            reports.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while (report := reports.get()) is not None:
            if isinstance(report, BaseException):
                raise report
            yield report
    finally:
        thread.join()

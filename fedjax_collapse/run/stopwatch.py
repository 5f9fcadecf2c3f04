"""Seconds of the parts of a round, apart from those of compiling."""

import time

import jax


class Stopwatch:
    """Seconds per lap; tracing and compiling are always counted as a lap called ``compile``."""

    def __enter__(self):
        self.seconds = {"compile": 0.0}
        self._last = time.perf_counter()
        self._compiling: list[tuple[float, float]] = []  # start and end of each, in order and without overlap
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        jax.monitoring.unregister_event_duration_listener(self._listen)

    def lap(self, name: str) -> None:
        """Ends a lap and adds its seconds to the total of this name."""
        now, compiling = time.perf_counter(), sum(end - start for start, end in self._compiling)
        self.seconds[name] = self.seconds.get(name, 0.0) + max(now - self._last - compiling, 0.0)
        self.seconds["compile"] += compiling
        self._last, self._compiling = now, []

    def _listen(self, event: str, seconds: float, **_) -> None:
        if not event.startswith("/jax/core/compile/"):
            return
        end = time.perf_counter()
        start = min(max(end - seconds, self._last), end)  # JAX's clock may be set back or forward
        while self._compiling and self._compiling[-1][1] > start:  # it was part of this
            start = min(start, self._compiling.pop()[0])
        self._compiling.append((start, end))

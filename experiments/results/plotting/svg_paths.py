"""Paths of an SVG in few characters: rounded relative coordinates, without points that no pixel shows."""

import functools
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_TOLERANCE = 0.1  # a point that is nearer to the line between its neighbours is left out
_MARGIN = 15  # further outside of a clipped area, neither a marker nor the width of a line reaches into it
_ONLY_LINES = {"M", "L", "z", "Z"}

Points = list[tuple[float, float]]
Commands = list[tuple[str, Points]]


class Box(NamedTuple):
    """A clipped area."""

    left: float
    top: float
    right: float
    bottom: float

    def sides(self, point: tuple[float, float]) -> list[bool]:
        """Returns for each side of the area whether the point is far beyond it."""
        x, y = point
        beyond = x < self.left - _MARGIN, x > self.right + _MARGIN, y < self.top - _MARGIN, y > self.bottom + _MARGIN
        return list(beyond)


def parse_path(text: str) -> Commands:
    """Returns the commands of a path, all absolute, each with its points."""
    commands: Commands = []
    for command, numbers in re.findall(r"([MLQCzZ])([^MLQCzZ]*)", text):
        values = list(map(float, numbers.split()))
        commands.append((command, list(zip(values[::2], values[1::2], strict=True))))
    return commands


def path_data(commands: Commands, box: Box | None = None, decimals: int = 1, is_thinned: bool = True) -> str:
    """Returns a path in relative coordinates, without points that nobody could see."""
    if is_thinned and {command for command, _ in commands} <= _ONLY_LINES:
        commands = [command for line in _lines(commands) for command in _fewer(line, box)]
    scale, parts, before = 10**decimals, [], ""
    first = last = (0, 0)
    for command, points in commands:
        if command in "zZ":
            numbers, last = "", first
        else:
            places = [(round(scale * x), round(scale * y)) for x, y in points]
            moves = [_multiple(new - old, decimals) for place in places for new, old in zip(place, last, strict=True)]
            numbers, last = " ".join(moves).replace(" -", "-"), places[-1]
            first = last if command == "M" else first
        name = command.lower()
        is_repeated = name == before or (name == "l" and before == "m")
        parts.append(numbers if is_repeated and numbers.startswith("-") else f"{' ' if is_repeated else name}{numbers}")
        before = name
    return "".join(parts)


def _lines(commands: Commands) -> Iterator[Commands]:
    """Yields the parts of a path, each of which starts with a move."""
    part: Commands = []
    for command in commands:
        if command[0] == "M" and part:
            yield part
            part = []
        part.append(command)
    yield part


def _fewer(line: Commands, box: Box | None) -> Commands:
    """Returns a line without the points that are not seen; its first and last point stay."""
    points = [point for _, pairs in line for point in pairs]
    if len(points) < 4:
        return line
    kept = _thinned(_inside(points, box) if box else points)
    end = line[-1:] if line[-1][0] in "zZ" else []
    return [("M", kept[:1]), *(("L", [point]) for point in kept[1:]), *end]


def _inside(points: Points, box: Box) -> Points:
    """Leaves out points that are, like both neighbours, far beyond the same side of the area."""
    kept, beyond = [points[0]], list(map(box.sides, points))
    last = beyond[0]
    for i in range(1, len(points) - 1):
        if not any(a and b and c for a, b, c in zip(last, beyond[i], beyond[i + 1], strict=True)):
            kept.append(points[i])
            last = beyond[i]
    return [*kept, points[-1]]


def _thinned(points: Points) -> Points:
    """Leaves out points that are near the line between those that stay (Douglas and Peucker, 1973)."""
    places, keep = np.array(points), np.zeros(len(points), bool)
    keep[[0, -1]] = True
    parts = [(0, len(points) - 1)]
    while parts:
        first, last = parts.pop()
        if last - first < 2:
            continue
        (x, y), between = places[last] - places[first], places[first + 1 : last] - places[first]
        length = math.hypot(x, y)
        along = np.clip(between @ (x, y) / length**2, 0, 1) if length else np.zeros(len(between))
        distances = np.hypot(*(between - along[:, None] * (x, y)).T)
        if distances.max() > _TOLERANCE:
            middle = first + 1 + int(distances.argmax())
            keep[middle] = True
            parts += [(first, middle), (middle, last)]
    return [point for point, is_kept in zip(points, keep, strict=True) if is_kept]


@functools.lru_cache(maxsize=100_000)
def _multiple(number: int, decimals: int) -> str:
    return short(number / 10**decimals, decimals)


def short(number: float, decimals: int = 1) -> str:
    """Formats a number without zeros that mean nothing."""
    text = f"{number:.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    text = text.replace("0.", ".") if text.startswith(("0.", "-0.")) else text
    return "0" if text == "-0" else text

"""The colours of a study's arms: categorical, or along a scale for the arms of a sweep over one number."""

from collections.abc import Mapping
from numbers import Real

from experiments.results.plotting.drawing import arm_colour
from experiments.results.study_results import Study
from fedjax_collapse.config.cells import Arm, arms_of

_SCALES = ("plasma", "viridis")  # of the first swept arm, of the second and so on
_FROM, _TO = 0.27, 0.78  # the part of a scale that is visible on light and on dark paper


def colours_of(study: Study) -> dict[str, str]:
    """Returns the colour of each arm, the same in every figure and table, in the order of legends.

    Arms that a sweep has made of one arm, with at least two numbers, follow each other by ascending value; their
    colours are evenly spaced on a scale, from its dark end. All other arms have categorical colours.
    """
    groups = _swept(arms_of(study.config))
    group_of = {arm: group for group in groups for arm in group}
    others = [arm for arm in study.arms if arm not in group_of]
    colours: dict[str, str] = {}
    for arm in study.arms:
        if arm in others:
            colours[arm] = arm_colour(others, arm)
        elif arm not in colours:
            group = group_of[arm]
            scale = _scale(_SCALES[groups.index(group) % len(_SCALES)], len(group))
            colours |= {name: colour for name, colour in zip(group, scale, strict=True) if name in study.arms}
    return colours


def _swept(arms: Mapping[str, Arm]) -> list[tuple[str, ...]]:
    """Returns, for each arm of the config that is swept over one axis of numbers, its arms by ascending value."""
    found, values = {}, {}
    for name, arm in arms.items():
        if len(arm.values) == 1:
            found.setdefault((arm.declared, *arm.values), []).append(name)
            (values[name],) = arm.values.values()
    numeric = [group for group in found.values() if len(group) > 1 and all(_is_number(values[name]) for name in group)]
    return [tuple(sorted(group, key=values.get)) for group in numeric]


def _scale(name: str, count: int) -> list[str]:
    """Returns this number of colours of matplotlib's map of that name."""
    import matplotlib
    from matplotlib.colors import to_hex

    return [to_hex(matplotlib.colormaps[name](_FROM + (_TO - _FROM) * i / (count - 1))) for i in range(count)]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)

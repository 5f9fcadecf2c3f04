"""Compact figures show the same as matplotlib's, in fewer characters."""

import base64
import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from experiments.results.plotting import drawing
from experiments.results.plotting.compact_svg import Shared, compact, with_palette
from experiments.results.plotting.svg_paths import Box, parse_path, path_data, short

SVG = "{http://www.w3.org/2000/svg}"


def points_of(data):
    """The points of a path in relative coordinates, as ``path_data`` writes it."""
    found, place = [], np.zeros(2)
    for command, numbers in re.findall(r"([mlz])([^mlz]*)", data):
        values = np.array(re.findall(r"-?\d*\.?\d+", numbers), float).reshape(-1, 2)
        for move in values:
            place = place + move
            found.append(tuple(place))
        assert command != "z" or not len(values)
    return np.array(found)


def as_path(points):
    return [("M", [tuple(points[0])]), *(("L", [tuple(point)]) for point in points[1:])]


def distance(point, line):
    """The distance of a point to a line of several points."""
    starts, moves = line[:-1], np.diff(line, axis=0)
    lengths = np.maximum((moves**2).sum(axis=1), 1e-12)
    along = np.clip(((point - starts) * moves).sum(axis=1) / lengths, 0, 1)
    return np.hypot(*(starts + along[:, None] * moves - point).T).min()


def test_no_point_of_a_line_moves_visibly():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 400, 300)
    for y in (100 + 50 * np.sin(x / 40), rng.normal(200, 40, 300), 0 * x):
        points = np.stack([x, y], axis=1)
        written = points_of(path_data(as_path(points)))
        assert max(distance(point, written) for point in points) < 0.2
        assert max(distance(point, points) for point in written) < 0.1  # half of a unit of the last digit, diagonally
    assert len(written) == 2  # a straight line
    smooth = points_of(path_data(as_path(np.stack([x, 100 + 50 * np.sin(x / 40)], axis=1))))
    assert len(smooth) < 100


def test_points_far_outside_of_the_clipped_area_are_left_out():
    box = Box(300, 0, 400, 300)
    x, y = np.linspace(0, 400, 200), np.random.default_rng(0).uniform(0, 300, 200)
    points = np.stack([x, y], axis=1)
    written = points_of(path_data(as_path(points), box))
    inside = points[x > 290]
    assert len(written) < len(inside) + 12 and max(distance(point, written) for point in inside) < 0.2
    across = np.array([(0, 150), (200, 150), (500, 150), (600, 150.0)])  # leaves the area on both sides
    written = points_of(path_data(as_path(across), box))
    assert written[:, 0].min() < 300 and written[:, 0].max() > 400


def test_curves_keep_their_points():
    text = "M 0 1.5 \nC 0.4 1.5 0.78 1.34 1.06 1.06 \nQ 2 2 3 3 \nL -4.25 0 \nz \nM 7 7 \nL 8 8"
    expected = "m0 1.5c.4 0 .78-.16 1.06-.44q.94 .94 1.94 1.94l-7.25-3zm7 5.5 1 1"
    assert path_data(parse_path(text), decimals=2) == expected
    values = (0.0, -0.001, 0.5, -0.5, 10, 12.346, -20.0)
    assert [short(value, 2) for value in values] == ["0", "0", ".5", "-.5", "10", "12.35", "-20"]


@pytest.fixture(scope="module")
def drawn():
    """A figure of many lines with markers and bands, by matplotlib and in short."""
    out, colours = io.StringIO(), {i: drawing.arm_colour(list(range(12)), i) for i in range(12)}

    @drawing.styled
    def draw():
        figure = drawing.new_figure(3)
        axes = figure.subplots()
        x = np.arange(40)
        for i in range(12):
            y = np.random.default_rng(i).normal(i, 1, 40)
            axes.plot(x, y, label=f"method {i}", **drawing.arm_line(colours, i, 40))
            axes.fill_between(x, y - 1, y + 1, alpha=0.2, linewidth=0)
        axes.set_xlim(10, 30)
        drawing.legend(figure, axes.lines, [line.get_label() for line in axes.lines])
        figure.savefig(out, format="svg")

    draw()
    shared = Shared(drawing.themed)
    return out.getvalue(), compact(out.getvalue(), "a <figure>", shared), shared


def test_a_figure_is_a_fifth_as_large_with_all_that_it_refers_to(drawn):
    text, short_text, shared = drawn
    assert len(short_text) < len(text) / 5 and len(short_text + shared.as_svg()) < len(text) / 2.5
    root = ElementTree.fromstring(f"<page>{shared.as_svg()}{short_text}</page>")
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    used = re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', shared.as_svg() + short_text)
    assert len(ids) == len(set(ids)) and {first or second for first, second in used} == set(ids)
    classes = {element.get("class") for element in root.iter() if element.get("class")}
    assert classes <= set(re.findall(r"\.(_\d+)\{", shared.as_svg()))
    assert 'aria-label="a &lt;figure&gt;"' in short_text and "var(--paper)" in shared.as_svg()


def test_a_second_figure_defines_no_text_and_no_style_again(drawn):
    text, first, shared = drawn
    before = shared.as_svg()
    assert compact(text, "a <figure>", shared) == first and shared.as_svg() == before


def test_markers_and_lines_are_where_matplotlib_has_them(drawn):
    """All markers within the clipped area."""
    text, short_text, _ = drawn
    root = ElementTree.fromstring(text)
    (area,) = [clip[0] for clip in root.iter(f"{SVG}clipPath")]
    left, width = (float(area.get(key)) for key in ("x", "width"))
    uses = [use for group in root.iter(f"{SVG}g") if group.get("clip-path") for use in group]
    markers = [(float(use.get("x")), float(use.get("y"))) for use in uses if float(use.get("y")) < 1000]
    markers = [place for place in markers if left <= place[0] <= left + width]
    found = np.concatenate([points_of(data) for data in re.findall(r'<path d="([^"]*)"', short_text)])
    assert len(markers) > 40
    for place in markers:
        assert np.abs(found - place).max(axis=1).min() < 0.06


def test_an_image_of_few_colours_has_a_palette_and_the_same_pixels():
    from PIL import Image

    def encoded(pixels):
        out = io.BytesIO()
        Image.fromarray(pixels, "RGBA").save(out, "PNG")
        return base64.b64encode(out.getvalue()).decode()

    rng = np.random.default_rng(0)
    few = rng.integers(0, 256, (30, 4)).astype(np.uint8)[rng.integers(0, 30, (60, 50))]
    short_png = with_palette(encoded(few))
    read = Image.open(io.BytesIO(base64.b64decode(short_png)))
    assert read.mode == "P" and len(short_png) < len(encoded(few)) / 2
    np.testing.assert_array_equal(np.asarray(read.convert("RGBA")), few)
    many = rng.integers(0, 256, (60, 50, 4)).astype(np.uint8)
    assert with_palette(encoded(many)) == encoded(many)

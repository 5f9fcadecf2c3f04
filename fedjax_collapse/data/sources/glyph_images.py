"""Synthetic images of characters, drawn from the fonts included in matplotlib; they can replace photographs.

A glyph of a random font is rotated, sheared, scaled, stretched and shifted; a *style* then colours it. Styles are the
domains of feature shift:

* ``clean``: light on dark, with little noise;
* ``coloured``: two colours of random contrast, each with a gradient, parts of neighbouring characters, noise;
* ``outline``: the contour in ink on paper;
* ``textured``: dark on stripes of random direction and width.

Some classes look alike (0 and O, c and C), since sizes vary; no network reaches 100 %.
"""

import functools
import string
from pathlib import Path

import numpy as np

from fedjax_collapse.core.records import UserError

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase + "αβγδεζηθλμξπρστφχψωΓΔΘΛΞΠΣΦΨΩ&@#?!%$+="
FIRST = {10: 0, 26: 10, 62: 0, 100: 0}  # number of classes: the character of class 0
VERSION = 1  # of the drawing; increase it whenever images of a seed change
_FONTS = (
    *(f"DejaVuSans{kind}" for kind in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{kind}" for kind in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{kind}" for kind in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{kind}" for kind in ("", "Bol", "Italic", "BolIta")),
)
_CANVAS = 96  # pixels of a drawn glyph before it is transformed
_CHUNK = 1024  # images coloured at once, to bound memory


def render(labels: np.ndarray, style: str, image_size: int, channels: int, rng: np.random.Generator) -> np.ndarray:
    """Returns an image of each label's character, [labels, image_size, image_size, channels] uint8.

    Raises:
        UserError: if the style is unknown.
    """
    if style not in STYLES:
        raise UserError(f"glyphs: unknown domain {style!r}, expected one of {', '.join(STYLES)}")
    images = np.empty((len(labels), image_size, image_size, channels), np.uint8)
    for first in range(0, len(labels), _CHUNK):
        chunk = slice(first, first + _CHUNK)
        strokes = _draw_transformed(labels[chunk], image_size, style == "outline", rng)
        if style == "coloured":
            strokes = np.maximum(strokes, _neighbours(strokes, rng))
        pixels = _STYLE_FUNCTIONS[style](strokes, rng)
        if channels == 1:
            pixels = pixels @ np.array([[0.299], [0.587], [0.114]])
        images[chunk] = np.rint(np.clip(pixels, 0, 255))
    return images


def _draw_transformed(labels, size, hollow, rng):
    """Returns the coverage of each pixel, [labels, size, size], in [0, 1]."""
    from PIL import Image

    count = len(labels)
    fonts = rng.integers(0, len(_FONTS), count)
    angle, shear = rng.uniform(-0.3, 0.3, count), rng.uniform(-0.25, 0.25, count)
    scale, stretch = rng.uniform(0.8, 1.2, count), rng.uniform(0.85, 1.15, count)
    shift = rng.uniform(-0.08, 0.08, (count, 2)) * _CANVAS
    rotation = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1).reshape(count, 2, 2)
    sheared = np.stack([stretch, shear, np.zeros(count), 1 / stretch], 1).reshape(count, 2, 2)
    matrices = (_CANVAS / size / scale)[:, None, None] * rotation @ sheared  # from pixels of the image to the canvas
    offsets = _CANVAS / 2 + shift - matrices @ np.array([size / 2, size / 2])
    coverage = np.empty((count, size, size), np.float32)
    for row, (label, font) in enumerate(zip(labels, fonts, strict=True)):
        affine = (*matrices[row, 0], offsets[row, 0], *matrices[row, 1], offsets[row, 1])
        glyph = _glyph(CHARACTERS[label], _FONTS[font], hollow)
        coverage[row] = glyph.transform((size, size), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    return coverage / 255


@functools.cache
def _glyph(character, font, hollow):
    """Draws the character on its baseline in the middle of the canvas."""
    from PIL import Image, ImageDraw

    canvas = Image.new("L", (_CANVAS, _CANVAS))
    write = functools.partial(
        ImageDraw.Draw(canvas).text, (_CANVAS / 2, 0.77 * _CANVAS), character, font=_load_font(font), anchor="ms"
    )
    write(fill=255, stroke_width=4 if hollow else 0)
    if hollow:
        write(fill=0)
    return canvas


@functools.cache
def _load_font(name):
    import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf"
    return ImageFont.truetype(str(file), size=round(0.76 * _CANVAS))


def _neighbours(strokes, rng):
    """Returns parts of other glyphs at the left or right edge of half of the images."""
    size = strokes.shape[1]
    side = rng.choice([-1, 0, 0, 1], len(strokes))
    shifted = np.zeros_like(strokes)
    distance = round(0.72 * size)
    others = strokes[rng.permutation(len(strokes))]
    shifted[side == 1, :, distance:] = others[side == 1, :, : size - distance]
    shifted[side == -1, :, : size - distance] = others[side == -1, :, distance:]
    return shifted


def _clean(strokes, rng):
    count = len(strokes)
    return _blend(strokes, rng.uniform(0, 50, (count, 1)), rng.uniform(190, 255, (count, 1))) + _noise(strokes, rng, 3)


def _coloured(strokes, rng):
    count, size, _ = strokes.shape
    ground, ink = rng.uniform(20, 235, (2, count, 3))
    contrast = np.abs((ink - ground).mean(axis=1, keepdims=True))
    away = np.where(ground.mean(axis=1, keepdims=True) < 128, 1, -1) * np.maximum(0, 45 - contrast)
    slopes = rng.normal(0, 30, (2, count, 2, 3))  # of both colours, along both directions, per channel
    position = np.linspace(-1, 1, size)
    gradients = slopes[:, :, None, None, 0] * position[:, None, None] + slopes[:, :, None, None, 1] * position[:, None]
    ground, ink = (c[:, None, None] + g for c, g in zip((ground, ink + away), gradients, strict=True))
    blended = ground + strokes[..., None] * (ink - ground)
    return blended + _noise(strokes, rng, rng.uniform(4, 28, (count, 1, 1, 1)))


def _outline(strokes, rng):
    paper, ink = rng.uniform(200, 250, (len(strokes), 3)), rng.uniform(0, 110, (len(strokes), 3))
    return _blend(strokes, paper, ink) + _noise(strokes, rng, 6)


def _textured(strokes, rng):
    count, size, _ = strokes.shape
    direction, period = rng.uniform(0, np.pi, (count, 1, 1)), rng.uniform(3, 12, (count, 1, 1))
    y, x = np.mgrid[:size, :size]
    phase = 2 * np.pi * (np.cos(direction) * x + np.sin(direction) * y) / period + rng.uniform(0, 7, (count, 1, 1))
    stripes = rng.uniform(20, 55, (count, 1, 1)) * np.sin(phase)
    pixels = _blend(strokes, rng.uniform(140, 210, (count, 3)), rng.uniform(0, 70, (count, 3)))
    return pixels + ((1 - 0.6 * strokes) * stripes)[..., None] + _noise(strokes, rng, 8)


def _blend(coverage, ground, ink):
    """Returns images [images, size, size, 3] of two plain colours each."""
    ground, ink = (np.broadcast_to(colour, (len(coverage), 3))[:, None, None] for colour in (ground, ink))
    return ground + coverage[..., None] * (ink - ground)


def _noise(coverage, rng, scale):
    return scale * rng.standard_normal((*coverage.shape, 3), np.float32)


_STYLE_FUNCTIONS = dict(clean=_clean, coloured=_coloured, outline=_outline, textured=_textured)
STYLES = tuple(_STYLE_FUNCTIONS)

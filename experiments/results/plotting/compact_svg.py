"""Compact SVG for a page with many figures: matplotlib's drawing in a fifth of its text, with the same picture.

Coordinates are rounded to a tenth of a unit, less than 0.2 pixels on a page; points that are nearly on the line between
their neighbours, or outside of the clipped area, are left out; styles, markers, clip paths and texts are defined once
for all figures of the page.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from html import escape
from io import BytesIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from experiments.results.plotting.svg_paths import Box, parse_path, path_data, short

_SVG, _HREF = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_LONG = 200  # characters of a path that is written where it is drawn if that is only one place
_IMAGE = "data:image/png;base64,"


class Shared:
    """Definitions that the figures of a page have in common.

    Args:
        themed: replaces colours in the text of a style.
    """

    def __init__(self, themed: Callable[[str], str] = str) -> None:
        self._themed = themed
        self._ids: dict[str, str] = {}  # of definitions, by their text with {} for the id
        self._styles: dict[str, str] = {}  # names of classes, by their declarations

    def define(self, text: str) -> str:
        """Returns the id of a definition, whose text has ``{}`` in place of the id."""
        return self._ids.setdefault(text, f"_{len(self._ids)}")

    def style(self, text: str) -> str:
        """Returns the class with these declarations, as an attribute; empty without any."""
        short = re.sub(r"\s*([:;])\s*", r"\1", self._themed(text)).strip(";")
        return f' class="{self._styles.setdefault(short, f"_{len(self._styles)}")}"' if short else ""

    def as_svg(self) -> str:
        """Returns an invisible element with all definitions; empty without any."""
        styles = "".join(f".{name}{{{text}}}" for text, name in self._styles.items())
        definitions = "".join(text.format(f' id="{id}"') for text, id in self._ids.items())
        hidden = 'width="0" height="0" style="position:absolute" aria-hidden="true"'
        return f"<svg {hidden}><style>{styles}</style><defs>{definitions}</defs></svg>" if self._ids else ""


def compact(text: str, description: str, shared: Shared) -> str:
    """Returns the ``<svg>`` element of a drawing by matplotlib, for a page that also has ``shared.as_svg()``."""
    root = ElementTree.fromstring(text)
    drawing = _Drawing(root, shared)
    head = f'<svg role="img" aria-label="{escape(description)}" viewBox="{root.get("viewBox")}">'
    return f"{head}{''.join(drawing.written(root))}</svg>"


class _Drawing:
    """The elements of one drawing, written in short."""

    def __init__(self, root: Element, shared: Shared) -> None:
        self._shared = shared
        self._defined = {f"#{e.get('id')}": e for defs in root.iter(f"{_SVG}defs") for e in defs if e.get("id")}
        names = [element.get(_HREF) for element in root.iter(f"{_SVG}use")]
        self._counts = {name: names.count(name) for name in set(names)}

    def written(self, parent: Element, box: Box | None = None) -> Iterator[str]:
        """Yields the children; those of a group without attributes are not grouped."""
        for element in parent:
            kind = element.tag.removeprefix(_SVG)
            if kind in ("metadata", "defs") or not self._is_drawn(element, kind):
                continue
            clip, area = self._clip(element)
            look = clip + self._shared.style(element.get("style", ""))
            if kind == "g" and (glyphs := self._text(element)):
                yield f'<use href="#{glyphs}"{self._place(element)}{look}/>'
            elif kind == "g" and (markers := self._markers(element, area)) is not None:
                yield f"<path{markers}{clip}/>" if markers else ""
            elif kind == "g":
                inside, look = "".join(self.written(element, area or box)), self._place(element) + look
                yield f"<g{look}>{inside}</g>" if look and inside else inside
            elif kind == "path":
                data = path_data(parse_path(element.get("d")), area or box)
                yield f'<path d="{data}"{self._place(element)}{look}/>'
            elif kind == "use":
                yield self._use(element, area or box, clip)
            else:
                yield self._other(element, kind, look)

    def _is_drawn(self, element: Element, kind: str) -> bool:
        """Returns whether the element is anything else than a path without points, or a use of one."""
        path = self._defined[element.get(_HREF)] if kind == "use" else element
        return kind not in ("path", "use") or bool(path.get("d"))

    def _clip(self, element: Element) -> tuple[str, Box | None]:
        """Returns the attribute that clips the element, and the area if it is a rectangle."""
        name = element.get("clip-path")
        if not name:
            return "", None
        (shape,) = self._defined[name[4:-1]]
        if shape.tag == f"{_SVG}rect":
            x, y, width, height = (float(shape.get(key)) for key in ("x", "y", "width", "height"))
            area = Box(x, y, x + width, y + height)
            sizes = {key: short(float(shape.get(key)), 2) for key in ("x", "y", "width", "height")}
            inside = f"<rect{_attributes(sizes)}/>"
        else:
            area, inside = None, f'<path d="{path_data(parse_path(shape.get("d")), decimals=2)}"/>'
        return f' clip-path="url(#{self._shared.define(f"<clipPath{{}}>{inside}</clipPath>")})"', area

    def _use(self, element: Element, box: Box | None, clip: str) -> str:
        """Returns a marker, or the only use of a path at its place; nothing outside of the clipped area."""
        name, x, y = element.get(_HREF), float(element.get("x", 0)), float(element.get("y", 0))
        path = self._defined[name]
        own = path.get("style", "")
        look = element.get("style", "") + (f";{own}" if own else "")
        is_plain = not element.get("transform") and not path.get("transform")
        if is_plain and self._counts[name] == 1 and len(path.get("d")) > _LONG:
            commands = [(command, [(a + x, b + y) for a, b in pairs]) for command, pairs in parse_path(path.get("d"))]
            return f'<path d="{path_data(commands, box)}"{clip}{self._shared.style(look)}/>'
        if is_plain and box and any(box.sides((x, y))) and (x or y):
            return ""
        shape = self._shared.define(self._shape(path, own))
        at = _attributes({key: short(value) for key, value in (("x", x), ("y", y)) if value})
        place = f"{self._place(element)}{clip}{self._shared.style(element.get('style', ''))}"
        return f'<use href="#{shape}"{at}{place}/>'

    def _markers(self, group: Element, box: Box | None) -> str | None:
        """Returns the attributes of a path with a marker at each point; None if the group is something else."""
        looks = {(e.tag, e.get(_HREF, ""), e.get("style", ""), e.get("transform")) for e in group}
        if len(group) < 2 or len(looks) > 1 or group.get("transform") or group.get("style"):
            return None
        ((tag, name, style, place),) = looks
        if tag != f"{_SVG}use" or place or self._defined[name].get("transform") or not self._defined[name].get("d"):
            return None
        points = [(float(use.get("x", 0)), float(use.get("y", 0))) for use in group]
        points = [point for point in points if not (box and any(box.sides(point)))]
        if len(points) < 2:
            return None if points else ""
        path = self._defined[name]
        shape = self._shape(path, ";".join(filter(None, (style, path.get("style"))))).format("")
        marker = self._shared.define(f'<marker{{}} markerUnits="userSpaceOnUse" overflow="visible">{shape}</marker>')
        data = path_data([("M", points[:1]), *(("L", [point]) for point in points[1:])], is_thinned=False)
        return f' d="{data}"{self._shared.style(f"fill:none;marker:url(#{marker})")}'

    def _shape(self, path: Element, style: str = "") -> str:
        data = path_data(parse_path(path.get("d")), decimals=2)
        return f'<path{{}} d="{data}"{self._place(path)}{self._shared.style(style)}/>'

    def _text(self, group: Element) -> str:
        """Returns the id of a text; empty if the group is something else."""
        uses = [element for element in group if element.tag != f"{_SVG}defs"]
        names = [element.get(_HREF) for element in uses]
        is_of_uses = names and all(element.tag == f"{_SVG}use" for element in uses)
        if not is_of_uses or not all(self._defined[name].get("transform") for name in names):
            return ""
        glyphs = []
        for element, name in zip(uses, names, strict=True):
            place = element.get("transform", "translate(0 0)")
            if not (found := re.fullmatch(r"translate\(([-\d.]+) 0\)", place)):
                return ""
            if self._defined[name].get("d"):  # not a space
                at = f' x="{short(float(found[1]))}"' if float(found[1]) else ""
                glyphs.append(f'<use href="#{self._shared.define(self._shape(self._defined[name]))}"{at}/>')
        return self._shared.define(f"<g{{}}>{''.join(glyphs)}</g>")

    def _place(self, element: Element) -> str:
        """Returns the element's transformation, as an attribute."""
        text = re.sub(r"-?\d+\.\d+", lambda found: short(float(found[0]), 5 if "0.0" in found[0] else 2),
                      element.get("transform", ""))  # fmt: skip
        return f' transform="{text}"' if text else ""

    def _other(self, element: Element, kind: str, look: str) -> str:
        """Returns an element of another kind, such as an image."""
        values = {key: value for key, value in element.items() if key not in ("id", "style", "clip-path", _HREF)}
        if target := element.get(_HREF):
            values["href"] = _IMAGE + with_palette(target.removeprefix(_IMAGE).strip()) if _IMAGE in target else target
        return f"<{kind}{_attributes(values)}{look}/>"


def _attributes(values: Mapping[str, str]) -> str:
    return "".join(f' {key}="{escape(value)}"' for key, value in values.items())


def with_palette(png: str) -> str:
    """Returns the same image, in base64, with a palette if it has at most 256 colours and that is shorter."""
    from PIL import Image

    image = Image.open(BytesIO(base64.b64decode(png))).convert("RGBA")
    pixels = np.asarray(image)
    colours, indices = np.unique(pixels.view(np.uint32), return_inverse=True)
    if len(colours) > 256:
        return png
    colours = colours.view(np.uint8).reshape(-1, 4)
    small = Image.fromarray(indices.reshape(pixels.shape[:2]).astype(np.uint8), "P")
    small.putpalette(colours[:, :3].tobytes())
    out = BytesIO()
    small.save(out, "PNG", optimize=True, transparency=colours[:, 3].tobytes())
    return min(png, base64.b64encode(out.getvalue()).decode(), key=len)

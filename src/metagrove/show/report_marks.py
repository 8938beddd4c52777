"""Marks and legends of the report: of families, clusters, lines and points."""

from collections.abc import Sequence

from metagrove.show.report_html import Html, tag
from metagrove.show.report_plot import Number, short

COLORS, SHAPES = 7, 5
"""Number of colours and shapes, which are then repeated."""


def name_of_family(index: int, name: str) -> Html:
    """Render the name of a family with its marker."""
    return tag("span", swatch(index), name, class_="family")


def swatch(index: int) -> Html:
    """Render the marker of a family."""
    return tag("svg", marker(index, 7, 7, 5), class_="swatch", viewBox="0 0 14 14", aria_hidden="true")


def color_key(index: int) -> Html:
    """Render the colour of a cluster."""
    dot = tag("circle", cx=7, cy=7, r=5, class_=f"f{index % COLORS}")
    return tag("svg", dot, class_="swatch", viewBox="0 0 14 14", aria_hidden="true")


def shape_key(index: int) -> Html:
    """Render the shape of a family, without its colour."""
    shape = marker(index, 7, 7, 5, color=COLORS - 1)
    return tag("svg", shape, class_="swatch", viewBox="0 0 14 14", aria_hidden="true")


def marker(
    index: int, x: Number, y: Number, r: Number, *children: Html, extra: str = "", color: int | None = None
) -> Html:
    """Draw the marker of a family: a circle, triangle, square, diamond or inverted triangle.

    It has the colour of the family, or that of a cluster if `color` is given, by which legends then highlight it.
    """
    chosen = index if color is None else color
    kind = f"f{chosen % COLORS} m{chosen}{extra}"
    corners = {
        1: [(0, -1.15), (1.1, 0.8), (-1.1, 0.8)],
        2: [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        3: [(0, -1.25), (1.25, 0), (0, 1.25), (-1.25, 0)],
        4: [(0, 1.15), (1.1, -0.8), (-1.1, -0.8)],
    }.get(index % SHAPES)
    if corners is None:
        return tag("circle", *children, cx=short(x), cy=short(y), r=r, class_=kind)
    points = " ".join(f"{short(x + r * dx)},{short(y + r * dy)}" for dx, dy in corners)
    return tag("polygon", *children, points=points, class_=kind)


def legend(entries: Sequence[tuple[Html, str]], families: Sequence[int] | None = None) -> Html:
    """Render a legend; entries of families can be hovered over."""
    one_alone = {} if families is None else {"tabindex": 0}
    numbers = range(len(entries)) if families is None else families
    items = [
        tag("li", mark, text, class_=f"k{i}", **one_alone) for i, (mark, text) in zip(numbers, entries, strict=True)
    ]
    return tag("ul", *items, class_="legend")


def task_legend(kind: str, names: Sequence[str], *, truth: bool, band: str) -> Html | None:
    """Render the legend of the drawings of tasks; `names` are those of the compared runs, or of the targets."""
    if kind == "agreement":
        equal = [(line_key("truth"), "prediction equals truth")]
        return legend([(dot_key(f"pair c{i}"), name) for i, name in enumerate(names)] + equal)
    if kind != "curve":
        return None
    fits = [(line_key(f"fit fit{i}"), f"prediction of {name}") for i, name in enumerate(names)]
    known = [(line_key("truth"), "true function")] if truth else []
    around = [(line_key("band wide"), band)] if band else []
    points = [(dot_key("support"), "support rows, given"), (dot_key("query"), "query rows, true values")]
    return legend([*points, *known, *fits, *around])


def line_key(class_: str) -> Html:
    """Render the line of a legend entry."""
    return tag("svg", tag("line", x1=1, x2=21, y1=7, y2=7, class_=class_), class_="swatch wide", aria_hidden="true")


def dot_key(class_: str) -> Html:
    """Render the dot of a legend entry."""
    dot = tag("g", tag("circle", cx=7, cy=7, r=4.5), class_=class_)
    return tag("svg", dot, class_="swatch", aria_hidden="true")

"""HTML and SVG elements as strings, with all other text escaped."""

import html
import math
from typing import Any

VOID = {"meta", "img", "path", "line", "circle", "rect", "polygon"}
"""Elements without content."""


PERCENT = "\u00a0%"
"""Per cent sign after a no-break space."""


class Html(str):
    """Text that is already HTML."""

    __slots__ = ()


def tag(name: str, /, *children: Any, **attributes: Any) -> Html:
    """Render an element; `class_` and `stroke_width` become class and stroke-width, None and False are left out."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID and not children:
        return Html(f"<{name}{said}/>")
    return Html(f"<{name}{said}>{join(*children)}</{name}>")


def join(*parts: Any) -> Html:
    """Concatenate parts; what is not HTML is escaped, and None is skipped."""
    return Html("".join(p if isinstance(p, Html) else html.escape(str(p), quote=False) for p in parts if p is not None))


def number(value: int | float, digits: int = 3) -> str:
    """Format a number with significant digits, thousands separators, and powers of ten where needed."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 7:
        return minus(f"{value:,.{max(0, digits - 1 - size)}f}")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return minus(mantissa) + "×10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def with_ci(value: int | float, ci: int | float, *, signed: bool = False) -> str:
    """Format a mean with its confidence interval, which determines the number of digits."""
    if not (math.isfinite(value) and math.isfinite(ci)):
        return number(value)
    size = math.floor(math.log10(ci)) if ci > 0 else 0
    if not -5 <= size < 7:
        return f"{number(value)} ± {number(ci, 2)}"
    decimals = max(0, 1 - size)
    sign = "+" if signed and value > 0 else ""
    return sign + minus(f"{value:,.{decimals}f} ± {ci:,.{decimals}f}")


def percent(share: float) -> str:
    """Format a fraction in per cent; small fractions are not rounded to 0."""
    return f"< 1{PERCENT}" if 0 < share < 0.005 else f"{100 * share:.0f}{PERCENT}"


def minus(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "−")


def plural(count: int, one: str) -> str:
    """Format a count with its noun: 1 task, 2 tasks."""
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def table(head: list[Any], rows: list[list[Any]], **attributes: Any) -> Html:
    """Render a table with row headers, in a scrollable container."""
    top = tag("tr", *(tag("th", cell, scope="col") for cell in head))
    body = [tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)) for first, *rest in rows]
    inside = tag("table", tag("thead", top), tag("tbody", *body), **attributes)
    return scrolling(inside)


def scrolling(content: Html) -> Html:
    """Render a horizontally scrollable container, which is accessible by keyboard."""
    return tag("div", content, class_="scroll", tabindex=0, role="group", aria_label="table, scrolls sideways")


def shade(share: float) -> dict[str, str]:
    """Return the style of a shaded cell, with a class that selects a readable text colour."""
    kind = "most" if share > 0.91 else "much" if share > 0.62 else "some"
    return {"class_": kind, "style": f"--share:{share:.2f}"}

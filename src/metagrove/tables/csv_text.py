"""Text in CSV files that spreadsheets do not take for a formula.

A spreadsheet computes a cell that begins with =, +, -, @, a tab or a carriage return, whoever wrote it. Text of that
kind is written with an apostrophe before it, which `plain_text` takes away again: what is written is read unchanged.
"""

import re
from typing import Any

__all__ = ["csv_text", "plain_text"]

FORMULA = re.compile(r"'*[=+\-@\t\r]")
ESCAPED = re.compile(r"'+[=+\-@\t\r]")


def csv_text(cell: Any) -> Any:
    """A cell as it is written: text that looks like a formula has an apostrophe before it; numbers stay."""
    if not isinstance(cell, str) or not FORMULA.match(cell) or is_number(cell):
        return cell
    return f"'{cell}"


def plain_text(cell: str) -> str:
    """A cell as it was before `csv_text`."""
    return cell[1:] if ESCAPED.match(cell) and not is_number(cell[1:]) else cell


def is_number(cell: str) -> bool:
    """Whether text is a number, e.g. -1.5."""
    try:
        float(cell)
    except ValueError:
        return False
    return True

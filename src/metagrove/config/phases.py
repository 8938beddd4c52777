"""Parsing of training phases on the command line: `--phases "1/4: embed by reconstruction; net cluster gate"`."""

import fractions
import re

from metagrove.errors import InputError
from metagrove.learner import Phase

__all__ = ["read_phases"]

PHASE = re.compile(r"(?:(?P<length>[\d/]+)\s*:)?\s*(?P<trains>[\w\s]*?)\s*(?:\bby\s+(?P<loss>\w+))?\s*")


def read_phases(text: str, steps: int) -> list[Phase]:
    """Read phases separated by semicolons: `LENGTH: FIELDS by LOSS`.

    Args:
        text: LENGTH is a number of meta-steps or a fraction of all of them, and is left out in the last phase, which
            takes the rest; FIELDS are the fields of the meta-parameters that are trained (none: all); without
            `by LOSS` the loss is the query loss.
        steps: Number of meta-steps of the training.

    Returns:
        The phases, in order.

    Raises:
        InputError: A phase is not of this form.
    """
    return [read_phase(part, steps) for part in text.split(";")] if text.strip() else []


def read_phase(text: str, steps: int) -> Phase:
    """One phase; a fraction of a short training is at least one meta-step."""
    found = PHASE.fullmatch(text)
    try:
        length = fractions.Fraction(found["length"] or 0) if found else fractions.Fraction(-1)
    except (ValueError, ZeroDivisionError):
        length = fractions.Fraction(-1)
    if found is None or length < 0 or (length.denominator > 1 and length > 1):
        raise InputError(f"phases has {text.strip()!r}: write it like '1/4: embed by reconstruction; net cluster gate'")
    count = int(length) if length.denominator == 1 else max(1, round(length * steps))
    return Phase(count, tuple(found["trains"].split()), found["loss"] or "query")

"""User-facing errors.

A message says what was expected, what was given and how to fix it. The command line prints it without a traceback and
exits with `exit_code`.
"""

import unicodedata

__all__ = ["STOPPED", "DivergedError", "InputError", "MetagroveError", "RunError", "quoted", "visible"]

REVERSING = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of text, so that it is displayed in another order."""
LONGEST_QUOTE = 80
"""Characters of a cell or a name that a message quotes at most."""

STOPPED = 130
"""Exit code of a command that was interrupted by Ctrl-C."""


def check_at_least_one(part: object, *names: str) -> list[str]:
    """Return a message for each of the named settings of `part` that is below 1."""
    return [f"{name} must be at least 1, got {n}" for name in names if (n := getattr(part, name)) < 1]


def quoted(value: object, most: int = LONGEST_QUOTE) -> str:
    """A value as it is quoted in a message: its repr, of which a long one is cut.

    Args:
        value: What came.
        most: Number of characters that are shown.

    Returns:
        The repr, or its beginning and the number of characters that it has.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 4 * most:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value[: most + 1] if isinstance(value, str) else value)
    long = isinstance(value, str) and len(value) > most
    size = len(value) if isinstance(value, str) else len(text)
    return f"{text[:most]}… ({size:,} characters)" if long or len(text) > most + 2 else text


def shortened(value: object, most: int = LONGEST_QUOTE) -> str:
    """The text of a value, cut after `most` characters."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}…"


def visible(text: str) -> str:
    """Text as it is printed: control characters are shown as escapes, so that none reaches the terminal.

    Line breaks and tabs stay; so do letters of all scripts. Characters that reverse the direction of text are escaped.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(one if one in "\n\t" or is_visible(one) else ascii(one)[1:-1] for one in text)


def is_visible(character: str) -> bool:
    """Whether a terminal shows a character and does nothing else."""
    return unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp") and character not in REVERSING


class MetagroveError(Exception):
    """Base class of all user-facing errors; catch it to handle any of them.

    Args:
        *args: The message: what was expected, what was given and how to fix it.

    Example:
        >>> import metagrove as mg
        >>> try:
        ...     mg.preset("toy")
        ... except mg.MetagroveError as error:
        ...     print(type(error).__name__)
        InputError
    """

    exit_code = 1
    """Exit code of the command line."""


class InputError(MetagroveError, ValueError):
    """A setting, an argument or the data cannot be used; also a `ValueError`.

    Args:
        *args: The message.
    """

    exit_code = 2


class RunError(MetagroveError):
    """A run folder or another file is missing, damaged, in use, or cannot be written.

    Args:
        *args: The message.
    """

    exit_code = 3


class DivergedError(MetagroveError):
    """Training produced a loss, gradient or validation score that is not finite.

    Args:
        *args: The message.
    """

    exit_code = 4

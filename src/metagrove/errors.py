"""Errors a person can mend. The message says what was expected, what came and what to do; the command line prints
it as one line and leaves with `exit_code`.
"""

STOPPED = 130
"""Exit code of a command that Ctrl-C ended."""


def check_at_least_one(part: object, *names: str) -> list[str]:
    """A line about each of these settings that is below 1."""
    return [f"{name} must be at least 1, got {n}" for name in names if (n := getattr(part, name)) < 1]


class MetagroveError(Exception):
    """Base of all errors below."""

    exit_code = 1


class InputError(MetagroveError, ValueError):
    """A setting, an argument or data that cannot be used."""

    exit_code = 2


class RunError(MetagroveError):
    """A run folder that is missing, damaged, in use, or cannot be written."""

    exit_code = 3


class DivergedError(MetagroveError):
    """Training met a number that is not finite."""

    exit_code = 4

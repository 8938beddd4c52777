"""User-facing errors.

A message says what was expected, what was given and how to fix it. The command line prints it without a traceback and
exits with `exit_code`.
"""

__all__ = ["STOPPED", "DivergedError", "InputError", "MetagroveError", "RunError"]

STOPPED = 130
"""Exit code of a command that was interrupted by Ctrl-C."""


def check_at_least_one(part: object, *names: str) -> list[str]:
    """Return a message for each of the named settings of `part` that is below 1."""
    return [f"{name} must be at least 1, got {n}" for name in names if (n := getattr(part, name)) < 1]


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

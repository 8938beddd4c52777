"""The type checker of the tests: beartype, which prepares the checks of a function once, when it is first called.

A function that is defined within another one is decorated whenever the other one is called, and most functions of the
package are never called by a process of the tests: the same checks are made in a fraction of the time.
"""

import functools

from beartype import beartype

CHECKED = {}


def beartype_once(function):
    """Return the function with its arguments and its result checked."""
    checked = None

    @functools.wraps(function)
    def check(*args, **how):
        nonlocal checked
        checked = checked or prepared(function)
        return checked(*args, **how)

    return check


def prepared(function):
    """The checks of a function; those of an earlier definition, if it was the same one."""
    key = (
        function.__module__,
        function.__qualname__,
        function.__code__,
        repr(function.__annotations__),  # jaxtyping makes a new class of the same name whenever one is written
        len(function.__defaults__ or ()),
        tuple(function.__kwdefaults__ or ()),
    )
    if key not in CHECKED:
        CHECKED[key] = beartype(function)
    return CHECKED[key]

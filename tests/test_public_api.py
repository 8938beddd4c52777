"""Every public name has a full docstring: a summary, its arguments, and what it returns."""

import ast
import dataclasses
import doctest
import inspect
import re
import textwrap

import pytest

import metagrove


def section(doc: str, name: str) -> str:
    """The text of a Google-style section, empty if there is none."""
    match = re.search(rf"^{name}:\n((?:(?:[ \t]+.*)?\n?)*)", doc, flags=re.MULTILINE)
    return match[1] if match else ""


def missing_arguments(doc: str, names: list[str]) -> list[str]:
    described = section(doc, "Args")
    return [f"Args: {name}" for name in names if not re.search(rf"^\s+\*{{0,2}}{name}:", described, flags=re.MULTILINE)]


def lacks_summary(doc: str | None) -> bool:
    return not doc or "." not in doc.split("\n\n")[0]


def problems_of_function(function) -> list[str]:
    doc = inspect.getdoc(function)
    if lacks_summary(doc):
        return ["summary"]
    signature = inspect.signature(function)
    found = missing_arguments(doc, [name for name in signature.parameters if name not in ("self", "cls")])
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    return found + (["Returns"] if returns and not section(doc, "Returns") else [])


def documented_fields(cls: type) -> set[str]:
    """Fields with a docstring below them, of the class and its bases."""
    found: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith("metagrove"):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for line, following in zip(tree.body, tree.body[1:], strict=False):
            text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and text:
                found.add(line.target.id)
    return found


def problems_of_class(cls: type) -> list[str]:
    doc = inspect.getdoc(cls)
    if lacks_summary(doc) or cls.__doc__ is None:
        return ["summary"]
    fields = documented_fields(cls) if dataclasses.is_dataclass(cls) else set()
    return missing_arguments(doc, [name for name in parameters_of_class(cls) if name not in fields])


def parameters_of_class(cls: type) -> list[str]:
    """Names of the arguments of a class; an exception without its own `__init__` takes `*args`, as `Exception` does."""
    if issubclass(cls, Exception) and inspect.isroutine(cls.__init__) and not inspect.isfunction(cls.__init__):
        return ["args"]
    return list(inspect.signature(cls).parameters)


def public_members(cls: type):
    """Public functions and properties that the package defines for a class, each under the name of its docstring."""
    for name in dir(cls):
        static = inspect.getattr_static(cls, name)
        owners = [base for base in cls.__mro__ if name in vars(base)]
        if name.startswith("_") or not owners[0].__module__.startswith("metagrove"):
            continue
        documented = [base for base in owners if getattr(vars(base)[name], "__doc__", None)]
        where = f"{(documented or owners)[0].__name__}.{name}"
        if isinstance(static, property) or (
            inspect.isroutine(getattr(cls, name)) and not type(static).__module__.startswith("sklearn")
        ):
            yield where, static if isinstance(static, property) else getattr(cls, name)


def problems() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in metagrove.__all__:
        public = getattr(metagrove, name)
        if not inspect.isclass(public):
            found[name] = problems_of_function(public)
            continue
        found[name] = problems_of_class(public)
        for where, member in public_members(public):
            summary_only = ["summary"] if lacks_summary(inspect.getdoc(member)) else []
            found[where] = summary_only if isinstance(member, property) else problems_of_function(member)
    return {name: lacking for name, lacking in found.items() if lacking}


def test_public_names_have_full_docstrings():
    assert problems() == {}


def examples() -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    return [test for name in metagrove.__all__ for test in finder.find(getattr(metagrove, name), name) if test.examples]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_examples_of_docstrings_run(example):
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_checks_find_what_is_missing():
    def documented(x: int) -> int:
        """Add one.

        Args:
            x: A number.

        Returns:
            The sum.
        """
        return x + 1

    def undocumented(x: int, y: int) -> int:
        """Add numbers.

        Args:
            x: A number.
        """
        return x + y

    assert problems_of_function(documented) == []
    assert problems_of_function(undocumented) == ["Args: y", "Returns"]

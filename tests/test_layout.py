"""Limits that keep the package readable: lengths of files and functions, untyped records, checks of concrete types."""

import ast
import dataclasses
import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import metagrove

SOURCE = Path(metagrove.__file__).parent
FILES = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
LONG_FUNCTIONS = {"training/loop.py train"}
"""The training loop, flat: its listing is the workflow."""


def body_lines(function: ast.FunctionDef) -> int:
    doc = function.body[0] if ast.get_docstring(function) else None
    inside = doc.end_lineno - doc.lineno + 1 if doc and doc.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno + 1 - inside


def test_files_are_short():
    assert [name for name, text in FILES.items() if text.count("\n") > 300] == []


def test_functions_are_short():
    functions = [
        (f"{file} {node.name}", body_lines(node))
        for file, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    ]
    assert {name for name, lines in functions if lines > 30} == LONG_FUNCTIONS


def test_the_documented_layout_is_the_order_of_the_packages():
    """docs/method.md lists what import-linter checks, from the bottom; neighbours on one line may be of one layer."""
    text = (SOURCE.parents[1] / "docs" / "method.md").read_text(encoding="utf-8").split("## Package layout")[1]
    documented = [name.strip("/") for line in re.findall(r"^ {4}(\S.*?) {2,}", text, re.M) for name in line.split(", ")]
    contract = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [layer.split(" | ") for layer in reversed(contract["contracts"][0]["layers"])]
    rank = {name: i for i, layer in enumerate(layers) for name in layer}
    assert sorted(documented) == sorted(rank)
    assert [rank[name] for name in documented] == sorted(rank[name] for name in documented)


def test_records_have_types():
    assert sum(text.count("dict[str, Any]") for text in FILES.values()) < 30


def test_no_checks_of_concrete_sources_outside_their_package():
    concrete = re.compile(
        r"isinstance\([^)]*\b(Functions|Images|Tables|TableTasks|Episodes|Stream|HSML|HSMLMeta|Grove|MAML)\b"
    )
    assert [name for name, text in FILES.items() if concrete.search(text) and not name.startswith("sources/")] == []


def test_hsml_has_few_settings_of_its_own():
    inherited = {field.name for field in dataclasses.fields(metagrove.GradientLearner)}
    assert len([field for field in dataclasses.fields(metagrove.HSML) if field.name not in inherited]) <= 8


def test_modules_of_public_names_list_them():
    modules = {getattr(metagrove, name).__module__ for name in metagrove.__all__}
    assert [module for module in sorted(modules) if not hasattr(importlib.import_module(module), "__all__")] == []


def test_the_migration_table_names_what_can_be_imported():
    """The right column of CHANGELOG.md's table of modules: dotted paths of modules, or of names in them."""
    text = (SOURCE.parents[1] / "CHANGELOG.md").read_text(encoding="utf-8").split("Modules and names in Python.")[1]
    rows = [line.split(" | ")[1] for line in text.split("## 0.1.0")[0].splitlines() if line.startswith("| ")]
    paths = [path for row in rows for path in re.findall(r"`((?:metagrove|mg)\.[\w.]+)`", row)]
    assert len(paths) > 50
    for path in paths:
        module, _, name = path.replace("mg.", "metagrove.").rpartition(".")
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}"), path

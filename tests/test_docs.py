"""What the documents show is what the code does and the results say."""

import re
import textwrap
from pathlib import Path

import pytest

from metagrove.show.tables import TABLES, fill_in

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def code_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", [d for d in DOCUMENTS if code_blocks(d)], ids=lambda path: path.name)
def test_examples_run(path, tmp_path, monkeypatch):
    """The Python of one document runs from top to bottom as one script."""
    monkeypatch.chdir(tmp_path)
    exec(compile(textwrap.dedent("\n".join(code_blocks(path))), str(path), "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_agree_with_the_results(path):
    text = path.read_text(encoding="utf-8")
    assert fill_in(text, ROOT / "results") == text


def test_every_table_is_shown_somewhere():
    shown = set(re.findall(r"<!-- table:([\w-]+) -->", "".join(d.read_text(encoding="utf-8") for d in DOCUMENTS)))
    assert shown == set(TABLES)


def test_method_map_names_functions_that_exist():
    text = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    references = re.findall(r"`(\w+(?:/\w+)*\.py)`\s+`([\w.]+)`", text)
    assert len(references) > 12
    for file, name in references:
        source = (ROOT / "src" / "metagrove" / file).read_text(encoding="utf-8")
        for part in name.split("."):
            assert re.search(rf"\b(def|class) {part}\b", source), f"{file} has no {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), target

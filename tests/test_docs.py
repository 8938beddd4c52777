"""What the documents show is what the code does and the results say."""

import re
import textwrap
from pathlib import Path

import pytest

from metagrove import files
from metagrove.paper import image_tables
from metagrove.paper.names import display_name
from metagrove.paper.results import ExperimentResult
from metagrove.paper.tables import (
    BENCHMARK_TABLES,
    CLAIM_TABLES,
    EXPERIMENT_TABLES,
    SCALING_TABLES,
    STUDY_TABLES,
    THEORY_TABLES,
    fill_in,
    markdown,
)

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


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.name)
def test_results_are_as_they_were_written(path):
    files.read_json(path)  # its checksum fits


def test_every_table_is_shown_somewhere():
    shown = set(re.findall(r"<!-- table:([\w-]+) -->", "".join(d.read_text(encoding="utf-8") for d in DOCUMENTS)))
    measured = {name for name, (file, _) in BENCHMARK_TABLES.items() if (ROOT / "results" / f"{file}.json").exists()}
    always = {*EXPERIMENT_TABLES, *STUDY_TABLES, *THEORY_TABLES, *SCALING_TABLES, *CLAIM_TABLES}
    assert always | measured <= shown <= always | set(BENCHMARK_TABLES)  # a table may wait for its measurement


@pytest.mark.parametrize("name", ["method.md", "methods.md"])
def test_method_map_names_functions_that_exist(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
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


def image_row(label, validation, **scores):
    """A row of a result as the tables about images read it."""
    values = {name: [float(one) for one in text.split()] for name, text in scores.items()}
    steps = {"by_step": [], "ci95": [], "num_tasks": 2, "value_ci95": 0.3}
    families = {name: {**steps, "value": sum(them) / len(them)} for name, them in values.items()}
    average = sum(one["value"] for one in families.values()) / len(families)
    evaluation = {
        **steps,
        "metric": "accuracy",
        "value": average,
        "steps": 5,
        "by_family": families,
        "clustering": None,
    }
    seed = {
        **dict.fromkeys(("seed", "test_seed", "parameters", "meta_steps"), 0),
        **{"config": {}, "provenance": {}, "training_seconds": 1.0},
        "evaluation": evaluation,
        "evaluation_4000": evaluation,
        "paired_difference": {"difference": 0.0, "ci95": 0.0, "by_family": {}, "to": label},
        "checkpoint": {"validation": {"value": validation}},
        "scores": scores,
    }
    return {"label": label, "preset": "images-1shot", "mean_over_seeds": average, "seeds": [seed]}


def image_result(rows):
    """The result of an experiment with these rows."""
    return files.from_json(ExperimentResult, {"experiment": "tiny", "about": "", "provenance": {}, "rows": rows})


def test_a_method_is_shown_with_the_setting_that_validation_chose():
    rows = [
        image_row("HSML (ours), 1-shot", 50.0, bird="50 52", fungi="40 42"),
        image_row("HSML (other), 1-shot", 49.0, bird="90 90", fungi="90 90"),
        image_row("MAML, 1-shot", 45.0, bird="48 48", fungi="41 41"),
        image_row("MAML, falling step, 1-shot", 46.0, bird="49 50", fungi="38 39"),
        {**image_row("MAML, 5-shot", 70.0, bird="70 70", fungi="70 70"), "preset": "images-5shot"},
    ]
    heading, hsml, maml = image_tables.chosen(image_result(rows))
    assert heading[-1] == "minus HSML (ours)"
    assert hsml == ["HSML (ours)", "HSML (ours), 1-shot (of 2)", "50.0", "46.00 ± 0.21", ""]
    assert maml[:4] == ["MAML", "MAML, falling step, 1-shot (of 2)", "46.0", "44.00 ± 0.21"]
    assert maml[4].startswith("-2.00 ± ")  # differences of -1, -2, -2 and -3


def test_variants_are_shown_under_their_own_names():
    assert display_name("HSML (ours), 5-shot") == "HSML-A, 5-shot"
    assert display_name("HSML, 10-shot, ours") == "HSML-A, 10-shot"
    assert display_name("HSML (clusters first), falling step, 1-shot") == "HSML-F, cosine decay, 1-shot"
    assert display_name("HSML, 5-shot, the paper's protocol") == "HSML, 5-shot, the paper's protocol"
    assert "HSML-A" in markdown([["method"], ["HSML (ours)"]])


def test_runs_on_one_dataset_each_are_one_line():
    rows = [image_row("MAML, bird alone", 50.0, bird="50 52"), image_row("MAML, fungi alone", 40.0, fungi="40 44")]
    heading, line = image_tables.alone(image_result(rows))
    assert heading == ["", "bird", "fungi", "average"]
    assert line == ["MAML, each alone", "51.00 ± 0.30", "42.00 ± 0.30", "46.50 ± 0.21"]

"""Tables of studies and verdicts on claims, from results that are made up."""

import json
import shlex

import pytest

from metagrove import files
from metagrove.paper import hierarchy_tables, study_tables
from metagrove.paper.claim_rules import UNTRAINED, comparable, order
from metagrove.paper.claims import CLAIMS, PARTS, table
from metagrove.paper.experiments import ANALYSES, EXPERIMENTS
from metagrove.paper.reproduce import matching_rows
from metagrove.paper.results import ExperimentResult
from metagrove.paper.study_tables import Study
from metagrove.paper.tables import STUDY_TABLES


def row(label, *values, ci95=0.1, metric="mse"):
    """A row with a seed for each value."""
    steps = {"by_step": [], "ci95": [], "num_tasks": 2, "value_ci95": ci95}
    clustering = {"nmi": 0.5, "purity": 1.0, "largest_share": 0.4, "tasks_by_cluster_and_family": [[3, 0], [0, 1]]}
    seeds = [
        {
            **dict.fromkeys(("test_seed", "parameters", "meta_steps"), 7),
            **{"config": {}, "provenance": {}, "training_seconds": 1.0, "seed": seed, "median": 0.25},
            **{
                key: {**steps, "metric": metric, "value": value, "steps": 5, "by_family": {}, "clustering": clustering}
                for key in ("evaluation", "evaluation_4000")
            },
            "paired_difference": {"difference": 0.5, "ci95": 0.2, "by_family": {}, "to": "the first"},
            "checkpoint": {"validation": {"value": value}},
        }
        for seed, value in enumerate(values)
    ]
    mean = sum(values) / len(values)
    std = None if len(values) == 1 else (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return {"label": label, "preset": "toy-5shot", "mean_over_seeds": mean, "sd_over_seeds": std, "seeds": seeds}


def written(folder, name, rows):
    """The folder with a result of these rows in it."""
    data = {"experiment": name, "about": "", "provenance": {}, "rows": rows}
    (folder / f"{name}.json").write_text(json.dumps(data))
    files.from_json(ExperimentResult, data)
    return folder


def test_a_study_shows_every_row_and_the_command_of_what_is_missing(tmp_path):
    rows = [row("HSML", 1.0, 1.2, 1.4), row("A3b, flat clustering", 2.0)]
    study = Study("ablations").read(written(tmp_path, "ablations-studies", rows))
    heading, first, *others = study_tables.errors(study)
    assert first[:4] == ["HSML", "1.200 ± 0.200 (3)", "1.000 ± 0.100", "0.2500"]
    lines = {line[0]: line for line in others}
    assert len(lines) == len(EXPERIMENTS["ablations"].rows) - 1
    assert all(len(line) == len(heading) for line in others)
    assert lines["A3b, flat clustering"][1] == "2.000 (1 of 3)"
    assert lines["A3b, flat clustering"][4:6] == ["+0.800", "unknown: one seed"]
    assert lines["A4b, FiLM instead of the gate"][1] == (
        'not trained yet: `metagrove reproduce ablations --budget studies --only "A4b, FiLM instead of the gate"`'
    )
    assert study_tables.clusters(study)[1][-3:] == ["1.8 of 2", "0.40", "0.50"]  # exp of the entropy of ¾ and ¼


@pytest.mark.parametrize("name", STUDY_TABLES)
def test_every_command_of_a_study_trains_one_row(name):
    study, make = STUDY_TABLES[name]
    assert len({len(line) for line in make(study)}) == 1
    for one in EXPERIMENTS[study.experiment].rows:
        _, _, experiment, *rest = shlex.split(study.command(one.label))
        assert (experiment, len(matching_rows(EXPERIMENTS[experiment], rest[-1]))) == (study.experiment, 1)
        assert study.budget in EXPERIMENTS[experiment].budgets


@pytest.mark.parametrize(
    ("hsml", "maml", "verdict"),
    [
        ([1.0], [1.2], "holds"),
        ([1.0], [1.1], "order as in the paper, but within the interval"),
        ([1.0], [0.9], "not reproduced"),
        ([1.0, 2.0, 3.0], [3.0, 4.0, 5.0], "order as in the paper, but within the interval"),
        ([1.0, 1.1, 1.2], [3.0, 3.1, 3.2], "holds"),
    ],
)
def test_verdicts_on_an_order(hsml, maml, verdict, tmp_path):
    folder = written(tmp_path, "x", [row("HSML", *hsml), row("MAML (6 steps), 5-shot", *maml)])
    assert order("x", "HSML", ["MAML*, 5-shot"])(folder).verdict == verdict
    assert order("x", "HSML", ["ANIL"])(folder).verdict == UNTRAINED
    assert comparable("x", "HSML", "MAML (6 steps), 5-shot")(folder).verdict == (
        "not reproduced" if verdict == "holds" else "holds"
    )


def test_an_accuracy_is_better_where_it_is_higher_and_a_claim_may_hold_in_part(tmp_path):
    rows = [row("HSML", 50.0, metric="accuracy"), row("A", 40.0, metric="accuracy"), row("B", 60.0, metric="accuracy")]
    folder = written(tmp_path, "x", rows)
    assert order("x", "HSML", ["A"])(folder).verdict == "holds"
    assert order("x", "HSML", ["A", "B"])(folder).verdict == "holds in part"
    assert order("x", "HSML", ["A", "C"])(folder).verdict == f"holds; C {UNTRAINED}"


def test_every_claim_has_a_command_that_exists_and_none_is_judged_without_a_result(tmp_path):
    for claim in CLAIMS:
        assert claim.command.split()[0] in {*EXPERIMENTS, *ANALYSES}
    for part in PARTS:
        assert all(line[4] == f"**{UNTRAINED}**" for line in table(part, tmp_path)[1:])


def test_evidence_clusters_beside_their_control_and_goals(tmp_path):
    rows = [row("HSML-E, 5-shot", 0.016, 0.017, 0.018), row("HSML-E, one cluster, 5-shot", 0.2, 0.21, 0.22)]
    rows += [row("HSML, 5-shot", 1.0), row("Grove, 5-shot", 0.03)]
    result = Study("toy", budget="paper").read(written(tmp_path, "toy", rows)).result
    _, *lines = hierarchy_tables.errors(result)
    assert [line[0] for line in lines] == ["HSML-E, 5-shot", "HSML-E, one cluster, 5-shot"]
    assert lines[0][4] == "0.0170 ± 0.0010 (3)"
    assert lines[0][5].startswith("+0.193 ± 0.0")
    assert hierarchy_tables.measures(result)[1:] == []
    reached = {line[0]: line[2:4] for line in hierarchy_tables.goals(result)[1:]}
    assert reached["MSE of HSML-E, 40,000 tasks"] == ["0.0170", "yes"]
    assert reached["MSE of Grove, 40,000 tasks"] == ["0.0300", "no"]
    assert reached["one cluster minus HSML-E, in std over seeds"] == ["19", "yes"]
    assert reached["NMI, cut to 4 nodes"] == ["needs more seeds", ""]

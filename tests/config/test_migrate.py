"""Run folders as version 0.1 wrote them: settings, array names, and what was removed."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import metagrove as mg
from metagrove import files
from metagrove.config.encoding import from_json, to_json
from metagrove.config.migrate import array_names_of_format_1, migrate
from metagrove.errors import InputError
from metagrove.keys import key_for
from metagrove.tables.schema import Schema, migrate_schema
from metagrove.training import checkpoint

HSML_0_1 = {
    "name": "hsml",
    "loss": "mse",
    "net": {"name": "mlp", "hidden": [3], "init_sd": 0.2, "classifies": False},
    "inner_lr": 0.001,
    "inner_steps": 1,
    "inner_clip": 0.0,
    "first_order": False,
    "aggregator": "attention",
    "row_order": "random",
    "test_permutations": 16,
    "example_dim": 4,
    "task_dim": 4,
    "input_scale": 0.2,
    "picture_look": "places",
    "embedding_scale": 0.03,
    "attention_layers": 1,
    "attention_heads": 2,
    "clusters": [3, 1],
    "scales": [0.7, 1.0],
    "relative_scales": True,
    "start_tasks": 0,
    "learn_scales": False,
    "masses": False,
    "gate": "affine",
    "gate_rank": 2,
    "gate_sees_shares": True,
    "reconstruction_weight": 0.0,
}
CONFIG_0_1 = {
    "source": {"name": "functions", "families": ["line"], "shots": 5, "queries": 10, "min_shots": 0},
    "learner": HSML_0_1,
    "training": {
        "steps": 4,
        "meta_batch": 2,
        "tasks_in_flight": 400,
        "seed": 0,
        "test_steps": 3,
        "growth": {"growth_window": 0, "growth_parents": False, "retire_below": 0.0, "growth_detector": "ratio"},
    },
}


def test_every_setting_finds_its_part():
    config = from_json(CONFIG_0_1, file_format=1)
    learner = config.learner
    assert learner.embed == mg.AttentionEmbedding(
        example_dim=4, task_dim=4, input_scale=0.2, embedding_scale=0.03, attention_layers=1, attention_heads=2
    )
    assert learner.cluster == mg.RelativeClusters(clusters=(3, 1), scales=(0.7, 1.0))
    assert learner.gate == mg.ParameterGate("affine", 2, ("task", "root", "assignment"))
    assert (config.training.task_chunk_size, config.training.max_eval_inner_steps) == (400, 3)
    assert from_json(json.loads(json.dumps(to_json(config))), file_format=files.FORMAT) == config


@pytest.mark.parametrize(
    ("changed", "embed", "cluster"),
    [
        ({"aggregator": "lstm"}, mg.RecurrentEmbedding, mg.RelativeClusters),
        ({"aggregator": "max", "relative_scales": False}, mg.PoolingEmbedding, mg.DistanceClusters),
        ({"start_tasks": 200}, mg.AttentionEmbedding, mg.FoundClusters),
    ],
)
def test_variants_of_version_0_1_are_parts(changed, embed, cluster):
    learner = from_json({**CONFIG_0_1, "learner": {**HSML_0_1, **changed}}, file_format=1).learner
    assert (type(learner.embed), type(learner.cluster)) == (embed, cluster)
    if cluster is mg.FoundClusters:
        assert (learner.cluster.projection_scale, learner.embed.embedding_scale) == (0.03, 1.0)


def test_no_gate_and_arml():
    assert from_json({**CONFIG_0_1, "learner": {**HSML_0_1, "gate": "none"}}, file_format=1).learner.gate == mg.NoGate()
    arml = {"learner": {"name": "arml", "gate": "affine"}}
    assert migrate(arml, 1) == {"learner": {"name": "arml", "gate_form": "affine"}}
    assert migrate(arml, 2) == arml


def test_gnn_and_snail_from_before_nearest_init_started_from_random_weights():
    assert migrate({"learner": {"name": "gnn"}}, 2) == {"learner": {"name": "gnn", "nearest_init": False}}
    assert migrate({"learner": {"name": "snail", "nearest_init": True}}, 2)["learner"]["nearest_init"]


@pytest.mark.parametrize(
    ("part", "changed"),
    [("learner", {"masses": True}), ("learner", {"learn_scales": True})],
)
def test_a_run_that_used_what_was_removed_is_refused(part, changed):
    with pytest.raises(InputError, match="was removed in version"):
        migrate({**CONFIG_0_1, part: {**CONFIG_0_1[part], **changed}}, 1)


def test_removed_values_are_refused():
    for name, value in {"growth_detector": "welch", "growth_start": "unchanged"}.items():
        with pytest.raises(InputError, match=f"{name} '{value}' was removed"):
            migrate({"training": {"growth": {name: value}}}, 1)


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run folder in format 1: what version 0.1 would have written for a small HSML."""
    meta = from_json(CONFIG_0_1, file_format=1).learner.init(mg.Functions().spec, key=key_for("init", 0))
    arrays = {array_names_of_format_1(name): np.asarray(leaf) for name, leaf in checkpoint.named_leaves(meta).items()}
    assert {"frame.center", "frame.log_spread", "gate.weight", "gate.inward", "cluster.levels.0.centers"} <= set(arrays)
    data = safetensors.numpy.save(arrays)
    checksum = hashlib.sha256(data).hexdigest()
    weights = f"best-{checksum[:12]}.safetensors"
    (tmp_path / weights).write_bytes(data)
    about = {"weights": weights, "sha256": checksum, "step": 4}
    validation = {"value": 1.0, "ci95": 0.1, "steps": 1}
    files.write_json(tmp_path / "best.json", {"format": 1, **about, "validation": validation})
    files.write_json(tmp_path / "run.json", {"format": 1, "config": CONFIG_0_1, "provenance": {"command": "x"}})
    return tmp_path


def test_a_folder_of_version_0_1_loads_with_every_array_in_its_place(folder):
    run = mg.load(folder)
    fresh = run.config.learner.init(mg.Functions().spec, key=key_for("init", 0))
    for name, leaf in checkpoint.named_leaves(fresh).items():
        np.testing.assert_array_equal(checkpoint.named_leaves(run.meta)[name], leaf)
    assert run.adapt([0.0, 1.0], [1.0, 2.0]).predict([0.5]).shape == (1, 1)


def test_the_schema_of_tables_has_the_present_names():
    """Before version 0.2, the standard deviation of a column was `sd`, in run folders and in fitted tasks."""
    column = {"name": "x", "kind": "number", "mean": 2.0, "categories": [], "indicator": False}
    stored = {"inputs": [{**column, "sd": 3.0}], "targets": [{**column, "sd": 4.0}], "fill_missing": False}
    source = {"name": "tables", "tasks": "t.csv", "target": ["x"], "shots": 5, "schema": stored}
    for file_format in (1, 2):
        moved = migrate({"source": source}, file_format)["source"]["schema"]
        schema = Schema.from_json(moved)
        assert (schema.inputs[0].std, schema.targets[0].std) == (3.0, 4.0)
        assert migrate_schema(schema.to_json()) == schema.to_json()

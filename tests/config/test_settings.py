"""Settings by their own names, parts by the names of choices, and parts from other packages."""

import dataclasses
import textwrap

import pytest

import metagrove as mg
from metagrove.cli.app import main
from metagrove.cli.options import modernize
from metagrove.config import registry
from metagrove.config.config import Phase
from metagrove.config.presets import default_learner, preset
from metagrove.errors import InputError

PLUGIN = """
import dataclasses
import metagrove as mg

@dataclasses.dataclass(frozen=True)
class Doubled(mg.MAML):
    '''MAML with twice the inner learning rate.'''
"""


def test_short_names_reach_every_part():
    config = preset("toy-5shot").with_settings(clusters=(6, 3, 1), task_dim=8, gate_rank=2, steps=3, hidden=(4,))
    learner = config.learner
    assert (learner.cluster.clusters, learner.embed.task_dim, learner.gate.gate_rank) == ((6, 3, 1), 8, 2)
    assert (config.training.steps, learner.net.hidden) == (3, (4,))


def test_a_choice_of_part_keeps_what_both_have():
    learner = (
        preset("toy-5shot").with_settings(task_dim=8, embed="attention", gate="affine", cluster="relative").learner
    )
    assert learner.embed == mg.AttentionEmbedding(task_dim=8)
    assert learner.gate == mg.ParameterGate("affine")
    assert learner.cluster == mg.RelativeClusters()
    assert preset("toy-5shot").with_settings(embed="lstm").learner.embed == mg.RecurrentEmbedding(cell="lstm")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embed": "atention"}, "no embed is called 'atention': did you mean 'attention'"),
        ({"stepz": 3}, "no setting is called 'stepz': did you mean 'steps'"),
        ({"aggregator": "lstm"}, "'aggregator' is now called 'embed'"),
        ({"tasks_in_flight": 3}, "'tasks_in_flight' is now called 'task_chunk_size'"),
    ],
)
def test_unknown_names_are_refused_with_the_right_one(settings, message):
    with pytest.raises(InputError, match=message):
        preset("toy-5shot").with_settings(**settings)


def test_rivals_get_the_settings_they_share_with_hsml():
    """By name, whichever part of HSML has them: the gate's form, the task's size, the order of rows."""
    config = preset("toy-5shot-best").with_settings(embed="gru", row_order="sorted", inner_lr=0.02)
    arml, mumomaml = default_learner("arml", config), default_learner("mumomaml", config)
    assert (arml.gate_form, arml.task_dim, arml.example_dim, arml.inner_lr) == ("affine", 64, 64, 0.02)
    assert (mumomaml.row_order, mumomaml.net) == ("sorted", config.learner.net)
    assert default_learner("neural-process", preset("toy-5shot-best")).attention_layers == 4


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        ("train", ["--aggregator", "lstm"], ["--embed", "lstm"]),
        ("train", ["--tasks-in-flight=3"], ["--task-chunk-size=3"]),
        ("train", ["--relative-scales"], ["--cluster", "relative"]),
        (
            "train",
            ["--relative-scales", "--start-tasks", "9", "--embedding-scale", "0.1", "--gate-sees-shares"],
            [
                "--cluster=found",
                "--start-tasks",
                "9",
                "--projection-scale",
                "0.1",
                "--gate-inputs",
                "task",
                "root",
                "assignment",
            ],
        ),
        ("evaluate", ["RUN", "--tasks", "4"], ["RUN", "--num-tasks", "4"]),
        ("adapt", ["--steps", "4"], ["--inner-steps", "4"]),
        ("train", ["--steps", "4"], ["--steps", "4"]),
    ],
)
def test_spellings_of_version_0_1(command, old, new, capsys):
    assert modernize(command, old) == new
    assert ("is now spelt" in capsys.readouterr().err) == (old != new)


def test_removed_options_say_so(capsys):
    assert main(["train", "toy-quick", "--masses"]) == 2
    assert "--masses was removed in version 0.2" in capsys.readouterr().err


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Another package, installed beside this one, that provides a learner."""
    (tmp_path / "doubled.py").write_text(textwrap.dedent(PLUGIN))
    info = tmp_path / "doubled-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: doubled\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[metagrove.learners]\ndoubled = doubled:Doubled\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry.classes.cache_clear()
    yield
    registry.classes.cache_clear()


def test_another_package_provides_a_learner(plugin, tmp_path, capsys):
    config = preset("toy-quick", "doubled")
    assert type(config.learner).__name__ == "Doubled"
    assert main(["list"]) == 0
    assert "doubled" in capsys.readouterr().out
    flags = "--steps 2 --log-every 2 --validate-every 2 --validation-tasks 4 --meta-batch 2 --hidden 3 --inner-steps 1"
    out = tmp_path / "run"
    assert main(["train", "toy-quick", "--learner", "doubled", *flags.split(), "--out", str(out)]) == 0
    assert type(mg.load(out).config.learner).__name__ == "Doubled"


def test_a_name_that_is_taken_is_refused(plugin, monkeypatch):
    monkeypatch.setitem(registry.BUILT_IN["learner"], "doubled", mg.MAML)
    with pytest.raises(InputError, match="which already exists"):
        registry.classes("learner")


def test_training_without_a_preset(tmp_path):
    learner = mg.MAML(net=mg.MLPNet(hidden=(3,)), inner_steps=1)
    training = mg.Training(steps=2, meta_batch=2, log_every=2, validate_every=2, validation_tasks=4)
    seen = []
    config = mg.Config(mg.Functions(), learner, training)
    run = mg.train(config, out=tmp_path / "a", callback=seen.append)
    assert [record.step for record in seen] == [2]
    settings = {field.name: getattr(training, field.name) for field in dataclasses.fields(training)}
    again = mg.train(source=mg.Functions(), learner=learner, out=tmp_path / "b", **settings)
    assert again.config == run.config
    with pytest.raises(InputError, match="needs a preset's name, a Config, or both"):
        mg.train(learner=learner)


def test_phases_in_words_are_fractions_of_the_training():
    config = preset("toy-5shot").with_settings(steps=400, phases="1/4: embed by reconstruction; net cluster gate")
    first, second = config.training.phases
    assert first == Phase(steps=100, trains=("embed",), loss="reconstruction")
    assert second == Phase(steps=0, trains=("net", "cluster", "gate"), loss="query")
    assert config.with_settings(phases="30: ;").training.phases == (Phase(steps=30), Phase())
    assert config.with_settings(phases="").training.phases == ()
    for wrong in ("3/2: embed", "1/0: embed", "embed, gate", "-1: embed"):
        with pytest.raises(InputError, match="phases has"):
            config.with_settings(phases=wrong)

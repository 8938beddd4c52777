"""The report: every figure present, all that people wrote escaped, numbers as measured, and a browser's own word."""

import csv
import dataclasses
import hashlib
import html.parser
import json
import math
import re
import shutil
import subprocess
from base64 import b64encode
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import LEARNERS, TINY_NET, TINY_TRAINING

from metagrove import HSML, MAML, Functions, files, load
from metagrove.baselines.support_mean import SupportMean
from metagrove.cli.app import main
from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.errors import InputError
from metagrove.evaluation.row_scores import score_rows
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import PoolingEmbedding
from metagrove.losses import cross_entropy, metric_of, mse
from metagrove.nets.conv4 import Conv4Net
from metagrove.pools import pool
from metagrove.serve.calibrate import calibrate, calibrate_predictions
from metagrove.serve.served import Served, baseline_folder, save_fitted_run, write_served
from metagrove.show.report import collect_context, page, write_report
from metagrove.show.report_charts import thin
from metagrove.show.report_data import Case, TaskResults, collect_results, typical
from metagrove.show.report_html import join, number, percent, tag, with_ci
from metagrove.show.report_plot import Axis, Frame, axis, tick_text
from metagrove.show.report_rivals import Standing
from metagrove.show.report_sections import result
from metagrove.show.report_standings import standings_chart, standings_scale
from metagrove.show.report_tasks import Units, band_name, image, std_band
from metagrove.show.report_tree import node_name, tree
from metagrove.sources.images import Images
from metagrove.sources.tables import open_tables
from metagrove.tables.settings import TableData
from metagrove.training import checkpoint, folders
from metagrove.training.records import BestCheckpoint, BlockRecord, GrowthCause, GrowthEvent, ValidationRecord
from metagrove.training.scores import ci95, paired_difference

SECTIONS = ["result", "training", "clusters", "assignments", "map", "tasks", "growth", "about"]
EVIL = "<script>alert('x')</script> & \" onload=\"alert(1)"
NUM_TASKS = 24
VALIDATION = ValidationRecord(2.0, 0.5, 1)
GROWTH = GrowthEvent((2, 2, 1), (3, 2, 1), GrowthCause("loss", 1.0, 1.25, "ratio", ratio=1.25), "random", 0.0)


def untrained(config, folder, records=(), *, steps=1):
    """A run of random numbers: what a page has to say does not depend on how good it is."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    like = eqx.filter_eval_shape(config.learner.init, config.source.spec, key=jax.random.key(0))
    meta = jax.tree.map(lambda leaf: 0.3 * random.normal(size=leaf.shape).astype(np.float32), like)
    folders.create(folder, to_json(config), "metagrove train toy-quick --seed 0")
    for record in records:
        folders.append_metrics(folder, record)
    best = BestCheckpoint(20, dataclasses.replace(VALIDATION, steps=steps))
    checkpoint.save(folder, "best", meta, {**files.as_json(best), "seconds": 90.0})
    return load(folder)


RECORDS = (
    BlockRecord(10, {"loss": 9.0}),
    BlockRecord(15, growth=GROWTH),
    BlockRecord(20, {"loss": 3.0}, VALIDATION),
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    hsml, maml = (Config(Functions(), LEARNERS[name], TINY_TRAINING) for name in ("hsml-mean", "maml"))
    return {"hsml": untrained(hsml, folder / "hsml", RECORDS), "maml": untrained(maml, folder / "maml")}


@pytest.fixture(scope="module")
def curves(runs):
    """The page of a run on curves with another beside it."""
    return page(collect_context(runs["hsml"], [runs["maml"]], num_tasks=NUM_TASKS, seed=0))


class Reader(html.parser.HTMLParser):
    """Every tag is closed by its own, ids are unique, and nothing is fetched."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.tags, self.text, self.fetched, self.attributes = [], [], [], [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag, attrs):
        self.note(tag, attrs)
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.note(tag, attrs)

    def note(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.ids += [value for name, value in attrs if name == "id"]
        self.fetched += [v for n, v in attrs if n in ("src", "href", "action") and not v.startswith("data:image/png;")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text.append(data)

    def said(self):
        return " ".join(" ".join(self.text).split())


def test_every_section_is_there_and_nothing_is_fetched(curves):
    read = Reader(curves)
    assert [one for one in read.ids if one in SECTIONS] == SECTIONS
    assert read.fetched == []
    assert "http" not in re.sub(r'http-equiv="Content', "", curves)
    assert "url(" not in curves
    assert "@import" not in curves
    script = re.findall(r"<script>(.*?)</script>", curves, flags=re.DOTALL)
    assert len(script) == 1
    allowed = b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{allowed}'" in html.unescape(curves)


def section_of(text, name):
    return re.findall(rf'<section id="{name}".*?</section>', text, flags=re.DOTALL)[0]


def test_figures_of_a_run_on_curves(curves):
    assert 'class="tree"' in section_of(curves, "clusters")
    assert section_of(curves, "clusters").count('class="cluster"') == 3 + 2
    assert section_of(curves, "assignments").count("<tr>") == 1 + NUM_TASKS
    assert len(re.findall(r"<(?:circle|polygon)[^>]*><title>", section_of(curves, "map"))) == NUM_TASKS
    tasks = section_of(curves, "tasks")
    assert tasks.count('class="task"') == 3 * 4
    assert tasks.count('class="fit fit0"') == tasks.count('class="fit fit1"') == 3 * 4 + 1  # and the legend
    assert 'class="valid"' in section_of(curves, "training")
    assert section_of(curves, "training").count('class="growth"') == 2  # the event, and the legend
    said = Reader(section_of(curves, "growth")).said()
    cause = "watched loss, last window 1.00, this window 1.25, detector ratio, ratio 1.25"
    assert f"15 3 · 2 · 1 {cause} 0" in said


def test_numbers_are_those_of_evaluation(runs, curves):
    first = collect_results(runs["hsml"], num_tasks=NUM_TASKS, seed=0).scores
    second = runs["maml"].scores(num_tasks=NUM_TASKS, seed=0, steps=1, every_step=False).by_step[:, -1]
    said = Reader(curves).said()
    assert with_ci(float(first.mean()), float(ci95(first))) in said
    assert with_ci(float(second.mean()), float(ci95(second))) in said
    gap = paired_difference(second, first)  # the other minus the run, as on the command line
    assert with_ci(gap.difference, gap.ci95, signed=True) in said


def test_the_same_run_gives_the_same_bytes(runs, curves, tmp_path):
    out = tmp_path / "new folder" / "page.html"
    run, beside = str(runs["hsml"].folder), str(runs["maml"].folder)
    assert (
        main(["report", run, "--compare-with", beside, "--out", str(out), "--num-tasks", str(NUM_TASKS), "--seed", "0"])
        == 0
    )
    assert out.read_text(encoding="utf-8") == curves
    assert list(out.parent.iterdir()) == [out]


def test_sections_with_nothing_to_show_are_left_out(runs):
    """MAML has no clusters and no embeddings, and this run no metrics.jsonl."""
    read = Reader(page(collect_context(runs["maml"], [], num_tasks=4, seed=0)))
    assert [one for one in read.ids if one in SECTIONS] == ["result", "tasks", "about"]
    assert "No other run to compare with" in read.said()


def write_table(path, rows_of_task, num_tasks):
    """A long table; the first task of all has a name that is a script."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "kind", "size <i>", "weight", "y & z"])
        for task in range(num_tasks):
            for row in range(6):
                kind = ("plain", "<u>odd</u>")[task % 2]
                writer.writerow([f"{EVIL} {task}", kind, row + task / 7, (row * task) % 5, rows_of_task(task, row)])
    return path


def tables(path, **settings):
    how = {"task_column": "task", "target": ("y & z",), "stratify": "kind", "shots": 3, "queries": 3}
    return open_tables(TableData(tasks=str(path), **how | settings))[0]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A run on a table with two inputs, with an index and with baselines measured beside it."""
    folder = tmp_path_factory.mktemp("own")
    source = tables(write_table(folder / "t.csv", lambda task, row: row * (task % 3) - task, 20))
    run = calibrate(untrained(Config(source, LEARNERS["hsml-mean"], TINY_TRAINING), folder / "<b>run", RECORDS[:1]))
    rows = [{"name": "hsml", "label": "HSML", "variant": "", "value": 1.0, "value_ci95": 0.1, "by_family": {}}]
    each = {family: {"value": 0.5, "value_ci95": 0.1} for family in source.family_names}
    gap = {"difference": -0.5, "ci95": 0.2, "by_family": {}}
    rows += [
        {
            **rows[0],
            "name": "ridge",
            "label": "ridge",
            "variant": "penalty 1",
            "value": 0.5,
            "by_family": each,
            "minus_run": gap,
        }
    ]
    context = {"metric": "mse", "num_tasks": 3, "num_draws": 2, "seed": 5, "rows": rows, "best": "ridge"}
    context |= {"advice": f"Use ridge {EVIL}.", "serving": "adapt and predict serve the mean."}
    files.write_json(run.folder / "baselines.json", {"format": 1, **context})
    place = baseline_folder(run.folder, "support-mean")
    save_fitted_run(place, source, SupportMean(), jnp.zeros(1), seconds=0.0, command="")
    calibrate_predictions(run.using("support-mean"))
    write_served(run.folder, Served("support-mean", "mean of the support rows"))
    return run


@pytest.fixture(scope="module")
def own_story(own):
    return collect_context(own, [], num_tasks=None, seed=None)


@pytest.fixture(scope="module")
def own_page(own_story):
    return page(own_story)


def test_what_people_wrote_is_escaped(own, own_page):
    read = Reader(own_page)
    assert read.tags.count("script") == 1
    assert not {"i", "b", "u"} & set(read.tags)
    assert not [name for name in read.attributes if name.startswith("on")]
    for said in (EVIL, "<u>odd</u>", "size <i>", "y & z", "<b>run"):
        assert said in read.said()


def test_own_tables_have_their_names_and_baselines(own, own_page):
    names, read = own.config.source.task_names("test"), Reader(own_page)
    results = collect_results(own, num_tasks=2 * len(names), seed=5)
    assert [case.name for case in results.cases] == list(names)
    expected = own.scores(num_tasks=2 * len(names), seed=5, steps=1, every_step=False)
    np.testing.assert_allclose(results.scores, expected.by_step[:, -1], rtol=1e-5)
    np.testing.assert_allclose(results.shares[0], expected.shares, rtol=1e-4)
    assert "ridge penalty 1" in read.said()
    assert "this run is worse, −0.50 ± 0.20" in read.said()
    assert "HSML loses to ridge" in read.said()
    assert "--num-tasks 6 --seed 5" in read.said()
    assert 'class="pair c0"' in section_of(own_page, "tasks")  # predicted against true: there are two inputs
    known = len(own.config.source.task_names("train")) + len(own.config.source.task_names("validation"))
    assert section_of(own_page, "map").count(" known") == known
    assert "Baselines were measured on 2 draws" not in read.said()
    assert "schema.inputs.weight numeric, mean" in read.said()


def test_advice_is_second_and_figures_are_in_the_columns_units(own_story, own_page):
    said = Reader(own_page).said()
    header = said[: said.index("parameters")]
    assert header.index("<b>run") < header.index("Use ridge") < header.index("Adapt and predict serve the mean.")
    assert own_story.rows.served == "support-mean"
    assert "As served, by support-mean: y & z: RMSE" in said
    scores = own_story.rows.targets["y & z"]
    assert f"RMSE {number(scores.rmse)} in its units, R² {scores.r2:.2f}" in said
    interval = scores.interval
    cover = with_ci(100 * interval.coverage, 100 * interval.coverage_ci95)
    assert f"{cover} % {number(interval.width)}" in Reader(section_of(own_page, "predictions")).said()
    drawn = section_of(own_page, "tasks")
    assert "true y &amp; z" in drawn
    assert "predicted y &amp; z" in drawn
    described = [words for level in own_story.index.clusters for words in level if words != "0 tasks"]
    assert all(words in Reader(section_of(own_page, "clusters")).said() for words in described)


def test_other_draws_than_the_baselines_are_owned_up_to(own_story):
    said = Reader(result(dataclasses.replace(own_story, seed=0))).said()
    assert "Baselines were measured on 2 draws of each task, seed 5." in said


def test_classes_of_a_table(tmp_path):
    source = tables(write_table(tmp_path / "t.csv", lambda task, row: ("<s>", "b", "c")[(task + row) % 3], 16))
    learner = MAML(net=TINY_NET, loss=cross_entropy)
    run = untrained(Config(source, learner, TINY_TRAINING), tmp_path / "run", steps=0)
    text = page(collect_context(run, [], num_tasks=6, seed=0))
    assert "s" not in Reader(text).tags
    assert section_of(text, "tasks").count('class="confusion"') >= 3
    assert "% accuracy" in text
    classes = score_rows(run).classes
    said = Reader(section_of(text, "predictions")).said()
    assert f"balanced accuracy {classes.balanced_accuracy:.1f} %" in said
    assert f"<s> {classes.recall['<s>']:.1f} %" in said


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The page of a run on images."""
    folder = tmp_path_factory.mktemp("images")
    for name, shade in (("dark", 0), ("light", 190)):
        place = pool.folder_of(name, 16, folder)
        place.mkdir(parents=True)
        classes = [(f"{split} {i}", split, 4) for split in pool.SPLITS for i in range(3)]
        noise = np.random.default_rng(shade).integers(0, 60, (4 * len(classes), 16, 16, 3))
        pool.write(place, name, (shade + noise).astype(np.uint8), classes, {})
    source = Images(datasets=("dark", "light"), size=16, ways=3, queries=2, test_queries=2, data=str(folder))
    learner = HSML(
        loss=cross_entropy,
        net=Conv4Net(filters=2, blocks=1),
        embed=PoolingEmbedding(example_dim=4, task_dim=4),
        cluster=DistanceClusters(clusters=(2, 1)),
    )
    run = untrained(Config(source, learner, TINY_TRAINING), folder / "run", RECORDS, steps=0)
    return page(collect_context(run, [], num_tasks=6, seed=0))


def test_images_are_inside_the_page(images):
    read = Reader(images)
    assert read.fetched == []
    shown = section_of(images, "tasks")
    assert shown.count("<img") == 3 * 2 * 3 * 3  # best, middle, worst; two of each; three rows; three classes
    assert shown.count('class="right"') + shown.count('class="wrong"') == 3 * 2 * 2 * 3
    assert section_of(images, "clusters").count("<img") > 0


def test_a_large_image_is_made_smaller():
    assert 'width="64" height="64"' in image(np.zeros((84, 84, 3), np.float32), "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"out": "."}, "--out must be a file"),
        ({"others": ["small"]}, "was trained on a different source"),
        ({"others": ["maml"] * 4}, "at most 3 runs"),
        ({"num_tasks": 1}, "--num-tasks must be at least 2"),
    ],
)
def test_what_cannot_be_told_is_refused(runs, tmp_path, change, message):
    small = dataclasses.replace(runs["maml"], config=Config(Functions(shots=3), MAML(), TINY_TRAINING))
    others = [{**runs, "small": small}[name] for name in change.get("others", [])]
    out = tmp_path / change.get("out", "page.html")
    with pytest.raises(InputError, match=message):
        write_report(runs["hsml"], others, out, num_tasks=change.get("num_tasks", NUM_TASKS), seed=0)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "page.html")
    assert main(["report", str(runs["hsml"].folder), "--out", out, "--num-tasks", str(NUM_TASKS)]) == 3
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.08654, "0.0865"),
        (-12.345, "−12.3"),
        (1234567.0, "1,234,567"),
        (9.12e-6, "9.12×10⁻⁶"),
        (4e12, "4.00×10¹²"),
        (math.nan, "not finite"),
        (math.inf, "not finite"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_an_interval_says_how_many_digits_count():
    assert with_ci(0.086539, 0.025198) == "0.087 ± 0.025"
    assert with_ci(54.321, 1.234) == "54.3 ± 1.2"
    assert with_ci(-1.25, 0.34, signed=True) == "−1.25 ± 0.34"
    assert with_ci(0.5, 0.2, signed=True) == "+0.50 ± 0.20"
    assert with_ci(3.0, 0.0) == "3.0 ± 0.0"
    assert with_ci(math.nan, 1.0) == "not finite"
    assert percent(0.001) == "< 1\u00a0%"


def test_tags_escape_text_and_attributes():
    assert tag("p", "<&>", class_='"') == '<p class="&quot;">&lt;&amp;&gt;</p>'
    assert tag("p", tag("b", "x"), None, join("<")) == "<p><b>x</b>&lt;</p>"


def test_axes():
    assert Axis(0, 10).ticks(5) == [0, 2, 4, 6, 8, 10]
    assert Axis(-0.3, 0.31).ticks(3) == [-0.25, 0.0, 0.25]
    assert Axis(0.01, 100, log=True).ticks(5) == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert Axis(1, 100, log=True).at(10) == pytest.approx(0.5)
    assert axis([5.0, 5.0]).low < 5 < axis([5.0]).high
    assert axis([math.nan, 1.0, math.inf]).low < 1
    assert axis([]).high == 1
    assert [tick_text(v) for v in (20_000, 2.5e6, -0.25, 0, 1e-5)] == ["20k", "2.5m", "−0.25", "0", "10⁻⁵"]


def test_a_value_that_is_not_finite_leaves_a_gap():
    frame = Frame(Axis(0, 2), Axis(0, 1), 100)
    assert 'd="M0 78M1000 78"' in frame.line([0, 1, 2], [0, math.nan, 0], "fit")
    assert frame.dots([0, 1], [0, math.inf], 3, "query").count("<circle") == 1


def made_up(scores, shares, metric=mse):
    """A look with these first-level shares, whose one higher level is the root."""
    first = np.asarray(shares, float)[:, None]
    root = np.ones((len(scores), first.shape[2], 1))
    cases = tuple(Case(f"task {i}", 0, Functions(), jax.random.key(i)) for i in range(len(scores)))
    embeddings = np.asarray(shares, float)
    return TaskResults(
        np.asarray(scores, float), np.zeros(len(scores), int), embeddings, (first, root), cases, metric_of(metric)
    )


def test_typical_tasks_are_in_the_middle_of_their_cluster():
    results = made_up([1, 2, 3, 4], [[0.6, 0.4, 0], [0.8, 0.2, 0], [1.0, 0.0, 0], [0.1, 0.9, 0]])
    assert typical(results, 0, 0, 2) == [1, 2]  # of the half with the largest shares
    assert typical(results, 0, 1, 2) == [3]
    assert typical(results, 0, 2, 2) == []  # the cluster is strongest nowhere
    assert typical(results, 0, 0, 2, without={1}) == [2]  # of the other two, the half with the larger share
    assert results.flows[0] == pytest.approx(np.array([[2.5 / 4], [1.5 / 4], [0]]))
    assert "C1: 62\u00a0% of tasks" in tree(results)


def test_best_first_puts_what_is_not_finite_last():
    shares = [[1.0]] * 3
    assert made_up([2, math.nan, 1], shares).best_first().tolist() == [2, 0, 1]
    assert made_up([20, math.nan, 90], shares, cross_entropy).best_first().tolist() == [2, 0, 1]


def test_verdicts_know_which_way_is_better():
    errors, accuracy = metric_of(mse), metric_of(cross_entropy)
    less = Standing("other", 1.0, 0.1, {}, difference=-0.5, difference_ci95=0.1)
    assert (less.verdict(errors), less.verdict(accuracy)) == ("worse", "better")
    assert dataclasses.replace(less, difference_ci95=0.6).verdict(errors) == "unclear"
    assert dataclasses.replace(less, difference=math.nan).verdict(errors) == "unclear"


def test_a_learner_that_knows_how_sure_it_is_has_a_band():
    frame, x = Frame(Axis(0, 1), Axis(-2, 2), 100), np.array([[0.0], [1.0]])
    none, ones = lambda x: None, np.ones_like
    sure = SimpleNamespace(predict=np.zeros_like, std=ones, interval=none)
    assert 'class="band"' in std_band(frame, sure, x, x[:, 0], Units())
    assert band_name(sure, x) == "± 2 standard deviations"
    calibrated = SimpleNamespace(predict=np.zeros_like, std=none, interval=lambda x: (-ones(x), ones(x)))
    assert 'class="band"' in std_band(frame, calibrated, x, x[:, 0], Units())
    assert band_name(calibrated, x) == "90 % interval"
    unsure = SimpleNamespace(predict=np.zeros_like, std=none, interval=none)
    assert std_band(frame, unsure, x, x[:, 0], Units()) is None


def test_standings_far_apart_are_on_a_logarithmic_scale():
    near, far = Standing("a", 0.1, 0.05, {}), Standing("b", 3.0, 4.0, {}, 2.9, 1.0)
    assert standings_scale([near, near], metric_of(mse)).low < 0.01
    assert standings_scale([near, far], metric_of(mse)).log
    drawn = standings_chart([near, far], metric_of(mse))
    assert "logarithmic" in drawn
    assert "this run is better, +2.9 ± 1.0" in drawn
    assert all(0 <= float(place) <= 100 for place in re.findall(r'(?:x1|x2|cx)="([-\d.]+)%"', drawn))
    assert "not finite" in standings_chart([dataclasses.replace(near, value=math.nan)], metric_of(mse))


def test_small_matters():
    assert [node_name(level, 1, 3) for level in range(3)] == ["C2", "D2", "root"]
    at, means = thin(np.arange(1000.0), np.ones(1000))
    assert len(at) == len(means) == 400


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WIDTHS = (360, 390, 768, 1280)
PROBE = """<!doctype html><body><script>
const pages = PAGES, widths = WIDTHS, found = [];
const load = (text, width) => new Promise((done) => {
  const frame = document.createElement("iframe");
  frame.style.width = width + "px"; frame.style.height = "800px";
  frame.onload = () => done(frame.contentWindow);
  frame.srcdoc = text;
  document.body.append(frame);
});
(async () => {
  for (const [name, text] of Object.entries(pages)) for (const width of widths) {
    const page = await load(text, width), doc = page.document, root = doc.documentElement;
    const room = root.clientWidth;
    const over = [...doc.querySelectorAll("body *")].filter((e) => !e.closest(".scroll") && !e.closest("svg svg")
      && e.getBoundingClientRect().right > room + 0.5 && e.getBoundingClientRect().width > 0);
    const button = doc.getElementById("theme"), before = page.getComputedStyle(doc.body).backgroundColor;
    button.click();
    const after = page.getComputedStyle(doc.body).backgroundColor;
    const mark = doc.querySelector("#map .map > *");
    if (mark) mark.dispatchEvent(new page.PointerEvent("pointerover", {bubbles: true}));
    const tip = doc.getElementById("tip");
    found.push({name, width, room, scroll: root.scrollWidth, over: over.map((e) => e.outerHTML.slice(0, 80)),
      switched: before !== after, tip: mark ? tip.textContent : null, named: mark ? mark.dataset.tip : null,
      empty: [...doc.querySelectorAll("svg.plot, svg.tree, svg.map")].map((e) => e.getBoundingClientRect())
        .filter((box) => box.height < 20 || box.width < 20).length});
  }
  const out = document.createElement("pre");
  out.id = "found"; out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
})();
</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser_nothing_overflows_and_no_script_fails(curves, own_page, images, tmp_path):
    pages = json.dumps({"curves": curves, "own": own_page, "images": images}).replace("</", "<\\/")
    probe = PROBE.replace("PAGES", pages).replace("WIDTHS", str(list(WIDTHS)))
    (tmp_path / "probe.html").write_text(probe, encoding="utf-8")
    how = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=20000"]
    ran = subprocess.run(
        [CHROMIUM, *how, f"--user-data-dir={tmp_path}/profile", "--dump-dom", f"file://{tmp_path}/probe.html"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in ran.stderr
    found = json.loads(html.unescape(re.findall(r'<pre id="found">(.*?)</pre>', ran.stdout, flags=re.DOTALL)[0]))
    assert len(found) == 3 * len(WIDTHS)
    for one in found:
        assert (one["scroll"], one["over"], one["empty"]) == (one["room"], [], 0), one
        assert one["switched"]
        assert one["tip"] == one["named"] != ""

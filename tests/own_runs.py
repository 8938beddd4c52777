"""Tiny runs on people's own data as training would leave them, without training: nothing is compiled for it."""

import csv

import equinox as eqx
import jax
import numpy as np

from metagrove import BMAML, HSML, MAML, Conv4Net, Images, MLPNet, ProtoNet
from metagrove.config.config import Config
from metagrove.config.encoding import to_json
from metagrove.hsml.cluster import DistanceClusters
from metagrove.hsml.embed import PoolingEmbedding
from metagrove.losses import cross_entropy
from metagrove.serve.run import load
from metagrove.sources.tables import Tables, open_tables
from metagrove.tables.schema import Column, Schema
from metagrove.tables.settings import TableData
from metagrove.training import checkpoint, folders

X, COLOUR, Y = "länge (m)", "colour", "y"
NET = MLPNet(hidden=(6,), init_sd=0.5)
TINY_HSML = HSML(
    net=NET,
    embed=PoolingEmbedding(task_dim=4, example_dim=4),
    cluster=DistanceClusters(clusters=(3, 2, 1)),
    inner_lr=0.01,
)
LABELS = Schema(
    (Column("a", "number", 1.0, 2.0), Column("b", "number")), (Column("kind", "category", categories=("10", "9", "x")),)
)
VALUES = Schema((Column("a", "number", 1.0, 2.0),), (Column("u", "number", 100.0, 20.0), Column("v", "number")))
NUMBERS = Schema((Column("a", "number"), Column("b", "number")), (Column("k", "category", categories=("10", "9")),))


def untrained(folder, config):
    """A run folder with the learner as it was drawn."""
    folder.mkdir(parents=True)
    folders.create(folder, to_json(config), "a test")
    meta = eqx.filter_jit(config.learner.init)(config.source.spec, key=jax.random.key(1))
    validation = {"steps": 2, "value": 1.0, "ci95": 0.1}
    checkpoint.save(folder, "best", meta, {"step": 0, "validation": validation, "seconds": 0.0})
    return load(folder)


def write_csv(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def sensors(num_rows, seed=0):
    """Some rows of one sensor."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 3, num_rows).round(3)
    colour = rng.choice(["red", "grün"], num_rows)
    return {X: x, COLOUR: colour, Y: (50 + 7 * x + 5 * (colour == "red") + rng.normal(size=num_rows)).round(3)}


def table_run(folder, learner=TINY_HSML):
    """A run on 30 sensors of one long table."""
    parts = [{"sensor": [f"Nº {i}"] * 8, **sensors(8, i)} for i in range(30)]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    path = write_csv(folder / "alle sensoren.csv", whole)
    data = TableData(tasks=str(path), task_column="sensor", target=(Y,), shots=4, validation=0.3, test=0.2)
    source, _ = open_tables(data)
    return untrained(folder / "run", Config(source, learner))


def schema_run(folder, schema, learner):
    """A run whose tables are elsewhere."""
    return untrained(folder, Config(Tables(tasks="gone.csv", target=("y",), schema=schema), learner))


def sensor_run(folder):
    """MAML on the columns of `sensors`."""
    columns = Column(X, "number", 1.5, 0.9), Column(COLOUR, "category", categories=("grün", "red"))
    return schema_run(folder, Schema(columns, (Column(Y, "number", 63.0, 7.0),)), MAML(net=NET, inner_lr=0.01))


def label_run(folder, schema=LABELS):
    learner = MAML(net=MLPNet(hidden=(6,), init_sd=0.5, classifies=True), loss=cross_entropy, inner_lr=0.1)
    return schema_run(folder, schema, learner)


def value_run(folder):
    return schema_run(folder, VALUES, BMAML(net=NET, particles=3, inner_lr=0.01))


def image_run(folder):
    source = Images(datasets=("mine",), size=8, ways=3)
    return untrained(folder, Config(source, ProtoNet(net=Conv4Net(filters=4, blocks=1))))

"""Gapminder, held-out countries, 5 support rows: HSML, MAML and what people would use without meta-learning.

    python benchmarks/gapminder.py --out results/gapminder.json

Settings of HSML and MAML are chosen on validation tasks among equally many candidates, then some seeds are trained; the
seed that does best on validation tasks stands for its method. Runs are kept and gone on with (--runs).
"""

import argparse
import dataclasses
import shlex
import sys
import time
from pathlib import Path

import numpy as np
from result import write_result

from metagrove import files
from metagrove.baselines.data import baseline_data, draw_tasks
from metagrove.baselines.fit import baselines_for
from metagrove.baselines.gaussian_process import predict_tasks
from metagrove.config.own_data import table_config
from metagrove.config.presets import default_learner
from metagrove.errors import DivergedError
from metagrove.evaluation.baselines import Measured, make_result, nan_to_none, own_scores
from metagrove.evaluation.candidates import score_draws
from metagrove.serve.run import load
from metagrove.sources.tables import open_tables
from metagrove.tables.gapminder import GAPMINDER, write_gapminder
from metagrove.training.folders import provenance
from metagrove.training.loop import train

RATES = (0.05, 0.1, 0.2)
CANDIDATES = {"hsml": [{"inner_lr": rate} for rate in RATES], "maml": [{"inner_lr": rate} for rate in RATES]}


def config_of(source, name: str, settings: dict, steps: int, seed: int):
    config = table_config(source, source.num_tasks("train"))
    config = dataclasses.replace(config, learner=default_learner(name, config))
    every = max(1, steps // 8)
    return config.with_settings(steps=steps, validate_every=every, seed=seed, **settings)


def trained(config, folder: Path):
    resume = (folder / "run.json").exists()
    if not train(config, folder, resume=resume, command=shlex.join(["python", *sys.argv])):
        sys.exit("stopped; the same command goes on")
    return load(folder)


def search(source, name: str, args) -> tuple[dict, list[dict]]:
    """The settings that do best on validation tasks, and what each candidate did there."""
    tried = []
    for i, settings in enumerate(CANDIDATES[name]):
        try:
            run = trained(config_of(source, name, settings, args.steps, 0), args.runs / f"{name}-{i}-s0")
            tried.append({"settings": settings, "validation": run.about["validation"]})
        except DivergedError:
            tried.append({"settings": settings, "validation": None})
    finished = [i for i, one in enumerate(tried) if one["validation"]]
    best = min(finished, key=lambda i: tried[i]["validation"]["value"])
    return {"index": best, **CANDIDATES[name][best]}, tried


def learners(source, args) -> tuple[dict, dict]:
    """The scores of each method's chosen seed, and how it was chosen."""
    scored, about = {}, {}
    for name in CANDIDATES:
        chosen, tried = search(source, name, args)
        index = chosen.pop("index")
        seeds = []
        for seed in range(args.seeds):
            folder = args.runs / f"{name}-{index}-s{seed}"
            run = trained(config_of(source, name, chosen, args.steps, seed), folder)
            values = own_scores(run, args.draws, 0)
            last = files.read_json(folder / "last.json")
            seeds.append((run.about["validation"]["value"], values, {"seed": seed, "seconds": last["seconds"]}))
        _, values, told = min(seeds, key=lambda one: one[0])
        variant = ", ".join(f"{key} {value:g}" for key, value in chosen.items())
        scored[name] = Measured(values, told["seconds"], variant)
        means = [float(values.mean()) for _, values, _ in seeds]
        about[name] = {
            "search": tried,
            "chosen": chosen,
            "seeds": [
                {**told, "validation": value, "test": mean} for (value, _, told), mean in zip(seeds, means, strict=True)
            ],
            "mean_over_seeds": float(np.mean(means)),
            "sd_over_seeds": float(np.std(means, ddof=1)) if len(means) > 1 else None,
        }
    return scored, about


def baselines(source, args) -> dict:
    data = baseline_data(source, classifies=False)
    tasks = draw_tasks(source, "test", num_draws=args.draws, seed=0)
    scored = {}
    for name, entry in baselines_for(classifies=False).items():
        began = time.monotonic()
        fitted = entry.fit(data)
        prediction = np.asarray(predict_tasks(fitted.learner, fitted.meta, *tasks.joined()), np.float64)
        values = score_draws(prediction, tasks, classifies=False).loss
        scored[name] = Measured(values, time.monotonic() - began, fitted.variant)
    return scored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/gapminder"))
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--draws", type=int, default=10, help="of each test task, with other rows as support")
    args = parser.parse_args()

    began = time.monotonic()
    args.runs.mkdir(parents=True, exist_ok=True)
    path = args.runs / "gapminder.csv"
    scales = write_gapminder(path)
    source, _ = open_tables(dataclasses.replace(GAPMINDER, tasks=str(path)))
    scored, about = learners(source, args)
    scored |= baselines(source, args)
    family = np.asarray(source.split("test").families)
    table = make_result(scored, family, source.family_names, metric="mse", num_draws=args.draws, seed=0)
    result = {
        "about": (
            "mean squared error of each indicator standardised on training countries (GDP and population as log10), "
            f"{len(family)} test tasks of held-out countries, 5 support rows, 7 query rows, {args.draws} draws of each "
            "task; CI over tasks, of their means over draws"
        ),
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        "tasks": {split: source.num_tasks(split) for split in ("train", "validation", "test")},
        "scales": scales,
        "split_seed": source.split_seed,
        "meta_steps": args.steps,
        **files.as_json(table),
        "learners": about,
        "wall_seconds": {
            "all trainings": sum(files.read_json(path)["seconds"] for path in args.runs.glob("*/last.json")),
            "the last call, what was trained before left out": time.monotonic() - began,
        },
    }
    write_result(nan_to_none(result), args.out)


if __name__ == "__main__":
    main()

"""Tables that compare all methods: cost of a meta-step, and calibration."""

from metagrove.files import Json


def costs(result: Json) -> list[list[str]]:
    """Seconds and peak memory of a meta-step, and both as multiples of MAML's."""
    heading = ["", "CPU s per meta-step", "ratio to MAML", "peak memory, MB", "ratio to MAML"]
    return [heading] + [
        [
            row["method"],
            f"{row['seconds_per_step']:.4f}",
            f"{row['seconds_beside_maml']:.2f}",
            f"{row['peak_memory_mb']:.0f}",
            f"{row['memory_beside_maml']:.2f}",
        ]
        for row in result["rows"]
    ]


def cost_goals(result: Json) -> list[list[str]]:
    """Cost relative to ProtoNet's or MAML's, estimated and measured."""
    return [["", "relative to", "estimated", "measured", "at most 1.5 times the estimate"]] + [
        [
            one["method"],
            one["beside"],
            f"{one['estimate']:.1f}",
            f"{one['measured']:.2f}",
            "yes" if one["within"] else "no",
        ]
        for one in result["goals"]
    ]


def calibration(result: Json) -> list[list[str]]:
    """Error, negative log-likelihood, calibration error and coverage of runs on the same tasks."""
    levels = list(result["rows"][0]["coverage"])
    heading = ["run", "mse", "NLL ± CI", "ECE", *(f"coverage of {level}" for level in levels)]
    return [heading] + [
        [
            row["run"],
            f"{row['value']:.3f}",
            f"{row['nll']:.3f} ± {row['nll_ci95']:.3f}",
            f"{row['ece']:.3f}",
            *(f"{row['coverage'][level]:.3f}" for level in levels),
        ]
        for row in result["rows"]
    ]


def coverage(result: Json) -> list[list[str]]:
    """Coverage of predictive intervals on new tasks, by set of tasks."""
    levels = list(result["rows"][0]["coverage"])
    heading = ["", "test tasks", "mse", *(f"coverage of {100 * float(level):.0f} %" for level in levels)]
    return [heading] + [
        [
            row["what"],
            f"{row['num_tasks']:,}",
            f"{row['value']:.3f}",
            *(f"{row['coverage'][one]:.3f}" for one in levels),
        ]
        for row in result["rows"]
    ]


def evidence_cost(result: Json) -> list[list[str]]:
    """Cost of a step of the fit and of a meta-step of HSML, and seconds to the paper's error."""
    paper = result["to_the_paper"]
    return [
        ["", "measured"],
        ["one step of the fit, 100 tasks, 8 clusters", f"{result['fit_step_ms']:.1f} ms"],
        ["one meta-step of HSML, 25 tasks", f"{result['hsml_step_ms']:.1f} ms"],
        ["ratio", f"{result['fit / hsml']:.2f}"],
        ["from the command to the trained run, compilation included", f"{paper['seconds_to_train']:.0f} s"],
        ["from the command to the test error", f"{paper['seconds_to_figure']:.0f} s"],
        [
            f"test error on 4,000 tasks (the paper has {paper['paper']})",
            f"{paper['mse']:.3f} ± {paper['mse_ci95']:.3f}",
        ],
    ]

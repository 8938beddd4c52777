"""Preprocessing of a command line: options that choose parts of a learner, and the spellings of version 0.1."""

import sys
from collections.abc import Sequence

import tyro

from metagrove.config.config import Config
from metagrove.config.registry import CHOICES
from metagrove.config.settings import setting_names
from metagrove.errors import InputError

__all__ = ["FLAT", "choose_parts", "modernize", "take_option"]

FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands, tyro.conf.SuppressFixed)
"""Options by their own names, without those of the parts that they belong to."""

EVERYWHERE = {
    "--tasks-in-flight": ("--task-chunk-size",),
    "--test-steps": ("--max-eval-inner-steps",),
    "--picture-look": ("--image-features",),
    "--together": ("--group-column",),
    "--beside": ("--compare-with",),
    "--aggregator": ("--embed",),
    "--relative-scales": ("--cluster", "relative"),
    "--gate-sees-shares": ("--gate-inputs", "task", "root", "assignment"),
}
"""Old spellings; what follows an option is kept."""
BY_COMMAND = {
    **{command: {"--tasks": ("--num-tasks",)} for command in ("evaluate", "compare", "report")},
    **{command: {"--steps": ("--inner-steps",)} for command in ("adapt", "predict")},
}
"""Old spellings that belong to one command."""
REMOVED = ("--learn-scales", "--masses", "--growth-parents", "--retire-below")


def take_option(args: Sequence[str], option: str) -> tuple[str | None, list[str]]:
    """The value given as `option VALUE` or `option=VALUE`, if any, and the other arguments."""
    args = list(args)
    for i, arg in enumerate(args):
        if arg == option and i + 1 < len(args):
            return args[i + 1], args[:i] + args[i + 2 :]
        if arg.startswith(f"{option}="):
            return arg.partition("=")[2], args[:i] + args[i + 1 :]
    return None, args


def choose_parts(config: Config, args: Sequence[str]) -> tuple[Config, list[str]]:
    """The config with the parts of HSML that the arguments choose, e.g. `--embed lstm`, and the other arguments."""
    left, chosen = list(args), {}
    for kind in CHOICES:
        if kind in setting_names(config):
            value, left = take_option(left, f"--{kind}")
            chosen |= {} if value is None else {kind: value}
    return config.with_settings(**chosen), left


def modernize(command: str, args: Sequence[str]) -> list[str]:
    """The arguments in their present spelling; a line on standard error tells of each old one.

    Raises:
        InputError: An option was removed.
    """
    renamed = {**EVERYWHERE, **BY_COMMAND.get(command, {})}
    new: list[str] = []
    for arg in before_found_clusters(command, args):
        option, equals, value = arg.partition("=")
        if option in REMOVED or option.replace("--no-", "--") in REMOVED:
            raise InputError(f"{option} was removed in version 0.2, since no result used it (CHANGELOG.md)")
        if option not in renamed:
            new.append(arg)
            continue
        first, *rest = renamed[option]
        print(f"metagrove: {option} is now spelt {' '.join(renamed[option])}", file=sys.stderr)
        new += [f"{first}={value}" if equals else first, *rest]
    return new


def before_found_clusters(command: str, args: Sequence[str]) -> list[str]:
    """`--start-tasks N` of version 0.1, which chose clusters that are found first, as the choice of that part."""
    old = command == "train" and "--start-tasks" in args and "--relative-scales" in args
    if not old:
        return list(args)
    spelt = {"--relative-scales": "--cluster=found", "--embedding-scale": "--projection-scale"}
    return [spelt.get(arg, arg) for arg in args]

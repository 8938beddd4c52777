"""metagrove train: presets, with every setting as an option."""

import dataclasses
import shlex
from pathlib import Path

import tyro

from metagrove.cli.options import FLAT, choose_parts, take_option
from metagrove.config.config import Config
from metagrove.config.encoding import from_json
from metagrove.config.own_data import OWN_DATA
from metagrove.config.presets import PRESETS, preset
from metagrove.config.registry import CHOICES, classes, learners
from metagrove.config.settings import setting_names
from metagrove.devices import configure_cpu, is_first_process, join_processes, usable_cores
from metagrove.errors import STOPPED, InputError
from metagrove.notes import note, set_verbosity
from metagrove.training.folders import read_run
from metagrove.training.step import cut_of


@dataclasses.dataclass(frozen=True)
class Train:
    """Settings of one training."""

    config: Config
    out: Path | None = None
    """Run folder; by default runs/PRESET-LEARNER-sSEED."""
    resume: bool = False
    """Continue from the last checkpoint of the folder."""
    devices: int | None = None
    """Number of devices that share the tasks of a meta-step, at most one per block (--task-blocks); the result does not
    depend on it. By default all available devices; on a CPU, one per core."""
    coordinator: str | None = None
    """Train in several processes, e.g. on several machines: host:port of process 0, the same for all; or auto, under
    Slurm, Open MPI or Kubernetes. The run folder must be on a shared file system."""
    num_processes: int | None = None
    """With --coordinator host:port, the number of processes."""
    process_id: int | None = None
    """With --coordinator host:port, the number of this process, from 0; process 0 writes and prints."""


PLACES = ("--devices", "--coordinator", "--num-processes", "--process-id")
"""Options that determine where a training runs, and do not change its result."""


def main(args: list[str]) -> int:
    """metagrove train PRESET [--learner NAME] [settings]."""
    from metagrove.serve.train import default_folder
    from metagrove.training.loop import train as train_into

    learner, rest = take_option(args, "--learner")
    if not rest or rest[0] in ("-h", "--help"):
        print(train_usage())
        return 0 if rest else 2
    name, *rest = rest
    if name in OWN_DATA:
        from metagrove.cli.own import main as own

        return own(name, rest, learner)
    start, about, made_by = stored_config(Path(name)) if name.endswith(".json") else preset_config(name, learner)
    settings = parse_settings(name, rest, start, about)
    config, folder = settings.config, settings.out or default_folder(Path(name).stem, settings.config)
    command = made_by if made_by and config == start else recorded_command(args)
    start_devices(settings, config)
    done = train_into(config, folder, resume=settings.resume, command=command, devices=settings.devices)
    again = shlex.join(["metagrove", "train", *(arg for arg in args if arg != "--resume"), "--resume"])
    note(f"trained: {folder}" if done else f"interrupted, progress is saved; resume with: {again}")
    return 0 if done else STOPPED


def parse_settings(name: str, args: list[str], start: Config, about: str) -> Train:
    """Parse the options after the name of a preset; those that are not given are as in the config `start`."""
    phases, args = take_option(args, "--phases")
    config, args = choose_parts(start, args)
    settings = tyro.cli(
        Train,
        args=args,
        default=Train(config),
        prog=f"metagrove train {name}",
        description=f"{about}.\n\n{choices_of(config)}",
        config=FLAT,
    )
    if phases is None:
        return settings
    return dataclasses.replace(settings, config=settings.config.with_settings(phases=phases))


def recorded_command(args: list[str]) -> str:
    """Return the command that a run records: without the options that do not change its result."""
    recorded = [arg for arg in args if arg != "--resume"]
    for option in ("--out", *PLACES):
        recorded = take_option(recorded, option)[1]
    return shlex.join(["metagrove", "train", *recorded])


def preset_config(name: str, learner: str | None) -> tuple[Config, str, str]:
    """The config of a preset, its description, and no command."""
    return preset(name, learner), PRESETS[name].about, ""


def stored_config(path: Path) -> tuple[Config, str, str]:
    """The config of a run.json, its description, and the command of that run."""
    stored = read_run(path)
    config = from_json(stored.config, file_format=stored.format)
    return config, f"the settings of {path}", stored.provenance.command


def start_devices(settings: Train, config: Config) -> None:
    """Configure CPU devices and join other processes, before JAX starts; only the first process prints."""
    processes = settings.num_processes or 1
    most = min(cut_of(config.training).blocks, settings.devices or processes * usable_cores())
    is_image = config.source.spec.is_image
    one_thread = most > processes or not is_image
    configure_cpu(devices=-(-most // processes), one_thread=one_thread, few_passes=not is_image)
    if settings.coordinator is None:
        if settings.num_processes is not None or settings.process_id is not None:
            raise InputError("--num-processes and --process-id need --coordinator HOST:PORT")
        return
    join_processes(settings.coordinator, settings.num_processes, settings.process_id)
    if not is_first_process():
        set_verbosity(quiet=True)


def choices_of(config: Config) -> str:
    """Describe the choices of learner, phases and parts of HSML."""
    lines = [f"--learner NAME: {', '.join(learners())}."]
    lines += ['--phases TEXT: phases of the training, e.g. "1/4: embed by reconstruction; net cluster gate".']
    for kind, names in CHOICES.items():
        if kind in setting_names(config):
            lines.append(f"--{kind} NAME: {', '.join(dict.fromkeys([*names, *classes(kind)]))}.")
    return "\n\n".join(lines)


def train_usage() -> str:
    """List the presets, one line each."""
    lines = [f"  {name:<20} {entry.about}" for name, entry in PRESETS.items()]
    return "\n".join(
        [
            "metagrove train PRESET [--learner NAME] [settings]",
            "",
            *lines,
            f"  {'own':<20} your own tables: --tasks FILE_OR_FOLDER --task-column NAME --target NAME",
            f"  {'own-images':<20} a pool of your own images: --pool NAME",
            "",
            "`metagrove train PRESET --help` lists every setting; PRESET may also be the run.json of a run.",
        ]
    )

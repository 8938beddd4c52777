"""Fault injection: processes that die, disks that fill up, and what is left of their work.

    python tests/safety/faults.py --kills 200 --every 1 --out results/faults.json

Every piece of work runs in a forked process that is killed: with SIGKILL at random times, or right before (or halfway
through) the n-th write, fsync, rename or removal; or that operation fails with "no space left". Then the same work is
done again without faults. It must end with the bits of work that was never disturbed, and leave no temporary file.
"""

import argparse
import collections
import contextlib
import errno
import hashlib
import io
import os
import random
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

# Every process compiles the same programs: lightly, and once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

KILL, FULL = "killed", "full disk"
LIMIT = 120.0
"""Seconds after which a process hangs."""


def tiny_config():
    """A training of 10 blocks with a checkpoint after every second one."""
    import metagrove as mg

    learner = mg.MAML(net=mg.MLPNet(hidden=(4,), init_sd=0.3), inner_steps=1, first_order=True)
    training = mg.Training(
        steps=20, meta_batch=2, outer_lr=0.02, log_every=2, validate_every=4, validation_tasks=4, max_eval_inner_steps=1
    )
    return mg.Config(mg.Functions(), learner, training)


def work_train(place):
    from metagrove.training.loop import train

    folder = place / "run"
    train(tiny_config(), folder, resume=(folder / "run.json").exists())


def work_save(place):
    import metagrove as mg

    run = mg.load(place.parent / "good" / "run")
    x = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    run.adapt(x, x).save(place / "fitted")


def work_prepare(place):
    from metagrove.pools.prepare import prepare

    prepare(
        "mine",
        place.parent / "images.zip",
        size=4,
        data=place / "data",
        min_images=2,
        ways=1,
        splits=(1.0, 1.0, 1.0),
        force=True,
    )


def work_report(place):
    import metagrove as mg
    from metagrove.show.report import write_report

    write_report(mg.load(place.parent / "good" / "run"), [], place / "report.html", num_tasks=8, seed=0)


WORK = {"train": work_train, "save": work_save, "prepare": work_prepare, "report": work_report}


def make_images(path):
    """An archive of three classes."""
    from PIL import Image

    with zipfile.ZipFile(path, "w") as archive:
        for number in range(6):
            content = io.BytesIO()
            Image.fromarray(np.full((6, 6, 3), 40 * number, np.uint8)).save(content, "PNG")
            archive.writestr(f"class-{number % 3}/{number}.png", content.getvalue())


class Faults:
    """Counts operations on files; at one of them the process dies, or the disk is full."""

    def __init__(self, at=0, how=KILL):
        self.at, self.how, self.count = at, how, 0

    def tick(self):
        self.count += 1
        if self.count == self.at:
            if self.how == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def before(self, function):
        def counted(*args, **how):
            self.tick()
            return function(*args, **how)

        return counted

    def before_removal(self, rmtree):
        """An error is ignored where the real function would ignore it."""

        def counted(path, ignore_errors=False, **how):
            with contextlib.suppress(*[OSError] * ignore_errors):
                self.tick()
            return rmtree(path, ignore_errors=ignore_errors, **how)

        return counted

    def install(self):
        faults = self

        class Buffered(io.BufferedWriter):
            def write(self, data):
                faults.tick()
                half = len(data) // 2
                super().write(data[:half])
                super().flush()
                faults.tick()
                return half + super().write(data[half:])

        class Raw(io.FileIO):
            def write(self, data):
                faults.tick()
                half = len(data) // 2
                super().write(data[:half])
                faults.tick()
                return half + super().write(data[half:])

        real_open, real_fdopen = io.open, os.fdopen

        def fdopen(descriptor, mode="r", *args, **how):
            if mode == "wb":
                return Buffered(io.FileIO(descriptor, "wb"))
            return real_fdopen(descriptor, mode, *args, **how)

        def opened(file, mode="r", buffering=-1, *args, **how):
            return Raw(file, mode) if buffering == 0 and "a" in mode else real_open(file, mode, buffering, *args, **how)

        os.fdopen, io.open = fdopen, opened
        for module, names in {os: ("fsync", "replace", "unlink"), tempfile: ("mkstemp", "mkdtemp")}.items():
            for name in names:
                setattr(module, name, self.before(getattr(module, name)))
        shutil.rmtree = self.before_removal(shutil.rmtree)


def fork(work, place, *, faults=None, ready=None, log=os.devnull, prepare=None):
    """Do work in a process of its own; its number. The exit code is that of the command line."""
    place.mkdir(parents=True, exist_ok=True)
    if pid := os.fork():
        return pid
    code = 1
    with contextlib.suppress(BaseException):
        null = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(null, 2)
        if prepare is not None:
            prepare()
        if ready is not None:
            tell_when_training(ready)
        if faults is not None:
            faults.install()
        code = attempt(work, place)
        if faults is not None:
            Path(f"{place}.count").write_text(str(faults.count))
    os._exit(code)


def attempt(work, place):
    from metagrove.errors import MetagroveError

    try:
        work(place)
    except MetagroveError as error:
        print(f"refused: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except BaseException as error:
        print(f"TRACEBACK {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def tell_when_training(descriptor):
    from metagrove.training import loop

    real = loop.begin

    def begin(*args, **how):
        os.write(descriptor, b"!")
        return real(*args, **how)

    loop.begin = begin


def wait(pid):
    """The exit code of a process, below 0 for a signal; a process that hangs is an error."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if (found := os.waitpid(pid, os.WNOHANG))[0]:
            return os.waitstatus_to_exitcode(found[1])
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"process {pid} hangs")


def digest(place):
    """What must be the same: all files but the locks and what tells of times."""
    found = {}
    for path in sorted(path for path in place.rglob("*") if path.is_file() and path.name != ".lock"):
        name, content = str(path.relative_to(place)), path.read_bytes()
        timed = path.name in ("best.json", "last.json", "run.json", "report.html")
        found[name] = "" if timed else hashlib.sha256(content).hexdigest()
    return found


class Suite:
    """All faults, and what was found."""

    def __init__(self, root, seed):
        self.root, self.random = root, random.Random(seed)
        self.done, self.lost = collections.Counter(), collections.defaultdict(list)
        make_images(root / "images.zip")
        self.good, self.points = {}, {}
        for name, work in WORK.items():
            place = root / ("good" if name == "train" else f"good-{name}")
            for where in (root / f"warm-{name}", place):  # the first process compiles
                assert wait(fork(work, where, faults=Faults(), log=root / "good.log")) == 0, (
                    root / "good.log"
                ).read_text()
            self.good[name], self.points[name] = digest(place), int(Path(f"{place}.count").read_text())

    def judge(self, name, place, what):
        """Do the work again, undisturbed, and compare."""
        self.done[what] += 1
        log = place.with_suffix(".log")
        code = wait(fork(WORK[name], place, log=log))
        found = digest(place)
        if code or found != self.good[name] or "TRACEBACK" in log.read_text():
            different = {
                key for key in found.keys() | self.good[name].keys() if found.get(key) != self.good[name].get(key)
            }
            self.lost[what].append(f"{place.name}, exit code {code}, different: {sorted(different)}")
            return
        shutil.rmtree(place)

    def tell(self):
        """Show progress on a terminal or in a log."""
        print(f"{sum(self.done.values())} faults, {self.num_lost} lost", file=sys.stderr, flush=True)

    @property
    def num_lost(self):
        return sum(map(len, self.lost.values()))

    def crash_points(self, every):
        """Die, or run out of space, at every n-th operation on files of all work."""
        for name, work in WORK.items():
            for at in range(1, self.points[name] + 1, every):
                for how in (KILL, FULL):
                    place = self.root / f"{name}-{at}-{how.split()[0]}"
                    log = place.with_suffix(".log")
                    log.touch()
                    what = f"{how} at an operation of {name}"
                    code = wait(fork(work, place, faults=Faults(at, how), log=log))
                    if how == FULL and (code not in (0, 3) or "TRACEBACK" in log.read_text()):
                        self.lost[what].append(f"{place.name}: exit code {code}, {log.read_text()[-300:]}")
                    self.judge(name, place, what)
                self.tell()

    def kills(self, count):
        """SIGKILL at random times of a training, several times until it comes to its end."""
        duration = self.duration()
        rounds = 0
        while self.done["SIGKILL"] < count:
            rounds += 1
            place = self.root / f"kills-{rounds}"
            for _ in range(6):
                if self.kill_once(place, duration):
                    self.done["SIGKILL"] += 1
                if self.done["SIGKILL"] >= count:
                    break
            self.judge("train", place, "resumed after SIGKILLs")
            self.tell()

    def duration(self):
        """Seconds of a training, without the start of its process."""
        reading, writing = os.pipe()
        pid = fork(work_train, self.root / "timed", ready=writing)
        os.read(reading, 1)
        began = time.monotonic()
        wait(pid)
        return time.monotonic() - began

    def kill_once(self, place, duration):
        """Whether a training was killed; False if it had ended."""
        reading, writing = os.pipe()
        pid = fork(work_train, place, ready=writing)
        os.close(writing)
        os.read(reading, 1)
        os.close(reading)
        time.sleep(self.random.uniform(0, duration))
        os.kill(pid, signal.SIGKILL)
        return wait(pid) == -signal.SIGKILL


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="number of SIGKILLs")
    parser.add_argument("--every", type=int, default=1, help="die at every n-th operation on files")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the SIGKILLs")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file")
    asked = parser.parse_args()
    import jax

    import metagrove.show.report
    import metagrove.training.loop  # noqa: F401  before any fork; JAX starts its threads later

    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as compiled:
        began = time.monotonic()
        if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
            jax.config.update("jax_compilation_cache_dir", compiled)
        suite = Suite(Path(root), asked.seed)
        suite.kills(asked.kills)
        suite.crash_points(asked.every)
    seconds = time.monotonic() - began
    for what, count in sorted(suite.done.items()):
        print(f"{count:5d}  {what}")
    print(f"{suite.num_lost:5d}  lost, in {seconds:.0f} s")
    print("\n".join([f"{what}: {line}" for what, lines in suite.lost.items() for line in lines][:20]))
    if asked.out:
        write_counts(suite, asked, seconds)
    return bool(suite.num_lost)


def write_counts(suite, asked, seconds):
    """Write what was tried and what was lost, with all that it takes to try it again."""
    from metagrove import files
    from metagrove.training.folders import provenance

    kinds = {**suite.done, **dict.fromkeys(suite.lost.keys() - suite.done.keys(), 0)}
    result = {
        "provenance": provenance(shlex.join(["python", *sys.argv])),
        "settings": {"kills": asked.kills, "every": asked.every, "seed": asked.seed},
        "operations": suite.points,
        "rows": [
            {"what": what, "faults": count, "lost": len(suite.lost.get(what, ()))}
            for what, count in sorted(kinds.items())
        ],
        "seconds": seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }
    files.write_json(asked.out, {"format": files.FORMAT, **result})


if __name__ == "__main__":
    sys.exit(main())

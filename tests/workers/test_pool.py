"""Jobs in processes of their own: killed, repeated, resumed and interrupted; and on a real Dask cluster."""

import os
import signal
import threading
import time

import psutil
import pytest
from distributed import LocalCluster

from metagrove import files
from metagrove.errors import InputError
from metagrove.training.jobs import TrainJob, last_step
from metagrove.workers.cluster import ClusterPool
from metagrove.workers.job import ONE_THREAD, environment
from metagrove.workers.pool import LocalPool, cores_of_workers, open_pool, run_jobs
from metagrove.workers.table import Line

SETTINGS = ["toy-5shot", "--learner", "maml", "--hidden", "8", "--inner-steps", "1", "--max-eval-inner-steps", "2"]
SETTINGS += ["--meta-batch", "2", "--log-every", "20", "--validate-every", "200", "--validation-tasks", "10"]
STEPS = 3000


def jobs(folder):
    return [
        TrainJob(f"seed {seed}", (*SETTINGS, "--steps", str(STEPS), "--seed", str(seed)), folder / f"s{seed}", STEPS)
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    """The weights after the trainings one after the other, by a single worker that is not pinned."""
    folder = tmp_path_factory.mktemp("sequential")
    assert run_jobs(jobs(folder), LocalPool(1))
    return weights(folder)


def weights(folder):
    return [files.read_json(job.folder / "last.json")["sha256"] for job in jobs(folder)]


def process_of(job, parent):
    """The process that trains a job, below another process."""
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if str(job.folder) in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def when_half_done(job, action):
    """Do something to the process that trains a job, in another thread, as soon as the job has a checkpoint."""

    def wait():
        while (process := process_of(job, os.getpid())) is None:  # before the checkpoint: the training then takes 1 s
            time.sleep(0.01)
        while not (job.folder / "last.json").exists():
            time.sleep(0.01)
        action(process)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def test_a_killed_training_is_repeated_and_an_interrupted_one_resumed(tmp_path, sequential):
    first, second = jobs(tmp_path)

    def interrupt(process):
        process.suspend()  # it would soon be done
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)  # until the pool has asked it to end
        process.resume()

    interrupted = when_half_done(first, interrupt)
    assert not run_jobs([first], LocalPool(2))
    interrupted.join()
    assert 0 < last_step(first.folder) < first.total
    pids = []

    def kill(process):
        pids.append((process.pid, process.cpu_affinity()))
        process.kill()

    killed = when_half_done(second, kill)
    codes = []
    assert run_jobs([first, second], LocalPool(2), lambda job, code: codes.append(code) or ())
    killed.join()
    assert len(pids[0][1]) == 1  # its own core
    assert codes == [0, 0]
    assert weights(tmp_path) == sequential


def test_a_dask_worker_that_dies_is_replaced_and_its_training_resumed(tmp_path, sequential):
    first, _ = both = jobs(tmp_path)
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:

        def kill(process):
            above = {parent.pid for parent in process.parents()}
            (worker,) = (one for one in cluster.workers.values() if one.pid in above)
            os.kill(worker.pid, signal.SIGKILL)

        killed = when_half_done(first, kill)
        assert run_jobs(both, ClusterPool(cluster.scheduler_address))
        killed.join()
    assert weights(tmp_path) == sequential
    assert first.log.read_text(encoding="utf-8").count("trained: ") == 1


def test_an_address_without_a_scheduler(monkeypatch):
    with pytest.raises(InputError, match="no Dask scheduler answers at nowhere"):
        open_pool(1, "nowhere")
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        open_pool(0)


def test_each_of_several_workers_has_a_core(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5})
    assert cores_of_workers(1) == [{3, 5}]
    assert cores_of_workers(3) == [{3}, {5}, {3}]
    monkeypatch.setenv("XLA_FLAGS", "--a")
    assert environment()["XLA_FLAGS"] == f"--a {ONE_THREAD}"


def test_a_line_of_the_table(tmp_path, monkeypatch):
    job = TrainJob("HSML", (), tmp_path / "run", 100)
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    line = Line(job, now[0])
    line.read_progress()
    assert line.cells() == ("HSML", "waiting", "", "", "")
    job.folder.mkdir()
    job.log.touch()
    os.utime(job.log, (1000, 1000))
    for step in (20, 40):
        with (job.folder / "metrics.jsonl").open("a") as file:
            file.write(f'{{"step": {step}}}\n')
        line.read_progress()
        now[0] += 10
    assert line.cells() == ("HSML", "running", "40/100", "2/s", "30 s")
    (job.folder / "metrics.jsonl").write_text('{"step": 60}\n{"st')
    assert last_step(job.folder) == 60

"""Many runs: what is missing is run, what is done never again; killed processes and workers cost one try."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import Phast
from phast.fitting.checkpoint import load
from phast.fitting.losses import NextStepLoss
from phast.fitting.training import Settings
from phast.paper import executors, experiments
from phast.paper.executors import Job, cost, count_done, here, missing, processes, records_of
from phast.paper.experiments import Experiment, GradientPreset, read_record
from phast.paper.protocol import Split

KNOWN = Experiment("pendulum-windy", "phast-known", "tiny")
WINDY = system("pendulum-windy")


@pytest.fixture
def tiny(monkeypatch):
    """A preset of two epochs on a handful of trajectories."""
    data = simulate(WINDY, 20, length=110, seed=3)
    split = Split(data.subset(slice(0, 8)), data.subset(slice(8, 12)), data.subset(slice(12, None)))
    monkeypatch.setattr(experiments, "benchmark_split", lambda chosen: split)
    monkeypatch.setitem(
        experiments.PRESETS, "tiny", GradientPreset(Settings(epochs=2, validate_every=1), NextStepLoss())
    )


def untimed(record):
    return {key: value for key, value in record.items() if key != "seconds"}


# --- experiments -----------------------------------------------------------------------------------------------------


def test_an_experiment_names_its_files():
    varied = Experiment("rlc", "phast-partial", noise=0.01, variation=(("bound", None), ("width", 8)), dt=0.05)
    path = varied.record_path(Path("r"), 3)
    assert path == Path("r/paper/rlc,dt=0.05/phast-partial,bound=none,width=8/seed-3-noise-0.01.json")
    assert varied.simulator().dt == 0.05 and Experiment("rlc", "gru").simulator() is system("rlc")
    assert KNOWN.record_path(Path("r"), 0) == Path("r/tiny/pendulum-windy/phast-known/seed-0.json")


def test_a_quick_preset_learns_from_fewer_trajectories(tiny, monkeypatch):
    seen = []
    few = GradientPreset(Settings(epochs=1), NextStepLoss(), trajectories=3)
    monkeypatch.setitem(experiments.PRESETS, "few", few)
    monkeypatch.setattr(
        experiments, "_descend", lambda build, loss, how, train, *_: seen.append(train.q.shape[0]) or iter(())
    )
    with pytest.raises(ValueError):  # nothing was trained
        list(experiments.run(Experiment("pendulum-windy", "phast-known", "few")))
    assert seen == [3]


# --- here ------------------------------------------------------------------------------------------------------------


def test_what_is_missing_is_run_and_what_is_done_is_not(tiny, tmp_path):
    jobs = [Job(KNOWN, (0, 1))]
    assert missing(tmp_path, jobs) == jobs and count_done(tmp_path, jobs) == 0
    (result,) = here(tmp_path, missing(tmp_path, jobs))
    assert result.failure is None and missing(tmp_path, jobs) == [] and count_done(tmp_path, jobs) == 2
    path = KNOWN.record_path(tmp_path, 1)
    stamp = path.stat().st_mtime_ns
    assert missing(tmp_path, [Job(KNOWN, (0, 1, 2))]) == [Job(KNOWN, (2,))]
    assert experiments.run_missing(tmp_path, KNOWN, [0, 1]) == records_of(tmp_path, jobs)
    assert path.stat().st_mtime_ns == stamp
    assert isinstance(load(path.with_suffix(".phast")), Phast)
    assert not list(tmp_path.rglob("*.unfinished"))


def test_a_lost_model_is_made_again_and_its_record_stays(tiny, tmp_path):
    list(here(tmp_path, [Job(KNOWN, (0,))]))
    path = KNOWN.record_path(tmp_path, 0)
    before = path.read_bytes()
    path.with_suffix(".phast").unlink()
    assert missing(tmp_path, [Job(KNOWN, (0,))]) == []
    assert missing(tmp_path, [Job(KNOWN, (0,))], models=True) == [Job(KNOWN, (0,))]
    list(here(tmp_path, [Job(KNOWN, (0,))], models=True))
    assert path.with_suffix(".phast").exists() and path.read_bytes() == before


def test_a_run_killed_between_epochs_goes_on_to_the_same_numbers(tiny, tmp_path, monkeypatch):
    (whole,) = experiments.run_missing(tmp_path / "whole", KNOWN, [0])

    class Killed(BaseException):
        pass

    def kill(seed, history):
        if history.epochs_done == 1:
            raise Killed

    with pytest.raises(Killed):
        experiments.run_missing(tmp_path / "cut", KNOWN, [0], watch=experiments.Watch(on_epoch=kill))
    assert list((tmp_path / "cut").rglob("*.unfinished")) and not list((tmp_path / "cut").rglob("*.json"))
    epochs = []
    watch = experiments.Watch(on_epoch=lambda seed, history: epochs.append(history.epochs_done))
    (resumed,) = experiments.run_missing(tmp_path / "cut", KNOWN, [0], watch=watch)
    assert epochs == [2] and untimed(resumed) == untimed(whole)


def test_a_failure_takes_no_other_job_with_it(tiny, tmp_path, monkeypatch):
    broken = Experiment("pendulum-windy", "phast-known", "tiny", variation=(("colour", "red"),))
    results = list(here(tmp_path, [Job(broken, (0,)), Job(KNOWN, (0,))]))
    assert "colour" in results[0].failure and "\n" not in results[0].failure and results[1].failure is None
    assert count_done(tmp_path, [Job(broken, (0,)), Job(KNOWN, (0,))]) == 1


GOOD = {"system": "rlc", "model": "gru", "preset": "tiny", "seed": 0, "noise": 0.0, "metrics": {"mse": None}}
DAMAGED = {
    "not JSON": "{",
    "a list": "[]",
    "empty": "{}",
    "metrics that are none": GOOD | {"metrics": 3},
    "a metric in words": GOOD | {"metrics": {"mse": "small"}},
    "seconds in words": GOOD | {"seconds": {"train": "long"}},
    "no number of parameters": GOOD | {"parameters": "many"},
    "a variation of lists": GOOD | {"variation": {"bound": [1, 2]}},
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_named(tmp_path, content):
    path = KNOWN.record_path(tmp_path, 0)
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=r"seed-0\.json: not .*record.*delete it to run it again"):
        records_of(tmp_path, [Job(KNOWN, (0,))])
    path.write_text(json.dumps(GOOD))
    assert records_of(tmp_path, [Job(KNOWN, (0,))]) == [GOOD]


def test_what_a_suite_costs():
    other, elsewhere = Experiment("rlc", "phast-known", "tiny"), Experiment("rlc", "gru", "tiny")
    records = [
        {
            "system": e.system,
            "model": e.model,
            "preset": e.preset,
            "noise": 0.0,
            "seconds": {"train": s, "evaluate": 1.0},
        }
        for e, s in ((KNOWN, 1.0), (KNOWN, 3.0), (elsewhere, 100.0))
    ]
    sums = cost(records, [Job(KNOWN, (0, 1, 2)), Job(other, (0,))])
    assert (sums.done, sums.total, sums.spent, sums.whole) == (2, 4, 6.0, 12.0)


# --- processes -------------------------------------------------------------------------------------------------------

QUICK = Experiment("rlc", "phast-known", "quick")


def _answer(folder, job, models, share, sender):
    """What a process would do, with nothing computed: two jobs die, one of them every time."""
    mark = folder / f"tried-{job.experiment.model}"
    tries = int(mark.read_text()) if mark.exists() else 0
    mark.write_text(str(tries + 1))
    if job.experiment.model == "dies" or (job.experiment.model == "dies-once" and tries == 0):
        os.kill(os.getpid(), signal.SIGKILL)
    sender.send("ValueError: no" if job.experiment.model == "fails" else None)


def test_a_process_that_dies_is_tried_again_and_takes_nobody_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(executors, "_work", _answer)
    monkeypatch.setattr(executors, "ATTEMPTS", 2)
    jobs = [Job(Experiment("rlc", model), (0,)) for model in ("dies-once", "dies", "fails")]
    started = []
    results = {r.job.experiment.model: r.failure for r in processes(tmp_path, jobs, 2, on_start=started.append)}
    assert results["dies-once"] is None
    assert "exit code -9" in results["dies"] and results["fails"] == "ValueError: no"
    tries = {model: int((tmp_path / f"tried-{model}").read_text()) for model in results}
    assert tries == {"dies-once": 2, "dies": 2, "fails": 1} and len(started) == 5


def test_the_cores_are_shared_out():
    available = os.sched_getaffinity(0)
    for count in (1, 2, 5):
        shares = executors._shares(count)
        assert len(shares) == count and all(share and share <= available for share in shares)
        assert count < len(available) or set().union(*shares) == available
    assert executors._shares(1) == [frozenset(available)]


def _phast(*words, **kwargs):
    return subprocess.Popen([sys.executable, "-m", "phast", *map(str, words)], text=True, **kwargs)


def test_the_command_killed_at_any_moment_goes_on_where_it_was(tmp_path):
    """A real suite, in processes of its own, killed with SIGKILL once its first record is there."""
    words = ("paper", "suite", "--system", "rlc", "--model", "phast-known,phast-unknown", "--preset", "quick")
    words += ("--seeds", 1, "--results", tmp_path)
    first = QUICK.record_path(tmp_path, 0)
    command = _phast(*words, "--jobs", 2, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 240
        while not first.exists() and command.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        command.kill()
        command.wait()
    assert first.exists()
    before = first.read_bytes(), first.stat().st_mtime_ns
    again = _phast(*words, "--jobs", 1, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    out, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert "2 of 2 runs have a record" in out and "[2/2]" in err
    assert (first.read_bytes(), first.stat().st_mtime_ns) == before
    found = [json.loads(path.read_text()) for path in sorted(tmp_path.rglob("*.json"))]
    assert [(r["model"], r["seed"]) for r in found] == [("phast-known", 0), ("phast-unknown", 0)]
    assert not list(tmp_path.rglob(".*.json.*"))  # nothing half-written


# --- a cluster -------------------------------------------------------------------------------------------------------


def test_a_cluster_of_two_workers_one_of_them_killed(tmp_path):
    """Same records as here, though a worker dies in the middle of its run."""
    distributed = pytest.importorskip("distributed", reason="the extra 'cluster' is not installed")
    jobs = [Job(QUICK, (0, 1))]
    local = distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    killed = []

    def kill_one_when_busy(client):
        while not killed:
            busy = [address for address, tasks in client.processing().items() if tasks]
            pids = {worker.worker_address: worker.pid for worker in local.workers.values()}
            if busy and busy[0] in pids:
                os.kill(pids[busy[0]], signal.SIGKILL)
                killed.append(busy[0])
            time.sleep(0.1)

    with local, distributed.Client(local) as client:
        killer = threading.Thread(target=kill_one_when_busy, args=(client,), daemon=True)
        killer.start()
        finished = list(executors.cluster(tmp_path / "cluster", jobs, client))
    assert killed and sorted(r.failure or "" for r in finished) == [""] * 2
    assert missing(tmp_path / "cluster", jobs) == []
    list(here(tmp_path / "here", [Job(QUICK, (0,))]))
    ours, theirs = (read_record(QUICK.record_path(tmp_path / where, 0)) for where in ("here", "cluster"))
    assert ours.pop("metrics") == pytest.approx(theirs.pop("metrics"), rel=1e-3)  # threads add up in another order
    assert untimed(ours) == untimed(theirs)


def test_no_scheduler_is_one_clear_line():
    pytest.importorskip("distributed")
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        executors.connect("tcp://127.0.0.1:9")

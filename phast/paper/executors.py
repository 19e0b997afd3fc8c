"""Many runs: systems × models × seeds, each a record; they can be stopped and resumed at any moment.

What is missing is cut into :class:`Job` s, an experiment with the seeds of it that have no record yet. Three executors
carry them out and differ in nothing but where: :func:`here` in this process, :func:`processes` in one fresh process per
job, :func:`cluster` on a Dask cluster. All are iterators that yield what each job came to. Records are the only state:
a finished run is never repeated, and a killed one goes on from its last epoch.
"""

import dataclasses
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from phast.errors import InputError
from phast.estimation.forecaster import cores
from phast.paper.experiments import (
    UNWATCHED,
    Experiment,
    Outcome,
    Record,
    Watch,
    is_done,
    key_of,
    precision,
    preset,
    read_record,
    run,
    run_missing,
    store,
)

if TYPE_CHECKING:
    from distributed import Client

ATTEMPTS = 3  # of a job whose process or worker dies under it


class Job(NamedTuple):
    """Seeds of one experiment that are run together: they share a compiled program."""

    experiment: Experiment
    seeds: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.experiment}, seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"


class Finished(NamedTuple):
    """What a job came to: nothing went wrong, or this did."""

    job: Job
    failure: str | None
    seconds: float


OnStart = Callable[[Job], None]


def missing(folder: Path, jobs: Iterable[Job], *, models: bool = False) -> list[Job]:
    """What is left of ``jobs``; with ``models``, runs whose model is gone count as missing too."""
    left = []
    for experiment, seeds in jobs:
        todo = tuple(seed for seed in seeds if not is_done(folder, experiment, seed, models=models))
        if todo:
            left.append(Job(experiment, todo))
    return left


def count_done(folder: Path, jobs: Iterable[Job]) -> int:
    """How many runs of ``jobs`` have left their record."""
    return sum(is_done(folder, experiment, seed) for experiment, seeds in jobs for seed in seeds)


def records_of(folder: Path, jobs: Iterable[Job]) -> list[Record]:
    """The records that are there."""
    paths = [experiment.record_path(folder, seed) for experiment, seeds in jobs for seed in seeds]
    return [read_record(path) for path in paths if path.exists()]


def at_a_time(asked: int | None, jobs: Sequence[Job]) -> int:
    """How many jobs run beside each other: one per core where nothing is said."""
    return min(asked or cores(), len(jobs))


# --- executors -------------------------------------------------------------------------------------------------------


def here(
    folder: Path,
    jobs: Sequence[Job],
    *,
    models: bool = False,
    watch: Watch = UNWATCHED,
    on_start: OnStart = lambda job: None,
) -> Iterator[Finished]:
    """One job after the other in this process."""
    for job in jobs:
        begun = time.perf_counter()
        on_start(job)
        yield Finished(job, _carry_out(folder, job, models, watch), time.perf_counter() - begun)


def processes(
    folder: Path, jobs: Sequence[Job], count: int, *, models: bool = False, on_start: OnStart = lambda job: None
) -> Iterator[Finished]:
    """``count`` jobs at a time, each in a process of its own, with its share of the cores.

    A fresh process gives its memory back and takes nobody with it when it dies; compiled programs come from the cache
    on disk. A job whose process dies is tried again.
    """
    waiting = [(job, 1) for job in reversed(jobs)]
    free = _shares(count)
    running: list[_Running] = []
    context = multiprocessing.get_context("spawn")
    try:
        while waiting or running:
            while waiting and free:
                job, attempt = waiting.pop()
                share = free.pop()
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(folder, job, models, share, sender), daemon=True)
                process.start()
                sender.close()  # ours: the process holds the other, and its death is then an end of file
                running.append(_Running(job, attempt, process, receiver, share, time.perf_counter()))
                on_start(job)
            multiprocessing.connection.wait([each.receiver for each in running])
            for each in [each for each in running if each.receiver.poll()]:
                running.remove(each)
                free.append(each.share)
                died, failure = _answer(each)
                if died and each.attempt < ATTEMPTS:
                    waiting.append((each.job, each.attempt + 1))
                else:
                    yield Finished(each.job, failure, time.perf_counter() - each.begun)
    finally:
        for each in running:
            each.process.kill()


def cluster(
    folder: Path, jobs: Sequence[Job], client: "Client", *, on_start: OnStart = lambda job: None
) -> Iterator[Finished]:
    """Every run a task on a Dask cluster; records and models travel back and are written here.

    A worker that dies costs the runs that it was in the middle of, and the scheduler gives those to another.
    """
    from distributed import as_completed

    single = [Job(experiment, (seed,)) for experiment, seeds in jobs for seed in seeds]
    begun = time.perf_counter()
    futures = {client.submit(_remote, job, retries=ATTEMPTS - 1, pure=False): job for job in single}
    upcoming = iter(single)  # the scheduler takes them in this order, as many at a time as it has threads
    for job in itertools.islice(upcoming, sum(client.nthreads().values())):
        on_start(job)
    for future in as_completed(futures):
        job, failure = futures[future], None
        if future.status == "finished":
            answer = future.result()
            if isinstance(answer, Outcome):
                store(folder, job.experiment, job.seeds[0], answer)
            else:
                failure = answer
        else:
            failure = f"lost on the cluster: {future.exception()}"
        future.release()
        yield Finished(job, failure, time.perf_counter() - begun)
        for job in itertools.islice(upcoming, 1):
            on_start(job)


def connect(address: str) -> "Client":
    """A client of the Dask scheduler at ``address``."""
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--scheduler needs Dask: pip install 'phast-physics[cluster]'") from None
    try:
        return Client(address, timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({type(error).__name__}): is it running?") from None


# --- inside a worker -------------------------------------------------------------------------------------------------

_ONE_AT_A_TIME = threading.Lock()  # precision belongs to the whole process, and the threads of a Dask worker share it


def _carry_out(folder: Path, job: Job, models: bool, watch: Watch = UNWATCHED) -> str | None:
    try:
        with _ONE_AT_A_TIME, precision(preset(job.experiment.preset).needs_float64):
            run_missing(folder, job.experiment, job.seeds, watch=watch, models=models)
    except Exception as error:  # one failed job takes no other with it
        return _reason(error)
    return None


def _remote(job: Job) -> "Outcome | str":
    """On a Dask worker, which may share no disk with us."""
    try:
        with _ONE_AT_A_TIME, precision(preset(job.experiment.preset).needs_float64):
            (outcome,) = run(job.experiment, job.seeds)
            return outcome
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


class _Running(NamedTuple):
    job: Job
    attempt: int
    process: multiprocessing.Process
    receiver: "multiprocessing.connection.Connection"
    share: frozenset[int]
    begun: float


def _shares(count: int) -> list[frozenset[int]]:
    """The cores that each of ``count`` processes may use."""
    if not hasattr(os, "sched_getaffinity"):
        return [frozenset()] * count
    available = sorted(os.sched_getaffinity(0))
    if count >= len(available):
        return [frozenset({available[i % len(available)]}) for i in range(count)]
    return [frozenset(available[i::count]) for i in range(count)]


def _work(folder: Path, job: Job, models: bool, share: frozenset[int], sender) -> None:
    """The whole life of a process: one job, and what went wrong with it."""
    if share:
        os.sched_setaffinity(0, share)
    threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    sender.send(_carry_out(folder, job, models))


def _die_with(parent: int) -> None:
    """A process whose parent was killed stops too: whoever starts again would otherwise do the same work beside it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _answer(each: _Running) -> tuple[bool, str | None]:
    """(whether the process died before it answered, what went wrong)."""
    try:
        return False, each.receiver.recv()
    except EOFError:
        each.process.join()  # for the exit code
        return True, f"its process died (exit code {each.process.exitcode})"
    finally:
        each.process.join()
        each.receiver.close()


# --- what it costs ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Cost:
    """Seconds of the runs that have a record, and of all, that of a missing run estimated from similar runs."""

    done: int
    total: int
    spent: float
    whole: float


def cost(records: Iterable[Record], jobs: Sequence[Job]) -> Cost:
    """What a suite has cost so far, and what all of it would cost in this way: seconds of running, beside each other
    or not. A missing run costs the mean of its experiment's, else of its model's, else of all."""
    spent: dict[Experiment, list[float]] = {job.experiment: [] for job in jobs}
    for record in records:
        if (experiment := key_of(record)) in spent:
            spent[experiment].append(sum(record.get("seconds", {}).values()))
    everything = [x for each in spent.values() for x in each]

    def typical(experiment: Experiment) -> float:
        like = [x for other, each in spent.items() if other.model == experiment.model for x in each]
        known = spent[experiment] or like or everything or [0.0]
        return sum(known) / len(known)

    left = sum((len(job.seeds) - len(spent[job.experiment])) * typical(job.experiment) for job in jobs)
    total = sum(len(job.seeds) for job in jobs)
    used = float(sum(everything))
    return Cost(len(everything), total, used, used + left)

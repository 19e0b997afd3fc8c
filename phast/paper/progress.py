"""Progress of training and of suites, as a terminal shows it."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from phast import paper
from phast.cli.console import _bar, progress, stages

if TYPE_CHECKING:
    from phast.paper.executors import Finished, Job
    from phast.paper.experiments import Watch


@contextmanager
def training(title: str, preset: str, *, seeds: int, epochs: int = 50) -> "Iterator[Watch]":
    """What a preset tells of its progress, shown: epochs in a bar, or stages by name."""
    if paper.experiments.preset(preset).has_epochs:
        with progress(title, seeds=seeds, epochs=epochs) as on_epoch:
            yield paper.experiments.Watch(on_epoch=on_epoch)
    else:
        with stages(title) as on_stage:
            yield paper.experiments.Watch(on_stage=on_stage)


class RunsShown:
    """Runs done, running and left, with an estimate of the time: a bar on a terminal, a line per job elsewhere."""

    def __init__(self, total: int, count_done: Callable[[], int], *, quiet: bool = False):
        self._total, self._count_done, self._before = total, count_done, count_done()
        self._running: dict[Job, None] = {}
        self._begun, self._over, self._quiet = time.monotonic(), threading.Event(), quiet
        self._bar = None if quiet else _bar()

    def __enter__(self) -> "RunsShown":
        if self._bar is not None:
            # Rich reckons from the last half minute, in which no run may end: what is left is said in words instead.
            self._bar.columns = self._bar.columns[:-1]
            self._bar.start()
            self._task = self._bar.add_task("starting", total=self._total, completed=self._before)
            self._refresher = threading.Thread(target=self._refresh, daemon=True)
            self._refresher.start()
        return self

    def __exit__(self, *_) -> None:
        self._over.set()
        if self._bar is not None:
            self._refresher.join()
            self._bar.stop()

    def started(self, job: "Job") -> None:
        self._running[job] = None

    def finished(self, result: "Finished") -> None:
        self._running.pop(result.job, None)
        if self._quiet:
            return
        said = f"{result.job}: {result.failure or 'done'} ({result.seconds:.0f} s)"
        if self._bar is None:
            print(f"[{self._count_done()}/{self._total}] {said}{self._left()}", file=sys.stderr, flush=True)
        else:
            self._bar.console.print(said, markup=False, highlight=False)

    def _left(self) -> str:
        done = self._count_done()
        fresh = done - self._before
        if fresh <= 0 or done >= self._total:
            return ""
        seconds = (time.monotonic() - self._begun) / fresh * (self._total - done)
        return f", about {seconds / 60:.0f} min to go" if seconds > 90 else f", about {seconds:.0f} s to go"

    def _refresh(self) -> None:
        """Records are counted on disk: a job of several seeds leaves one after the other."""
        while not self._over.wait(0.5):
            done = self._count_done()
            said = f"{len(self._running)} running, {self._total - done} left{self._left()}"
            self._bar.update(self._task, completed=done, description=said)

"""What a command shows: tables, progress bars, files of numbers. Imports wait until something is shown."""

import itertools
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phast.files import write_atomically

if TYPE_CHECKING:
    from rich.progress import Progress

    from phast.runs import Watch
    from phast.suite import Finished, Job
    from phast.training import History

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Also write the numbers to FILE.")]
Float64 = Annotated[bool, typer.Option("--float64", help="Compute in double precision.")]


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """A table for a terminal, and the same columns in plain text elsewhere."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, no_wrap=i == 0)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=240)).print(table)


def write_json(path: Path | None, content: Any) -> None:
    if path is not None:
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


@contextmanager
def training(title: str, preset: str, *, seeds: int, epochs: int = 50) -> "Iterator[Watch]":
    """What a preset tells of its progress, shown: epochs in a bar, or stages by name."""
    from phast.runs import Watch
    from phast.runs import preset as preset_named

    if preset_named(preset).has_epochs:
        with progress(title, seeds=seeds, epochs=epochs) as on_epoch:
            yield Watch(on_epoch=on_epoch)
    else:
        with stages(title) as on_stage:
            yield Watch(on_stage=on_stage)


@contextmanager
def stages(title: str) -> "Iterator[Callable[[str], None]]":
    """A spinner that names the stage on a terminal, a plain line per stage elsewhere; both on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda stage: print(f"{title}: {stage}", file=sys.stderr)
        return
    with console.status(title) as status:
        yield lambda stage: status.update(f"{title}: {stage}")


@contextmanager
def progress(title: str, *, seeds: int, epochs: int = 50) -> "Iterator[Callable[[int, History], None]]":
    """A bar on a terminal, a plain line every ten epochs elsewhere; both on standard error."""
    bar = _bar()
    if bar is None:

        def line(seed: int, history: "History") -> None:
            if history.epochs_done % 10 == 0 or history.epochs_done == epochs:
                print(
                    f"{title}, seed {seed}: epoch {history.epochs_done}/{epochs}, loss {history.loss[-1]:.3e}",
                    file=sys.stderr,
                )

        yield line
        return
    with bar:
        task = bar.add_task(title, total=seeds * epochs)

        def advance(seed: int, history: "History") -> None:
            bar.update(task, advance=1, description=f"{title}  loss {history.loss[-1]:.2e}")

        yield advance


@contextmanager
def sections(title: str, *, total: int) -> "Iterator[Callable[[str], None]]":
    """A bar that names what is being done on a terminal, a plain line for each elsewhere; both on standard error."""
    from rich.markup import escape

    bar, places = _bar(), itertools.count()
    if bar is None:
        yield lambda name: print(f"{title} {name} ({next(places) + 1}/{total})", file=sys.stderr)
        return
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda name: bar.update(task, completed=next(places), description=escape(f"{title} {name}"))
        bar.update(task, completed=total)


def _bar() -> "Progress | None":
    """A progress bar on standard error; none where that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console)


class RunsShown:
    """Runs done, running and left, with an estimate of the time: a bar on a terminal, a line per job elsewhere."""

    def __init__(self, total: int, count_done: Callable[[], int]):
        self._total, self._count_done, self._before = total, count_done, count_done()
        self._running: dict[Job, None] = {}
        self._begun, self._bar, self._over = time.monotonic(), _bar(), threading.Event()

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

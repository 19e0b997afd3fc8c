"""What a command shows: tables, progress bars, files of numbers. Imports wait until something is shown."""

import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phast.data.files import FIGURES, TABLES, check_target, check_writable, write_atomically
from phast.errors import InputError

if TYPE_CHECKING:
    import rich.progress

    from phast.fitting.progress import Progress
    from phast.fitting.training import History


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


@dataclasses.dataclass(frozen=True)
class JsonSink:
    """Where numbers go: a file, standard output ("-"), or nowhere."""

    target: str | None

    def __post_init__(self):
        if self.target not in (None, "-"):
            check_writable(Path(self.target).parent)

    def write(self, content: Any) -> None:
        """Write plain data as JSON."""
        if self.target == "-":
            print(json.dumps(content, indent=1))
        elif self.target is not None:
            write_atomically(self.target, (json.dumps(content, indent=1) + "\n").encode())


def sink_beside(output: str | None, json_file: str | None) -> JsonSink:
    """Where numbers go beside a table in ``output``; refused, before anything is computed, if one cannot be written."""
    if output == json_file == "-":
        raise InputError("--output - and --json - both go to standard output: give one of them a file")
    if output not in (None, "-"):
        check_target(output, TABLES)
    return JsonSink(json_file)


def check_figure(plot: Path | None) -> None:
    """Refuse a file that a figure cannot be drawn into, before anything is computed."""
    if plot is not None:
        check_target(plot, FIGURES)


def note(remark: str) -> None:
    """A remark beside the results."""
    print(f"note: {remark}", file=sys.stderr)


@contextmanager
def watching(title: str, *, quiet: bool) -> "Iterator[Callable[[Progress], None]]":
    """A bar with the stage of a fit on a terminal, a plain line for each stage elsewhere; both on standard error."""
    if quiet:
        yield lambda told: None
        return
    bar = _bar()
    if bar is None:

        def line(told: "Progress") -> None:
            if told.loss is None or told.done % 10 == 0 or told.done == told.total:
                print(f"{title}: {told}", file=sys.stderr)

        yield line
        return
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda told: bar.update(task, total=told.total, completed=told.done, description=f"{title}: {told.stage}")


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


def _bar() -> "rich.progress.Progress | None":
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

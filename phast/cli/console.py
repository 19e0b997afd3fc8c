"""What a command shows: tables, progress bars, files of numbers. Imports wait until something is shown."""

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phast.data.files import write_atomically

if TYPE_CHECKING:
    from rich.progress import Progress

    from phast.fitting.gradient import History

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

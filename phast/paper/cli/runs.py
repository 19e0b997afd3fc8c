"""Runs that a command asks for: where their records are, how they are carried out, what failed."""

import dataclasses
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phast import paper
from phast.cli.options import Options
from phast.data.files import check_writable
from phast.paper.progress import RunsShown

if TYPE_CHECKING:
    from phast.paper.executors import Job


@dataclasses.dataclass(frozen=True)
class Runs(Options):
    """Where runs are kept and carried out."""

    results: Annotated[Path, typer.Option(help="Folder of records; missing runs are added to it.")] = Path("results")
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time, each in a process; one per core if left out.")
    ] = None
    scheduler: Annotated[
        str | None, typer.Option(help="A Dask scheduler to send the runs to, e.g. tcp://host:8786.")
    ] = None

    def carry_out(self, wanted: "Sequence[Job]", *, models: bool = False, quiet: bool = False) -> list[str]:
        """Run what is missing, showing how far it is; what went wrong comes back."""
        left = paper.executors.missing(self.results, wanted, models=models)
        if not left:
            return []
        client = None if self.scheduler is None else paper.executors.connect(self.scheduler)
        check_writable(self.results)
        total, done = sum(len(job.seeds) for job in wanted), lambda: paper.executors.count_done(self.results, wanted)
        failures = []
        with RunsShown(total, done, quiet=quiet) as shown:
            try:
                for result in self._finished(left, client, models, shown):
                    shown.finished(result)
                    if result.failure:
                        failures.append(f"{result.job}: {result.failure}")
            except KeyboardInterrupt:
                print("phast: stopped; the same command goes on from here", file=sys.stderr)
                os._exit(130)  # threads in the middle of a computation would be waited for
            finally:
                if client is not None:
                    client.close()
        return failures

    def _finished(self, left: "Sequence[Job]", client, models: bool, shown: RunsShown):
        """What each job came to, from wherever it is run."""
        executors, count = paper.executors, paper.executors.at_a_time(self.jobs, left)
        if client is not None:
            return executors.cluster(self.results, left, client, on_start=shown.started)
        if count == 1:
            return executors.here(self.results, left, models=models, on_start=shown.started)
        return executors.processes(self.results, left, count, models=models, on_start=shown.started)


def report_failures(failures: Sequence[str]) -> None:
    """One line for each on standard error, and exit code 1."""
    for failure in failures:
        print(f"phast: failed: {failure}", file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def listed(text: str | None, default: Iterable[str]) -> list[str]:
    """Names separated by commas; the default where nothing is said."""
    return list(default) if text is None else [part.strip() for part in text.split(",") if part.strip()]

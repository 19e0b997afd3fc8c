"""``phast paper report``."""

from pathlib import Path
from typing import Annotated

import typer

from phast import paper
from phast.cli.console import sections
from phast.data.files import check_target

PANEL = "Tables and figures"
EXAMPLE = "phast paper report --system pendulum-windy -o results.html"


def command(
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    results: Annotated[Path, typer.Option(help="Folder of records, and of the models beside them.")] = Path("results"),
    system_names: Annotated[list[str] | None, typer.Option("--system", help="Only this one; may be repeated.")] = None,
    trajectories: Annotated[int, typer.Option(min=1, max=200, help="Test trajectories to draw per system.")] = 3,
) -> None:
    """Write one HTML page of all results, with every model beside its record."""
    check_target(output, (".html", ".htm"))
    pages = paper.results_page
    with paper.experiments.precision(True):  # holds the models of either precision
        runs = pages.collect(results, system_names or ())
        with sections("drawing", total=len(pages.section_names(runs))) as on_section:
            pages.write_report(runs, output, trajectories=trajectories, on_section=on_section)
    size = output.stat().st_size / 1e6
    print(f"{len(pages.section_names(runs))} systems, {size:.1f} MB: open {output} in a browser")

"""``phast paper models``."""

from typing import Annotated

import typer

import phast
from phast import paper
from phast.cli.console import JsonSink, print_table
from phast.cli.options import Shown
from phast.dynamics.names import check_system

PANEL = "Runs"
EXAMPLE = "phast paper models --on cartpole-windy"


def command(
    shown: Shown,
    on: Annotated[str, typer.Option(help="The system for which parameters are counted.")] = "pendulum-windy",
) -> None:
    """List the models and their trainable parameters."""
    check_system(on)
    counts = paper.models.parameter_counts(phast.system(on))
    rows = [
        {"name": name, "parameters": counts[name], "about": (build.__doc__ or "").strip().splitlines()[0]}
        for name, build in paper.models.MODELS.items()
    ]
    if not shown.silent:
        lines = [[row["name"], f"{row['parameters']:,}", row["about"]] for row in rows]
        print_table(["model", f"parameters ({on})", "what"], lines)
    JsonSink(shown.json_file).write(rows)

"""``phast simulate``."""

import sys
from typing import Annotated

import typer

import phast
from phast.cli.console import sink_beside
from phast.cli.options import Shown
from phast.dynamics.names import check_system

PANEL = "Simulated systems"
EXAMPLE = "phast simulate cartpole-windy -o runs.csv --count 50 --noise 0.01"


def command(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file; '-' for standard output.")
    ],
    shown: Shown,
    count: Annotated[int, typer.Option(min=1, help="Trajectories.")] = 10,
    length: Annotated[int, typer.Option(min=2, help="Samples per trajectory.")] = 200,
    dt: Annotated[float | None, typer.Option(help="Sampling step; the system's own if left out.")] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of noise on the positions.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Draws initial states and noise.")] = 42,
) -> None:
    """Simulate a system to tight tolerance and write its trajectories to a file."""
    sink = sink_beside(output, shown.json_file)
    check_system(name)
    data = phast.simulate(phast.system(name), count, length=length, dt=dt, seed=seed)
    data = data if noise == 0.0 else data.with_noise(noise, seed=seed)
    if output == "-":
        data.to_frame().to_csv(sys.stdout, index=False)
    else:
        phast.save_trajectories(data, output)
        runs = "1 trajectory" if count == 1 else f"{count} trajectories"
        shown.text(f"{runs} of {name}, {length} samples each, dt = {data.dt:g}: {output}")
    sink.write({"system": name, "count": count, "length": length, "dt": data.dt, "noise": noise, "seed": seed})

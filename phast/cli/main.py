"""The command line. Heavy imports wait until a command needs them, so that ``phast --help`` answers at once."""

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phast.cli import own
from phast.cli.console import JsonFile, print_table, write_json
from phast.data.files import cache_directory
from phast.errors import InputError
from phast.paper import cli as research
from phast.paper.progress import training

if TYPE_CHECKING:
    pass

app = typer.Typer(
    name="phast",
    help="Learn port-Hamiltonian models from positions alone: forecast the system, recover its physics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line: bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache_directory() / "xla"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
    warnings.showwarning = _warn
    try:
        app()
    except InputError as error:
        print(f"phast: {error}", file=sys.stderr)
        sys.exit(2)
    except FloatingPointError as error:
        print(f"phast: {error}", file=sys.stderr)
        sys.exit(1)


def _warn(message, category, filename, lineno, file=None, line=None) -> None:
    """A warning is one line too."""
    print(f"phast: warning: {message}", file=sys.stderr)


# --- looking around --------------------------------------------------------------------------------------------------


@app.command()
def systems(json_file: JsonFile = None) -> None:
    """List the systems that can be simulated: domain, coordinates, regime."""
    from phast.dynamics.systems import SYSTEMS

    rows = [
        {
            "name": s.name,
            "domain": s.domain,
            "coordinates": s.manifold.coordinates,
            "regime": s.regime,
            "dt": s.dt,
            "benchmark": s.benchmark,
        }
        for s in SYSTEMS.values()
    ]
    print_table(
        ["system", "domain", "coordinates", "regime", "dt", "benchmark"],
        [
            [
                r["name"],
                r["domain"],
                ", ".join(r["coordinates"]),
                r["regime"],
                f"{r['dt']:g}",
                "yes" if r["benchmark"] else "",
            ]
            for r in rows
        ],
    )
    write_json(json_file, rows)


@app.command()
def models(
    on: Annotated[str, typer.Option(help="The system for which parameters are counted.")] = "pendulum-windy",
    json_file: JsonFile = None,
) -> None:
    """List the models and their trainable parameters."""
    import jax

    from phast.components.parameter import parameter_count
    from phast.dynamics.systems import system
    from phast.paper.models import MODELS

    chosen = system(on)
    rows = [
        {
            "name": name,
            "parameters": parameter_count(build(chosen, key=jax.random.key(0))),
            "about": (build.__doc__ or "").strip().splitlines()[0],
        }
        for name, build in MODELS.items()
    ]
    print_table(
        ["model", f"parameters ({on})", "what"], [[r["name"], f"{r['parameters']:,}", r["about"]] for r in rows]
    )
    write_json(json_file, rows)


@app.command()
def simulate(
    name: Annotated[str, typer.Argument(metavar="SYSTEM")],
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .parquet or .npz file.")],
    count: Annotated[int, typer.Option(min=1, help="Trajectories.")] = 10,
    length: Annotated[int, typer.Option(min=2, help="Samples per trajectory.")] = 200,
    dt: Annotated[float | None, typer.Option(help="Sampling step; the system's own if left out.")] = None,
    noise: Annotated[float, typer.Option(min=0.0, help="Standard deviation of noise on the positions.")] = 0.0,
    seed: int = 42,
) -> None:
    """Simulate a system to tight tolerance and write its trajectories to a file."""
    from phast.data.trajectories import save_trajectories
    from phast.dynamics.simulation import simulate
    from phast.dynamics.systems import system

    data = simulate(system(name), count, length=length, dt=dt, seed=seed)
    save_trajectories(data if noise == 0.0 else data.with_noise(noise, seed=seed), output)
    print(f"{count} trajectories of {name}, {length} samples each, dt = {data.dt:g}: {output}")


# --- the main job ----------------------------------------------------------------------------------------------------


@app.command()
def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the model, the figures and the page.")
    ] = Path("demo"),
    model: Annotated[str, typer.Option(help="Which model to fit.")] = "phast-partial",
    preset: Annotated[str, typer.Option(help="How to train: sharp or paper.")] = "sharp",
    json_file: JsonFile = None,
) -> None:
    """Simulate Windy Pendulum, learn it from positions, forecast 100 steps, compare with the truth, draw figures."""
    import time

    from phast.api import enable_float64
    from phast.paper.demo import CONTEXT, HORIZON, run
    from phast.paper.experiments import preset as preset_named
    from phast.paper.models import model_builder
    from phast.report.text import figure

    model_builder(model)
    if preset_named(preset).needs_float64:
        enable_float64()
    begun = time.perf_counter()
    print("Windy Pendulum: 1000 trajectories of 200 positions; velocities are never shown to the model.")
    with training(f"fitting {model}", preset, seeds=1) as watch:
        result = run(output, model_name=model, preset_name=preset, watch=watch)
    metrics = result["record"]["metrics"]
    print(
        f"\nForecast of {HORIZON} steps open loop from {CONTEXT} positions, 200 test trajectories (mean squared error):"
    )
    print_table(
        ["", "mean", "median"],
        [
            [mode, figure(metrics[f"{key}_h{HORIZON}"]), figure(metrics[f"{key}_h{HORIZON}_median"])]
            for mode, key in (
                ("autoregressive", "rollout_theta_wrap_mse"),
                ("takeover", "rollout_takeover_theta_wrap_mse"),
            )
        ],
    )
    print("\nDamping d(θ), learned beside the truth:")
    print_table(
        ["θ", "true", "learned"], [[f"{a / 3.14159265:.2f} π", f"{t:.3f}", f"{d:.3f}"] for a, t, d in result["damping"]]
    )
    print(
        f"R² of d(θ) over the test set: {metrics['damping_r2']:.5g}   mean absolute error: {metrics['damping_mae']:.2g}"
    )
    print(f"\nModel and figures (rollout, phase, damping, energy): {output}/   [{time.perf_counter() - begun:.0f} s]")
    print(f"All of it on one page: open {output / 'report.html'} in a browser")
    write_json(json_file, [result["record"]])


for command in (own.fit, own.forecast, own.identify):
    app.command()(command)
app.command(name="filter")(own.filter_command)


# --- research --------------------------------------------------------------------------------------------------------

for command in (research.evaluate, research.suite, research.reproduce, research.report, research.bench):
    app.command()(command)

"""``phast demo``: the main job end to end on a simulated pendulum."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

import phast
from phast.cli.console import JsonSink, print_table, watching
from phast.cli.options import Shown
from phast.data.files import check_writable

PANEL = "Simulated systems"
EXAMPLE = "phast demo -o demo/"

SYSTEM, TRAINING, TEST, CONTEXT, HORIZON = "pendulum-windy", 200, 100, 10, 100
_ANGLES = np.array([0.0, 0.25, 0.5, 0.75, 1.0]) * np.pi


def command(
    shown: Shown,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the model, figures and page.")] = Path(
        "demo"
    ),
) -> None:
    """Simulate a pendulum in the wind, learn it from positions, forecast 100 steps, compare with the truth."""
    begun = time.perf_counter()
    check_writable(output)
    sink = JsonSink(shown.json_file)
    shown.text(f"Windy pendulum: {TRAINING} trajectories of 200 positions; velocities are never shown to the model.")
    windy = phast.system(SYSTEM)
    data = phast.simulate(windy, TRAINING + TEST)
    seen, unseen = data.subset(slice(0, TRAINING)), data.subset(slice(TRAINING, None)).steps(0, CONTEXT + HORIZON)
    with watching("fitting", quiet=shown.quiet) as progress:
        fitted = phast.fit(
            seen, phast.Structure(potential="cosine:9.81"), method=phast.SecondOrder(context=CONTEXT), progress=progress
        )
    future = fitted.forecast(HORIZON, unseen, start="start")
    metrics = future.summary()
    angles = np.linspace(-np.pi, np.pi, 201)
    true, learned = (damping_along(angles, windy), fitted.damping(angles)[:, 0])
    r2 = 1.0 - float(np.sum((learned - true) ** 2) / np.sum((true - true.mean()) ** 2))
    shown.text(
        f"\nForecast of {HORIZON} steps open loop from {CONTEXT} positions, {TEST} trajectories not learned from:"
    )
    shown.text(f"mean squared error {metrics['mse']:.2e}, median over trajectories {metrics['mse_median']:.2e}")
    if not shown.silent:
        print("\nDamping d(θ), learned beside the truth:")
        rows = zip(_ANGLES, damping_along(_ANGLES, windy), fitted.damping(_ANGLES)[:, 0], strict=True)
        print_table(["θ", "true", "learned"], [[f"{a / np.pi:.2f} π", f"{t:.4f}", f"{d:.4f}"] for a, t, d in rows])
        print(f"R² of d(θ) over the circle: {r2:.5g}")
    fitted.save(output / "model.phast")
    order = np.argsort(np.mean(future.seen.off()["model"] ** 2, axis=(1, 2)))
    phast.save_figure(future.plot(int(order[len(order) // 2])), output / "rollout.png")
    phast.save_figure(phast.damping_field(angles, true, {"learned": learned}, name="theta"), output / "damping.png")
    fitted.report(output / "report.html", phast.Recording.of(unseen))
    shown.text(f"\nModel and figures: {output}/   [{time.perf_counter() - begun:.0f} s]")
    shown.text(f"All of it on one page: open {output / 'report.html'} in a browser")
    sink.write({"metrics": metrics, "damping_r2": r2, "model": fitted.summary()})


def damping_along(angles: np.ndarray, system: "phast.System") -> np.ndarray:
    """The true damping of one coordinate."""
    rest = np.zeros(1)
    return np.array(
        [float(system.port_hamiltonian.damping.operator(np.array([a]), rest).diagonal_part()[0]) for a in angles]
    )

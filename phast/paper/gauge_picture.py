"""One motion from several (M, V, D): what a picture shows of gauge freedom, learned by ``phast.fit``.

A pendulum with a moment of inertia of 2 in the wind is learned from noisy positions under four assumptions. All four
forecast the same motion; the wrong mass gives a wrong force and a wrong damping, each by the same factor.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from phast.api.fitting import fit
from phast.components.damping import WindyDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine, gradient
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import System, system
from phast.estimation.forecaster import roll_out, takeover
from phast.fitting.structure import Structure
from phast.paper.metrics import damping_diagonal
from phast.report.plots import COLOURS, TRUTH, panels
from phast.report.text import figure

INERTIA, GRAVITY = 2.0, 9.81
CONTEXT, HORIZON, NOISE = 10, 150, 1e-3
_TRUE_POTENTIAL = Cosine(INERTIA * GRAVITY)
ASSUMED = {
    "M taken to be 1": Structure(regime="unknown"),
    "M taken to be 4": Structure(mass=4.0),
    "anchor: M given": Structure(mass=INERTIA),
    "anchor: V given (M found)": Structure(potential=_TRUE_POTENTIAL, mass="learned", damping="free", regime="known"),
}


class PicturedModel(NamedTuple):
    """A model's mass, its forecast from the end of the context, and its force and damping along the angle."""

    mass: float
    path: Float[np.ndarray, " H"]
    force: Float[np.ndarray, " A"]
    damping: Float[np.ndarray, " A"]


def heavy_pendulum() -> System:
    """The windy pendulum with everything doubled: I = 2, V = 2g(1 - cos θ), D = 0.6 + |sin θ|."""
    truth = PortHamiltonian(_TRUE_POTENTIAL, ConstantMass(INERTIA), WindyDamping(0.6, 1.0, (0,)))
    return dataclasses.replace(system("pendulum-windy"), name="heavy-pendulum", dynamics=truth)


def same_motion(angles: Float[np.ndarray, " A"], on_stage: Callable[[str], None]) -> dict[str, PicturedModel]:
    """The truth, and what is learned under each assumption from the same noisy positions."""
    pendulum = heavy_pendulum()
    data = simulate(pendulum, 9, length=CONTEXT + HORIZON, seed=7)
    seen, test = data.subset(slice(0, 8)).with_noise(NOISE, seed=0), data.subset([8])
    context = jnp.asarray(test.q[:, :CONTEXT])
    found = {"truth": _shown(pendulum.port_hamiltonian, test.q[0, CONTEXT:, 0], angles)}
    for name, structure in ASSUMED.items():
        on_stage(name)
        model = fit(seen, structure).model
        path = np.asarray(roll_out(takeover, model, context, HORIZON))[0, :, 0]
        found[name] = _shown(model.learned_system(), path, angles)
    return found


def _shown(physics: PortHamiltonian, path: Float[np.ndarray, " H"], angles: Float[np.ndarray, " A"]) -> PicturedModel:
    q = jnp.asarray(angles)[:, None]
    force = jax.vmap(lambda x: gradient(physics.potential, x))(q)[:, 0]
    damping = jax.vmap(lambda x: damping_diagonal(physics, x))(q)[:, 0]
    mass = float(physics.mass.operator(q[0]).diagonal_part()[0])
    return PicturedModel(mass, path, np.asarray(force), np.asarray(damping))


def comparison(found: dict[str, PicturedModel]) -> tuple[list[str], list[list[str]]]:
    """Heading and rows: the mass, how far q(t) is off at most, and the median ratio of D to the true one."""
    truth = found["truth"]
    rows = [
        [name, figure(s.mass), figure(_farthest(s.path, truth.path)), figure(_ratio(s.damping, truth.damping))]
        for name, s in found.items()
    ]
    return ["model", "M", "q(t) off by at most", "D / true D"], rows


def _farthest(path: np.ndarray, truth: np.ndarray) -> float:
    return float(np.max(np.abs(path - truth)))


def _ratio(damping: np.ndarray, truth: np.ndarray) -> float:
    return float(np.median(damping / truth))


def gauge_figure(found: dict[str, PicturedModel], angles: Float[np.ndarray, " A"]) -> Figure:
    """q(t), V'(θ) and D(θ) side by side: one motion, several fields, and which anchor gives the true ones."""
    drawn, axes = panels(1, 3, figsize=(12, 3.6), width_ratios=(1.4, 1, 1))
    for i, (name, shown) in enumerate(found.items()):
        look = {"color": COLOURS[i - 1], "linestyle": (2.0 * i, (4.0, 4.0)), "label": name}
        style = TRUTH | {"label": f"truth (M = {shown.mass:g})"} if name == "truth" else look
        t = heavy_pendulum().dt * np.arange(CONTEXT, CONTEXT + len(shown.path))
        curves = ((t, shown.path), (angles, shown.force), (angles, shown.damping))
        for ax, (x, y) in zip(axes[0], curves, strict=True):
            ax.plot(x, y, **style)
    axes[0, 0].set(xlabel="time [s]", ylabel="θ [rad]", title="One motion q(t)")
    axes[0, 1].set(xlabel="θ [rad]", ylabel="[N m]", title="three forces V'(θ)")
    axes[0, 2].set(xlabel="θ [rad]", ylabel="[N m s]", title="three dampings D(θ)", ylim=(0.0, None))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    drawn.tight_layout(rect=(0, 0.07, 1, 1))
    drawn.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize="small", frameon=False)
    return drawn

"""What a page draws of a model: its forecasts of a few test trajectories, their energy, the damping that it learned.

Truth and models are treated alike, so that what differs on the page differs in the motion: velocities are central
differences of the positions drawn, energies the simulator's own H of both, angles run on without jumps. (The one-sided
differences of the paper's energy metric would let the true energy of a frictionless pendulum swing by a seventh.)
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.analysis.identifiability import along
from phast.components.parameter import in_working_precision
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System
from phast.estimation.forecaster import AbstractForecaster, AbstractIdentifiable, autoregressive, roll_out
from phast.estimation.smoother import unwrapped_path
from phast.paper.metrics import damping_diagonal
from phast.report.page import rounded

CONTEXT, HORIZON = 10, 100
_POINTS = 81

Curves = dict[str, Any]


class Scene(NamedTuple):
    """What the models of one system are shown on: positions, the first ``count`` of which are drawn, and a line of
    configurations along each coordinate."""

    q: Float[np.ndarray, "N T n"]
    count: int
    lines: Float[np.ndarray, "n points n"]
    dt: float
    manifold: Manifold
    truth: PortHamiltonian | None


def scene(system: System, test: Trajectories, count: int) -> Scene:
    """The first ``count`` test trajectories are drawn, without selection."""
    lines = np.stack([along(test, i, _POINTS) for i in range(test.manifold.size)])
    truth = system.dynamics if isinstance(system.dynamics, PortHamiltonian) else None
    return Scene(test.q[:, : CONTEXT + HORIZON], min(count, len(test)), lines, test.dt, test.manifold, truth)


def true_curves(shown: Scene) -> Curves:
    """The truth, from the first sample of the context."""
    return _curves(shown, _continued(shown, jnp.asarray(shown.q[: shown.count], dtype=float)), shown.truth)


def model_curves(shown: Scene, model: AbstractForecaster) -> Curves:
    """Forecasts open loop, from the last sample of the context on, so that the lines meet.

    All test trajectories are forecast, as when the model was judged: that program is compiled already, or cached, and
    compiling is what takes the time.
    """
    q = jnp.asarray(shown.q, dtype=float)
    future = roll_out(autoregressive, in_working_precision(model), q[:, :CONTEXT], HORIZON)
    whole = _continued(shown, jnp.concatenate([q[:, :CONTEXT], future], axis=1)[: shown.count])
    return _curves(
        shown, whole[:, CONTEXT - 1 :], model.learned_system() if isinstance(model, AbstractIdentifiable) else None
    )


def _curves(shown: Scene, path: Float[Array, "N T n"], physics: PortHamiltonian | None) -> Curves:
    velocity = np.gradient(np.asarray(path), shown.dt, axis=1, edge_order=2)
    return {
        "q": rounded(np.moveaxis(np.asarray(path), 1, 2)),
        "v": rounded(np.moveaxis(velocity, 1, 2)),
        "energy": None if shown.truth is None else rounded(_energy(shown.truth, path, jnp.asarray(velocity))),
        "damping": None if physics is None else rounded(_damping_along(physics, shown.lines)),
    }


@eqx.filter_jit
def _energy(truth: PortHamiltonian, q: Float[Array, "N T n"], v: Float[Array, "N T n"]) -> Float[Array, "N T"]:
    return jax.vmap(jax.vmap(lambda x, w: truth.potential(x) + 0.5 * jnp.dot(w, truth.momentum(x, w))))(q, v)


def _damping_along(physics: PortHamiltonian, lines: Float[np.ndarray, "n points n"]) -> Float[np.ndarray, "n n points"]:
    """[i][j]: the j-th diagonal entry of D along the i-th coordinate."""
    diagonals = eqx.filter_jit(jax.vmap(jax.vmap(lambda q: damping_diagonal(physics, q))))
    return np.moveaxis(np.asarray(diagonals(jnp.asarray(lines, dtype=float))), 1, 2)


def _continued(shown: Scene, paths: Float[Array, "N T n"]) -> Float[Array, "N T n"]:
    """The same paths, their angles without jumps."""
    return jax.vmap(lambda path: unwrapped_path(shown.manifold, path))(paths)

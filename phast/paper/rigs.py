"""Simulated rigs to be learned from positions and then controlled: a cart with a pole, and an arm of two links.

The true system moves between samples, to tight tolerance; a controller sees its positions with noise, and nothing else.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.api.fitted import Fitted
from phast.api.fitting import fit
from phast.components.damping import Friction
from phast.components.mass import CartPoleMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, gradient
from phast.control.plant import Plant
from phast.control.predictive import PredictiveControl, Range, Weights
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import robot_arm
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.progress import Callback
from phast.fitting.structure import Structure

_DT, _SECONDS, NOISE = 0.02, 60.0, 0.002
_LOWEST = 0.1  # Hz, of the exciting input


class Rig(NamedTuple):
    """A true system, how it is excited for a recording, what is looked for in it, and what it is to do.

    ``excitation`` is the largest magnitude of each exciting input, and ``highest`` its highest frequency in Hz. A start
    near the target is within ``near`` of it and moves at up to ``speed``.
    """

    title: str
    truth: PortHamiltonian
    manifold: Manifold
    limits: tuple[float, ...]
    excitation: tuple[float, ...]
    highest: float
    structure: Callable[[], Structure]
    target: tuple[float, ...]
    near: tuple[float, ...]
    weights: Weights
    within: tuple[Range, ...] | None = None
    speed: float = 0.5

    @property
    def plant(self) -> Plant:
        return Plant(self.truth, self.manifold, _DT, self.limits)

    def control(self, model: ModelAware, horizon: int) -> PredictiveControl:
        return PredictiveControl.create(
            model, self.target, limits=self.limits, weights=self.weights, horizon=horizon, within=self.within
        )


def _cart_pole_structure() -> Structure:
    mass = CartPoleMass(Positive.uninformed(), Positive.uninformed(), Positive.uninformed())
    return Structure(potential="cosine", mass=mass, damping="viscous", port="1;0", regime="known")


def _arm_structure() -> Structure:
    return Structure(potential="chain", mass="joints", damping="viscous", port="identity", regime="known")


_ARM = robot_arm().port_hamiltonian
RIGS = {
    "cart-pole": Rig(  # 1 kg, and 0.3 kg at 0.5 m; pushed by 8 N when recorded and 10 N when controlled
        "Cart-pole",
        PortHamiltonian(
            Cosine((0.0, 0.3 * 9.81 * 0.5)), CartPoleMass(1.0, 0.3, 0.5), Friction((0.5, 0.01)), ((1.0,), (0.0,))
        ),
        Manifold.parse("x", "theta:angle"),
        limits=(10.0,),
        excitation=(8.0,),
        highest=2.0,
        structure=_cart_pole_structure,
        target=(0.0, math.pi),
        near=(0.5, 0.3),
        weights=Weights(position=1.0, velocity=0.1, effort=0.01),
        within=((-1.0, 1.0), None),
    ),
    "two-link-arm": Rig(  # its gravity at the horizontal is 9.8 Nm, more than its first motor has
        "Two-link arm",
        PortHamiltonian(_ARM.potential, _ARM.mass, Friction(0.05)),
        Manifold.parse("theta1:angle", "theta2:angle"),
        limits=(8.0, 3.0),
        excitation=(2.0, 1.0),
        highest=1.5,
        structure=_arm_structure,
        target=(math.pi, 0.0),
        near=(0.3, 0.3),
        weights=Weights(position=1.0, velocity=0.1, effort=0.01),
    ),
}


# --- recording and learning ------------------------------------------------------------------------------------------


def multisine(rig: Rig, rng: np.random.Generator, count: int, lines: int = 20) -> Float[np.ndarray, "T inputs"]:
    """Sines of equal amplitude and random phase over a band, their frequencies another for each input."""
    t, spacing = _DT * np.arange(count)[:, None], (rig.highest - _LOWEST) / lines
    columns = []
    for i, most in enumerate(rig.excitation):
        frequencies = _LOWEST + spacing * (np.arange(lines) + i / len(rig.excitation))
        u = np.sin(2 * np.pi * frequencies * t + rng.uniform(0.0, 2 * np.pi, lines)).sum(axis=1)
        columns.append(most * u / np.abs(u).max())
    return np.stack(columns, axis=1)


def recorded(rig: Rig, seed: int, *, seconds: float = _SECONDS) -> Trajectories:
    """The rig from rest, hanging, under an exciting input: its positions with noise, and the input."""
    rng = np.random.default_rng(seed)
    u = multisine(rig, rng, round(seconds / _DT))
    q = np.asarray(_driven(rig.plant, jnp.asarray(u)))
    seen = rig.manifold.wrap(q + NOISE * rng.standard_normal(q.shape))
    return Trajectories(np.asarray(seen)[None], _DT, rig.manifold, u=u[None])


@eqx.filter_jit
def _driven(plant: Plant, u: Float[Array, "T inputs"]) -> Float[Array, "T n"]:
    rest = jnp.zeros(plant.manifold.size)
    return jax.lax.scan(lambda state, u: (plant(*state, u), state[0]), (rest, rest), u)[1]


def learned(rig: Rig, seed: int, *, seconds: float = _SECONDS, progress: Callback | None = None) -> Fitted:
    """A model of the rig from a recording."""
    return fit(recorded(rig, seed, seconds=seconds), rig.structure(), seed=seed, progress=progress)


def errors(rig: Rig, model: ModelAware, seed: int, count: int = 200) -> dict[str, float]:
    """How far M, ∇V and D are off over random configurations at rest, as shares of their size."""
    n = rig.manifold.size
    q = jnp.asarray(np.random.default_rng(seed).uniform(-np.pi, np.pi, (count, n)))

    def fields(system):
        def at(x):
            damping = system.damping.operator(x, jnp.zeros(n)).dense()
            return {"mass": system.mass.operator(x).dense(), "force": gradient(system.potential, x), "damping": damping}

        return jax.vmap(at)(q)

    found, truth = fields(model.core.system), fields(rig.truth)
    return {name: float(jnp.linalg.norm(found[name] - truth[name]) / jnp.linalg.norm(truth[name])) for name in truth}

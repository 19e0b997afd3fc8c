"""The ``sharp`` way to learn: match accelerations, refine by shooting, forecast with an observer that knows the model.

Where the paper trains networks by next-step prediction through a guessed velocity, this fits few coefficients to second
order (:mod:`phast.identify`) and estimates states through the model (:mod:`phast.horizon`). Fields that the paper makes
neural are splines here: as free, but linear in local coefficients, so that a least-squares fit finds the best of them
and says how sure it is. It computes in float64.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from phast.components.damping import AbstractDamping, SplineDamping, WindyDamping
from phast.components.mass import AbstractMass, ConstantMass
from phast.components.potential import AbstractPotential, SplinePotential, Sum
from phast.components.spline import Grid
from phast.datasets import Trajectories
from phast.errors import InputError
from phast.forecaster import Core
from phast.hamiltonian import PortHamiltonian
from phast.horizon import ModelAware
from phast.identify import Identified, Samples, choose_smoother, differentiate, match, noise_scale, shoot
from phast.integrators import ExactDamping, RungeKutta, Timestep, Transition, leapfrog
from phast.models import forgotten, parameter_count, row_of, true_damping
from phast.systems import System

MATCH_SAMPLES = 40_000
SHOOT_SAMPLES = 60_000
SHOOT_COEFFICIENTS = 300  # beyond these the accelerations alone decide: shooting would take minutes
WINDOW = 20
LEAPFROGS, RUNGE_KUTTAS = 8, 3  # substeps per sample of either core
_NODES = {1: (32, 64), 2: (14, 10)}  # of potential and damping, per coordinate


def partial_system(
    data: Trajectories, template: AbstractPotential, mass: AbstractMass, damping: AbstractDamping | None = None
) -> PortHamiltonian:
    """PARTIAL: the template plus a spline residual; a spline D(q) unless a damping law is given."""
    potential, field = _splines(data)
    return PortHamiltonian(Sum(template, potential), mass, field if damping is None else damping)


def unknown_system(data: Trajectories, mass: AbstractMass = ConstantMass(1.0)) -> PortHamiltonian:  # noqa: B008
    """UNKNOWN: V and D are splines. M is the anchor of the scale that V, M and D share, and not learned."""
    potential, field = _splines(data)
    return PortHamiltonian(potential, mass, field)


def _splines(data: Trajectories) -> tuple[SplinePotential, SplineDamping]:
    n = data.manifold.size
    if n not in _NODES:
        raise InputError(f"free fields are fitted for up to {max(_NODES)} coordinates, not {n}: use --preset paper")
    q = jnp.asarray(data.q.reshape(-1, n))
    coarse, fine = _NODES[n]
    potential = SplinePotential.flat(Grid.over(data.manifold, q, coarse))
    return potential, SplineDamping.uninformed(Grid.over(data.manifold, q, fine))


class Sharpened(NamedTuple):
    """A forecaster and how it was identified; ``noise`` is the noise on the positions that was found or given."""

    model: ModelAware
    identified: Identified | None
    noise: float


def sharpen(
    system: PortHamiltonian, data: Trajectories, *, seed: int = 0, noise: float | None = None, context: int = 10
) -> Sharpened:
    """Fit every learned coefficient of ``system`` to positions, in two stages; ``seed`` draws the samples used."""
    if not jax.config.jax_enable_x64:
        raise InputError("the sharp preset computes in float64: call phast.enable_float64() first")
    rng = np.random.default_rng(seed)
    noise = noise_scale(data) if noise is None else noise
    smoother = choose_smoother(data, noise)
    samples = differentiate(data, smoother)
    chosen = rng.permutation(len(samples.q))[:MATCH_SAMPLES]
    samples = Samples(*(x[chosen] for x in samples))
    passed = noise * float(np.linalg.norm(smoother.kernels(data.dt)[2]))
    system = match(system, samples, deviation=max(passed, 1e-3 * float(np.std(samples.a)), 1e-12))

    core, substeps = (leapfrog(), LEAPFROGS) if system.separable else (RungeKutta(), RUNGE_KUTTAS)
    transition = Transition(core, ExactDamping(), Timestep(data.dt, substeps))
    identified = None
    if parameter_count(system) <= SHOOT_COEFFICIENTS:
        length = min(WINDOW, data.length)
        windows = data.windows(length, length).q
        windows = windows[rng.permutation(len(windows))[: max(SHOOT_SAMPLES // length, 1)]]
        deviation = max(noise, 1e-6 * float(np.std(windows)), 1e-12)
        identified = shoot(Core(system, transition), data.manifold, windows, dt=data.dt, noise=deviation)
        system = identified.system
    model = ModelAware(Core(system, transition), data.manifold, data.dt, window=context, noise=noise)
    return Sharpened(model, identified, noise)


# --- the paper's systems ---------------------------------------------------------------------------------------------


def _known(system: System, data: Trajectories) -> PortHamiltonian:
    """The template's scalars and every damping coefficient, with the true M(q)."""
    return PortHamiltonian(row_of(system).template(system), _mass(system), forgotten(true_damping(system)))


def _partial(system: System, data: Trajectories) -> PortHamiltonian:
    """A spline residual beside the template; a free D(q) on windy systems, the law's coefficients elsewhere."""
    law = true_damping(system)
    free = isinstance(law, WindyDamping)
    return partial_system(data, row_of(system).template(system), _mass(system), None if free else forgotten(law))


def _unknown(system: System, data: Trajectories) -> PortHamiltonian:
    return unknown_system(data, _mass(system))


def _mass(system: System) -> AbstractMass:
    """The system's own M(q), or the one to learn where that is the question."""
    mass = row_of(system).mass(system)
    if parameter_count(mass) or not isinstance(system.dynamics, PortHamiltonian):
        return mass
    return system.dynamics.mass


COMPOSITIONS: dict[str, Callable[[System, Trajectories], PortHamiltonian]] = {
    "phast-known": _known,
    "phast-partial": _partial,
    "phast-unknown": _unknown,
}


def composition(model_name: str) -> Callable[[System, Trajectories], PortHamiltonian]:
    """How the sharp preset composes the model of this name."""
    if model_name not in COMPOSITIONS:
        raise InputError(f"the sharp preset fits {', '.join(COMPOSITIONS)}, not '{model_name}'")
    return COMPOSITIONS[model_name]

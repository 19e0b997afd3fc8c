"""The ``sharp`` way to learn: match accelerations, refine by shooting, forecast with an observer that knows the model.

Where the paper trains networks by next-step prediction through a guessed velocity, this fits few coefficients to
second order (:mod:`phast.fitting.shooting`) and estimates states through the model
(:mod:`phast.estimation.moving_horizon`). Fields that the paper makes neural are splines here: as free, but linear in
local coefficients, so that a least-squares fit finds the best of them and says how sure it is. It computes in float64.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import (
    depends_on_velocity,
)
from phast.components.parameter import parameter_count
from phast.data.trajectories import Trajectories, refuse_turns
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.dynamics.integrators import (
    AbstractTransition,
    DiscreteGradient,
    ExactDamping,
    ImplicitMidpoint,
    RungeKutta,
    Timestep,
    Transition,
    leapfrog,
)
from phast.errors import InputError
from phast.estimation.derivatives import choose_smoother, differentiate, evenly, noise_scale
from phast.estimation.forecaster import Core
from phast.estimation.inputs import held_over
from phast.estimation.moving_horizon import ModelAware, Noise, smoothed_ends
from phast.fitting.matching import match
from phast.fitting.shooting import shoot

MATCH_SAMPLES = 20_000
SHOOT_SAMPLES = 200_000  # of one coordinate; fewer of several, where each costs more
CLEAN = 1e-6  # noise, relative to the motion, below which there is none
WINDOW, ITERATIONS = 40, 12  # fewer of several coordinates
SUBSTEPS = (1, 2, 4)  # of Runge–Kutta per sample, from which the data choose


# --- what is to be found ---------------------------------------------------------------------------------------------


# --- the fit ---------------------------------------------------------------------------------------------------------


def sharpen(
    system: AbstractEnergetic,
    data: Trajectories,
    *,
    seed: int = 0,
    noise: Noise | None = None,
    context: int = 10,
    window: int = WINDOW,
    passive: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> ModelAware:
    """Fit every learned coefficient of ``system`` to positions, in two stages; ``seed`` draws the samples used.

    ``noise`` on the positions is found where it is not given. The forecaster takes its states from ``context`` samples
    and steps as :func:`sharpest` finds best, or, with ``passive``, by :func:`passive_transition`.
    """
    require_float64()
    check_motion(data)
    if data.q.size < 2 * parameter_count(system):
        raise InputError(
            f"{data.q.size} positions are too few for {parameter_count(system)} coefficients: record more, or give a "
            "template and a damping law (regime 'known')"
        )
    rng, n = np.random.default_rng(seed), data.manifold.size
    even = evenly(data)
    noise = noise_scale(data) if noise is None else np.broadcast_to(np.asarray(noise, dtype=float), (n,))
    on_stage("matching accelerations")
    smoother = choose_smoother(even, noise)
    samples = differentiate(even, smoother)
    chosen = rng.permutation(len(samples.q))[:MATCH_SAMPLES]
    samples = jax.tree.map(lambda x: x[chosen], samples)
    samples = samples._replace(bias=_SHARPER * samples.bias)
    passed = noise * float(np.linalg.norm(smoother.kernels(even.dt)[2]))
    system = match(system, samples, deviation=np.maximum(passed, 1e-3 * np.std(samples.a, axis=0) + _TINY))

    on_stage("choosing the time step")
    length = min(window, data.length)
    windows = data.windows(length, length)
    enough = max(SHOOT_SAMPLES // (length * n**3), parameter_count(system), 50)  # a place in space for each coefficient
    windows = windows.subset(rng.permutation(len(windows))[:enough])
    least = CLEAN * np.std(windows.q, axis=(0, 1)) + _TINY
    transition = sharpest(system, windows.subset(slice(0, 100)), tolerance=np.maximum(0.1 * noise, least))
    on_stage("shooting over windows")
    found = shoot(
        Core(system, transition),
        windows,
        noise=tuple(map(float, np.maximum(noise, least))),
        smooth=bool((noise > least).any()),
        iterations=max(ITERATIONS // n, 4),
    )
    core = Core(found.system, transition)
    model = ModelAware(core, data.manifold, data.dt, context, tuple(map(float, noise)), found.evidence)
    return made_passive(model) if passive else model


def made_passive(model: ModelAware) -> ModelAware:
    """The model with steps along which energy cannot rise."""
    if not isinstance(model.core.system, PortHamiltonian):
        raise InputError("steps along which energy cannot rise are those of mechanical systems: leave passive out")
    return eqx.tree_at(lambda m: m.core.transition, model, passive_transition(model.dt))


_TINY = np.finfo(float).tiny
_SHARPER = 0.03  # of its bias is what an acceleration is off by


def require_float64() -> None:
    """Refuse to fit to second order in single precision."""
    if not jax.config.jax_enable_x64:
        raise InputError("the sharp preset computes in float64: call phast.enable_float64() first")


def natural_window(data: Trajectories) -> int:
    """Samples in half a swing, within limits: long enough to feel friction, short enough to be explained."""
    even = evenly(data)
    samples = differentiate(even, choose_smoother(even, noise_scale(even)))
    slowness = np.std(samples.q, axis=0) / np.maximum(np.std(samples.v, axis=0), _TINY)
    return int(np.clip(np.pi * np.median(slowness) / data.dt, WINDOW, 5 * WINDOW))


def check_motion(data: Trajectories) -> None:
    """Refuse positions from which nothing can be learned."""
    if data.length < SHORTEST:
        raise InputError(f"trajectories of {data.length} samples are too short to learn from: give at least {SHORTEST}")
    for i, name in enumerate(data.manifold.names):
        if np.ptp(data.q[..., i]) == 0.0:
            raise InputError(f"'{name}' never moves: leave it out, or record motion")
    refuse_turns(data.q, data.manifold)


SHORTEST = 8


def sharpest(
    system: AbstractEnergetic, windows: Trajectories, *, tolerance: float | Float[np.ndarray, " n"]
) -> AbstractTransition:
    """The cheapest step over these windows that halving would not change by more than ``tolerance``.

    Runge–Kutta first. Where even its smallest step does not settle (stiff damping), or friction near rest would make it
    chatter, Strang splitting, whose damping step is exact. Only mechanical systems can be split: others get the finest.
    """
    dt, moved = windows.dt, np.std(windows.q, axis=(0, 1))
    if not isinstance(system, PortHamiltonian):
        return RungeKutta(Timestep(dt, 2 * SUBSTEPS[-1]))
    core = leapfrog() if system.separable else ImplicitMidpoint()
    strang = Transition(core, ExactDamping(), Timestep(dt, 2 * SUBSTEPS[-1]))
    if depends_on_velocity(system.damping) and _decay_at_rest(system, windows) * dt / SUBSTEPS[-1] > _STABLE:
        return strang
    coarse = _final_positions(system, RungeKutta(Timestep(dt, SUBSTEPS[0])), windows)
    for count in SUBSTEPS:
        fine = _final_positions(system, RungeKutta(Timestep(dt, 2 * count)), windows)
        error = np.sqrt(np.mean(np.asarray(windows.manifold.squared_error(fine, coarse)), axis=0))
        if (error <= tolerance).all() or (count == SUBSTEPS[-1] and (error < 1e-2 * moved).all()):
            return RungeKutta(Timestep(dt, count))
        coarse = fine
    return strang


_STABLE = 2.7  # how far along the negative axis the classical Runge–Kutta method is stable


def _decay_at_rest(system: PortHamiltonian, windows: Trajectories) -> float:
    """The fastest rate at which friction would slow what hardly moves: the largest eigenvalue of M⁻¹ D(q, 0)."""

    def fastest(q):
        rest = system.damping.operator(q, jnp.zeros_like(q)).dense()
        return jnp.max(jnp.abs(jnp.linalg.eigvals(jnp.linalg.solve(system.mass.operator(q).dense(), rest))))

    return float(jnp.max(jax.vmap(fastest)(jnp.asarray(windows.q[:, 0]))))


@eqx.filter_jit
def _final_positions(
    system: AbstractEnergetic, transition: AbstractTransition, windows: Trajectories
) -> Float[Array, "W n"]:
    """Where each window ends, from the smoother's guess of its beginning."""
    core, q = Core(system, transition), jnp.asarray(windows.q)
    present, n = jnp.ones(windows.length), windows.manifold.size

    def one(y, u):
        x = smoothed_ends(core, windows.manifold, windows.dt, y, present, u)[0]
        return core.rollout(x[:n], x[n:], windows.length - 1, u)[0][-1]

    return jax.vmap(one)(q, held_over(windows))


def passive_transition(dt: float, substeps: int = 8) -> Transition:
    """Energy never rises along an unforced rollout: at any step size, for any parameters."""
    return Transition(DiscreteGradient(), ExactDamping(), Timestep(dt, substeps))


# --- the paper's systems ---------------------------------------------------------------------------------------------

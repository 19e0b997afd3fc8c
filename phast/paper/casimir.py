"""The paper's study of energy–Casimir control: one pendulum, one law, many ways to tell the port output.

The plant is the true pendulum, integrated to tight tolerance between samples; trials begin in five regimes and are the
same for every method, noise included. All trials of a method are one batched program.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.potential import gradient
from phast.control.loop import Feedback, Trace, close_loop
from phast.control.plant import Plant
from phast.control.shaping import EnergyCasimir
from phast.control.stability import require_stable
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.systems import System

SYSTEM, DT = "pendulum-conservative", 0.01
SAMPLES = 1000
STIFFNESS, INJECTION, CORRECTION = 10.0, 2.0, 5.0
CLOSE, HELD = 0.05, 100  # rad, and the last samples throughout which a success is that close
EACH = 20  # trials of a regime

Draw = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


# --- plant, law, trials ----------------------------------------------------------------------------------------------


def _within(q: float, p: float, *, around: float = 0.0) -> Draw:
    return lambda rng, count: (around + rng.uniform(-q, q, count), rng.uniform(-p, p, count))


def _spinning(slow: float, fast: float) -> Draw:
    def draw(rng: np.random.Generator, count: int):
        return rng.uniform(-np.pi, np.pi, count), rng.uniform(slow, fast, count) * rng.choice([-1.0, 1.0], count)

    return draw


# The paper names five regimes and prints no ranges: these come near its efforts with the exact velocity.
REGIMES: dict[str, Draw] = {
    "near-stable": _within(0.5, 2.0),
    "moderate": _within(1.5, 4.0),
    "large": _within(3.0, 6.0),
    "near-inverted": _within(0.2, 1.0, around=np.pi),
    "spinning": _spinning(12.0, 16.0),
}


class Starts(NamedTuple):
    """Where trials begin, regime after regime."""

    q: Float[np.ndarray, "trials 1"]
    p: Float[np.ndarray, "trials 1"]


def starts(each: int = EACH, seed: int = 0) -> Starts:
    """``each`` initial states from every regime."""
    rng = np.random.default_rng(seed)
    drawn = [draw(rng, each) for draw in REGIMES.values()]
    return Starts(*(np.concatenate(parts)[:, None] for parts in zip(*drawn, strict=True)))


def plant_of(simulator: System) -> Plant:
    """The true pendulum, driven by a torque."""
    return Plant(simulator.port_hamiltonian, simulator.manifold, simulator.dt)


def law_for(target: float, potential: PortHamiltonian | None, stiffness: float = STIFFNESS) -> EnergyCasimir:
    """The study's gains. The input that holds the target is that of ``potential``: none without it."""
    q = jnp.asarray([target], dtype=float)
    holding = 0.0 if potential is None else jnp.linalg.pinv(potential.port_matrix(1)) @ gradient(potential.potential, q)
    return EnergyCasimir.create(q, stiffness=stiffness, injection=INJECTION, holding=holding, correction=CORRECTION)


def check_law(plant: Plant, law: EnergyCasimir, target: float) -> None:
    """Refuse gains under which the target is no stable equilibrium of the plant."""
    require_stable(plant, law, jnp.asarray([target], dtype=float))


@eqx.filter_jit
def run_trials(
    controller: Feedback, q: Float[Array, "trials 1"], p: Float[Array, "trials 1"], noise: Float[Array, ""]
) -> Trace:
    """All trials, one batched program."""
    keys = jax.random.split(jax.random.key(0), q.shape[0])

    def one(q, p, key):
        return close_loop(controller.plant, controller, q, p, SAMPLES, noise=noise, key=key)

    return jax.vmap(one)(q, p, keys)


# --- judging ---------------------------------------------------------------------------------------------------------


def judged(controller: Feedback, noise: float, each: int = EACH) -> dict[str, float]:
    """Means over all trials of every metric, and over those of each regime."""
    begun = starts(each)
    trace = run_trials(controller, *map(jnp.asarray, begun), jnp.asarray(noise, dtype=float))
    means: dict[str, float] = {}
    for metric, values in trial_metrics(controller.plant, trace, float(controller.law.target[0])).items():
        means[metric] = float(np.mean(values))
        by_regime = values.reshape(len(REGIMES), each).mean(axis=1)
        means |= {f"{metric}_{regime}": float(x) for regime, x in zip(REGIMES, by_regime, strict=True)}
    return means


def trial_metrics(plant: Plant, trace: Trace, target: float) -> dict[str, Float[np.ndarray, " trials"]]:
    """What each trial came to. A run that ran away is no success, whatever its last angle."""
    paths = (np.asarray(trace.q), np.asarray(trace.measured))
    off, seen = (np.abs(plant.manifold.difference(x, np.full_like(x, target)))[..., 0] for x in paths)
    whole = np.isfinite(off).all(axis=1)
    return {
        "success": ((off[:, -HELD:] < CLOSE).all(axis=1) & whole).astype(float),
        "final_error": off[:, -1],
        "worst_error": off[:, -HELD:].max(axis=1),
        "measured_error": seen[:, -1],
        "effort": plant.dt * np.asarray(trace.effort),
        "velocity_error": np.abs(np.asarray(trace.y_believed - trace.y)).mean(axis=(1, 2)),
    }


# --- what models are learned from ------------------------------------------------------------------------------------


def driven(plant: Plant, noise: float, *, count: int = 16, length: int = 500, seed: int = 1) -> Trajectories:
    """Noisy positions of the plant and the random torques that drove it, a new one every quarter of a second."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.normal(0.0, 4.0, (count, -(-length // 25), 1)), 25, axis=1)[:, :length]
    q, p = rng.uniform(-np.pi, np.pi, (count, 1)), rng.normal(0.0, 3.0, (count, 1))
    path = np.asarray(_followed(plant, jnp.asarray(q), jnp.asarray(p), jnp.asarray(u)))
    clean = Trajectories(path, plant.dt, plant.manifold, u=u)
    return clean.with_noise(noise, seed=seed + 1)


@eqx.filter_jit
def _followed(plant: Plant, q, p, u) -> Float[Array, "trials T 1"]:
    def one(q, p, u):
        return jax.lax.scan(lambda state, held: (plant(*state, held), state[0]), (q, p), u)[1]

    return jax.vmap(one)(q, p, u)

"""Trying a design out: closed loops on what the data of the fit leave possible.

Each trial has a plant of its own, a draw of the coefficients (:func:`phast.fitting.uncertainty.drawn`) that is
integrated to tight tolerance between samples. Its positions are measured with the noise of the fit; the controller
knows the fitted model alone and takes states from its moving horizon. All trials are one batched program.
"""

import dataclasses
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from phast.control.design import Design
from phast.control.loop import Feedback, Trace, close_loop
from phast.control.plant import Plant
from phast.control.ports import FilteredOutput, driven_system
from phast.control.shaping import EnergyCasimir
from phast.estimation.forecaster import shared_out
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.coefficients import coefficients_of
from phast.fitting.uncertainty import drawn

_LONGER = 1.5  # how long a trial lasts, in times within which it has to settle


class Task(NamedTuple):
    """Where trials start, at rest, one after the other, and what counts as settled, in the units of the computation."""

    starts: Float[np.ndarray, "starts n"]
    tolerance: Float[np.ndarray, " n"]
    within: int
    draws: int
    seed: int


@dataclasses.dataclass(frozen=True, eq=False)
class Trials:
    """Closed loops sample by sample, in the units of the computation.

    ``q`` are true positions, ``u`` the inputs that were applied; ``saturated`` is the share of samples at which the
    actuators could not apply what was asked for. A trial that cannot be followed has no numbers from there on.
    """

    design: Design
    task: Task
    dt: float
    q: Float[np.ndarray, "trials T n"]
    u: Float[np.ndarray, "trials T m"]
    saturated: Float[np.ndarray, " trials"]

    def fan(self, k: int, values: Float[np.ndarray, "trials T k"]) -> Float[np.ndarray, "k three T"]:
        """Between what nine in ten of the trials from start ``k`` lie, and their median; what ran away is infinite."""
        own = values[k :: len(self.task.starts)]
        ordered = np.sort(np.where(np.isfinite(own), own, np.inf), axis=0)
        return np.moveaxis(ordered[[round(share * (len(own) - 1)) for share in (0.05, 0.5, 0.95)]], 2, 0)

    @property
    def t(self) -> Float[np.ndarray, " T"]:
        return self.dt * np.arange(self.q.shape[1])

    @property
    def off(self) -> Float[np.ndarray, "trials T n"]:
        """Distances from the target; positions go on counting, as ξ does."""
        return self.q - self.design.target

    @property
    def settling(self) -> Float[np.ndarray, " trials"]:
        """The time after which a trial stays within the tolerance; infinite where it does not."""
        outside = ~np.all(np.abs(self.off) <= self.task.tolerance, axis=2)
        length = self.q.shape[1]
        last = np.where(np.any(outside, axis=1), length - np.argmax(np.flip(outside, axis=1), axis=1), 0)
        return np.where(last < length, self.dt * last, np.inf)

    @property
    def settled(self) -> Bool[np.ndarray, " trials"]:
        """Which trials settle in time."""
        return self.settling <= self.dt * self.task.within

    @property
    def overshoot(self) -> Float[np.ndarray, "trials n"]:
        """How far each coordinate went beyond the target; infinite where it ran away."""
        side = np.sign(self.off[:, :1])
        beyond = np.where(side == 0.0, np.abs(self.off), -side * self.off)
        return np.maximum(np.where(np.isfinite(beyond), beyond, np.inf).max(axis=1), 0.0)

    @property
    def remaining(self) -> Float[np.ndarray, "trials n"]:
        """The error at the end, on average over the last tenth."""
        return self.off[:, -max(self.q.shape[1] // 10, 1) :].mean(axis=1)

    @property
    def effort(self) -> Float[np.ndarray, " trials"]:
        """∫ |u|² dt."""
        total = self.dt * np.sum(self.u**2, axis=(1, 2))
        return np.where(np.isfinite(total), total, np.inf)


def tried(model: ModelAware, design: Design, task: Task) -> Trials:
    """Closed loops of the design, one for each draw."""
    trace = looped(model, design, task)
    q, u, saturated = (np.asarray(part) for part in (trace.q, trace.applied, trace.saturated))
    return Trials(design, task, model.dt, q, u, saturated)


def looped(model: ModelAware, design: Design, task: Task) -> Trace:
    """All that happened in the trials."""
    steps, n = round(_LONGER * task.within), model.manifold.size
    starts, law = task.starts[np.arange(task.draws) % len(task.starts)], design.law
    keys = jax.random.split(jax.random.key(task.seed), task.draws)
    noise = jnp.broadcast_to(jnp.asarray(model.noise, dtype=float), (n,))
    bare = dataclasses.replace(model, evidence=None)  # whose numbers would each compile anew
    law = eqx.tree_at(lambda x: x.correction, law, jnp.asarray(law.correction))
    limits = None if design.limits is None else jnp.asarray(design.limits)
    run = functools.partial(_loops, bare, law, limits, noise, steps)
    return shared_out(run, jnp.asarray(drawn(model, task.draws, seed=task.seed)), jnp.asarray(starts), keys)


@eqx.filter_jit  # gains and limits are arrays, so that others need no new program
def _loops(
    model: ModelAware,
    law: EnergyCasimir,
    limits: Float[Array, " m"] | None,
    noise: Float[Array, " n"],
    steps: int,
    coefficients: Float[Array, "draws k"],
    starts: Float[Array, "draws n"],
    keys: Array,
) -> Trace:
    nominal = Plant(driven_system(model), model.manifold, model.dt)
    controller, (_, rebuild) = Feedback(law, FilteredOutput.of(model), nominal), coefficients_of(nominal.system)

    def one(theta, q, key):
        plant = dataclasses.replace(nominal, system=rebuild(theta))
        plant = eqx.tree_at(lambda x: x.limits, plant, limits, is_leaf=lambda x: x is None)
        return close_loop(plant, controller, q, jnp.zeros_like(q), steps, noise=noise, key=key)

    return jax.vmap(one)(coefficients, starts, keys)

"""Losses of a training: next step, physics, rollouts through the moving horizon, full states, residual forces."""

import functools
from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from phast.components.potential import SeriesPotential
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.lagrangian import residual
from phast.errors import InputError, counted
from phast.estimation.forecaster import AbstractForecaster, AbstractFullState, Core, Phast
from phast.estimation.moving_horizon import ModelAware


class Batch(NamedTuple):
    """Trajectories as arrays: positions, and momenta, inputs, velocities or accelerations where there are any."""

    q: Float[Array, "B T n"]
    p: Float[Array, "B T n"] | None = None
    u: Float[Array, "B T inputs"] | None = None
    v: Float[Array, "B T n"] | None = None
    a: Float[Array, "B T n"] | None = None


class AbstractLoss(eqx.Module):
    """A scalar to minimise, for one trajectory; :func:`fit` averages it over a batch."""

    @abstractmethod
    def __call__(self, model: Any, trajectory: Batch, key: PRNGKeyArray) -> Float[Array, ""]: ...

    @abstractmethod
    def selection(self, model: Any, trajectory: Batch) -> Float[Array, ""]:
        """The next-step error by which the best model is chosen on validation data."""


class NextStepLoss(AbstractLoss):
    """L_data (Eq. 14) for any forecaster: mean squared error of q̂_{t+1}, the first ``burn_in`` predictions left out."""

    burn_in: int = 0

    def __call__(self, model: AbstractForecaster, trajectory, key):
        return self._error(model, trajectory, key)

    def selection(self, model: AbstractForecaster, trajectory):
        return self._error(model, trajectory, None)

    def _error(self, model, trajectory, key):
        u = None if trajectory.u is None else trajectory.u[:-1]
        _require_steps(trajectory, self.burn_in)
        predicted = model.predict_next(trajectory.q[:-1], u, key=key)
        return jnp.mean(model.manifold.squared_error(predicted, trajectory.q[1:])[self.burn_in :])


class PhysicsLoss(AbstractLoss):
    """All four terms of Eq. 13 for a q-only :class:`Phast`, with energies of the states that its observer infers.

    The rollout term (Eq. 18) integrates ``horizon`` steps from the inferred state at a random time after the burn-in.
    """

    data: float = 1.0
    passivity: float = 0.0
    energy: float = 0.0
    rollout: float = 0.0
    horizon: int = 20
    burn_in: int = 0

    def __call__(self, model: Phast, trajectory, key):
        q, u = trajectory.q, trajectory.u
        head = None if u is None else u[:-1]
        _require_steps(trajectory, self.burn_in)
        start = model.states(q)
        before = (start[0][:-1], start[1][:-1])
        after = _next_states(model.core, before, head)
        error = model.manifold.squared_error(after[0], q[1:])[self.burn_in :]
        total = self.data * jnp.mean(error)
        if self.passivity or self.energy:
            total += _energy_terms(model.core, before, after, model.dt, self.passivity, self.energy)
        if self.rollout:
            total += self.rollout * _rollout_error(
                model.core, model.manifold, start, (q,), u, self.horizon, self.burn_in, key
            )
        return total

    def selection(self, model: Phast, trajectory):
        return NextStepLoss(self.burn_in).selection(model, trajectory)


class HorizonLoss(AbstractLoss):
    """Rollout-aligned training through the moving horizon, for :class:`~phast.estimation.moving_horizon.ModelAware`
    forecasters.

    A trajectory is cut into windows, all at once. In each, the state is fitted to the first ``context`` positions
    through the model as it stands, and the error is that of the ``horizon`` positions forecast from there: what was
    fitted is left out. Gradients pass through the fit.
    """

    context: int = 10
    horizon: int = 20

    def __call__(self, model: ModelAware, trajectory, key):
        return self.selection(model, trajectory)

    def selection(self, model: ModelAware, trajectory):
        length = self.context + self.horizon
        count = trajectory.q.shape[0] // length
        if count < 1:
            raise InputError(
                f"trajectories of {trajectory.q.shape[0]} samples hold no context of {self.context} and "
                f"{self.horizon} samples after it: give longer ones, or a shorter horizon"
            )
        cut = lambda x: x[: count * length].reshape(count, length, -1)  # noqa: E731
        windows = (cut(trajectory.q), None if trajectory.u is None else cut(trajectory.u))

        def one(q, u):
            last = self.context - 1
            past, ahead = (None, None) if u is None else (u[:last], u[last:-1])
            rolled = model.takeover(q[: self.context], self.horizon, ahead, past)
            return jnp.mean(model.manifold.squared_error(rolled, q[self.context :]))

        return jnp.mean(jax.vmap(one)(*windows))


class FullStateLoss(AbstractLoss):
    """The same four terms where q and p are both observed (Algorithm 3): no observer, errors on the whole state."""

    manifold: Manifold
    dt: float
    data: float = 1.0
    passivity: float = 0.0
    energy: float = 0.0
    rollout: float = 0.0
    horizon: int = 20

    def __call__(self, model: AbstractFullState, trajectory, key):
        states = (trajectory.q, trajectory.p)
        before = (trajectory.q[:-1], trajectory.p[:-1])
        head = None if trajectory.u is None else trajectory.u[:-1]
        after = _next_states(model, before, head)
        total = self.data * self._error(after, trajectory)
        if self.passivity or self.energy:
            if not isinstance(model, Core):
                raise InputError(f"a {type(model).__name__} has no energy: passivity and energy weights must be zero")
            total += _energy_terms(model, before, after, self.dt, self.passivity, self.energy)
        if self.rollout:
            total += self.rollout * _rollout_error(
                model, self.manifold, states, states, trajectory.u, self.horizon, 0, key
            )
        return total

    def selection(self, model: AbstractFullState, trajectory):
        head = None if trajectory.u is None else trajectory.u[:-1]
        return self._error(_next_states(model, (trajectory.q[:-1], trajectory.p[:-1]), head), trajectory)

    def _error(self, after, trajectory):
        _require_steps(trajectory, 0)
        in_q = self.manifold.squared_error(after[0], trajectory.q[1:])
        return jnp.mean(in_q) + jnp.mean((after[1] - trajectory.p[1:]) ** 2)


class ResidualLoss(AbstractLoss):
    """L_res of the appendix on gauge freedom: the mean squared Euler–Lagrange residual of a
    :class:`~phast.dynamics.hamiltonian.PortHamiltonian`, where q, q' and q'' are all observed.

    It falls with c² where V, M and D are all multiplied by c < 1, though no motion changes: without an anchor it
    rewards small ones. ``sparsity`` weighs the magnitudes of the coefficients of a series potential (an L1 penalty).
    """

    sparsity: float = 0.0

    def __call__(self, model: PortHamiltonian, trajectory, key):
        error = self.selection(model, trajectory)
        if not (self.sparsity and isinstance(model.potential, SeriesPotential)):
            return error
        return error + self.sparsity * jnp.sum(jnp.abs(model.potential.values()))

    def selection(self, model: PortHamiltonian, trajectory):
        if trajectory.v is None or trajectory.a is None:
            raise InputError("the residual needs velocities and accelerations beside the positions")
        r = jax.vmap(functools.partial(residual, model))(trajectory.q, trajectory.v, trajectory.a, trajectory.u)
        return jnp.mean(jnp.sum(r**2, axis=-1))


def _require_steps(trajectory: Batch, burn_in: int) -> None:
    length = trajectory.q.shape[0]
    if length < burn_in + 2:
        raise InputError(
            f"trajectories of {counted(length, 'sample')} leave no step to learn from after a burn-in of {burn_in}: "
            f"give longer ones, at least {burn_in + 2}"
        )


def _next_states(core: AbstractFullState, states, u):
    return jax.vmap(core)(*states) if u is None else jax.vmap(core)(*states, u)


def _energy_terms(core: Core, before, after, dt, passivity: float, energy: float):
    """λ_pass L_pass + λ_energy L_energy (Eqs. 15 and 16)."""
    rise = jax.vmap(core.system.energy)(*after) - jax.vmap(core.system.energy)(*before)
    v = jax.vmap(core.system.velocity)(*before)
    dissipated = jnp.sum(v * jax.vmap(core.system.dissipation)(before[0], v), axis=-1)
    return passivity * jnp.mean(jnp.maximum(rise, 0.0)) + energy * jnp.mean(jnp.abs(rise / dt + dissipated))


def _rollout_error(core: AbstractFullState, manifold, states, targets, u, horizon: int, burn_in: int, key):
    """Mean error along an open-loop rollout from a random time (Eq. 18); ``targets`` is (q,) or (q, p)."""
    length = states[0].shape[0]
    if length - horizon <= burn_in:
        raise InputError(f"a rollout loss of {horizon} steps after a burn-in of {burn_in} needs longer trajectories")
    t0 = jax.random.randint(key, (), burn_in, length - horizon)
    inputs = None if u is None else jax.lax.dynamic_slice_in_dim(u, t0, horizon)
    rolled = core.rollout(states[0][t0], states[1][t0], horizon, inputs)
    wanted = [jax.lax.dynamic_slice_in_dim(target, t0 + 1, horizon) for target in targets]
    error = jnp.mean(manifold.squared_error(rolled[0], wanted[0]))
    return error if len(wanted) == 1 else error + jnp.mean((rolled[1] - wanted[1]) ** 2)


def as_batch(data: Trajectories) -> Batch:
    """Trajectories as the arrays that training takes, in the process's precision."""
    return Batch(jnp.asarray(data.q, dtype=float), u=None if data.u is None else jnp.asarray(data.u, dtype=float))

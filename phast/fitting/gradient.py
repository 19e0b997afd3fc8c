"""Training: the four losses of Eq. 13, one compiled epoch, and :func:`fit`, which returns (model, history).

An epoch is one ``lax.scan`` over shuffled batches inside one compiled program, the same for every seed. Everything that
decides the numbers (parameters, optimiser state, best model so far, epoch) goes into the checkpoint after each epoch,
and the shuffle of an epoch depends on the key and its number alone, so a killed run resumes to the same result.
"""

import dataclasses
import functools
import hashlib
import math
import os
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from phast.components.parameter import is_trained
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster, AbstractFullState, Core, Phast
from phast.estimation.moving_horizon import ModelAware
from phast.fitting.checkpoint import read_archive, write_archive

# --- losses ----------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Trajectories as arrays: positions, and momenta or inputs where there are any."""

    q: Float[Array, "B T n"]
    p: Float[Array, "B T n"] | None = None
    u: Float[Array, "B T inputs"] | None = None


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


def _require_steps(trajectory: Batch, burn_in: int) -> None:
    length = trajectory.q.shape[0]
    if length < burn_in + 2:
        raise InputError(
            f"trajectories of {length} sample(s) leave no step to learn from after a burn-in of {burn_in}: "
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


# --- fitting ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Settings:
    """How to train. The defaults are the paper's (appendix E.3)."""

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    validate_every: int = 10

    def __post_init__(self):
        for name in ("epochs", "batch_size", "validate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.learning_rate > 0:
            raise InputError(f"learning_rate must be positive, not {self.learning_rate}")


@dataclasses.dataclass
class History:
    """What happened: the mean training loss of every epoch, and the validation error where it was measured."""

    loss: list[float] = dataclasses.field(default_factory=list)
    validation: dict[int, float] = dataclasses.field(default_factory=dict)
    best_epoch: int = 0

    @property
    def epochs_done(self) -> int:
        return len(self.loss)


def fit(
    model: Any,
    train: Batch,
    validation: Batch,
    *,
    loss: AbstractLoss,
    settings: Settings = Settings(),
    key: PRNGKeyArray,
    checkpoint: str | os.PathLike | None = None,
    on_epoch: Callable[[History], None] = lambda history: None,
) -> tuple[Any, History]:
    """Train ``model`` by AdamW with a cosine schedule and return the best one on validation data.

    With ``checkpoint``, the state is written there after every epoch and a run that finds the file goes on from it.
    """
    state, static, optimiser = _begin(model, train, settings)
    history = History()
    run = "" if checkpoint is None else _fingerprint(static, loss, state, train, validation)
    if checkpoint is not None and os.path.exists(checkpoint):
        state, history = _resume(checkpoint, state, settings, key, run)
    for epoch in range(history.epochs_done, settings.epochs):
        shuffle_key, loss_key = jax.random.split(jax.random.fold_in(key, epoch))
        order, weights = _batches(shuffle_key, train.q.shape[0], settings.batch_size)
        state, mean_loss = _epoch(static, state, optimiser, loss, train, order, weights, loss_key)
        history.loss.append(float(mean_loss))
        if (epoch + 1) % settings.validate_every == 0 or epoch + 1 == settings.epochs:
            state, error, better = _select(static, state, loss, validation)
            history.validation[epoch + 1] = float(error)
            history.best_epoch = epoch + 1 if better else history.best_epoch
        if not math.isfinite(history.loss[-1]):
            raise FloatingPointError(
                f"training diverged in epoch {epoch + 1}: lower the learning rate (now {settings.learning_rate})"
            )
        if checkpoint is not None:
            _store(checkpoint, state, history, settings, key, run)
        on_epoch(history)
    return eqx.combine(state.best, static), history


def warm_up(model: Any, train: Batch, validation: Batch, *, loss: AbstractLoss, settings: Settings) -> None:
    """Compile what :func:`fit` will run with these shapes: threads that start together would each compile it."""
    state, static, optimiser = _begin(model, train, settings)
    order, weights = _batches(jax.random.key(0), train.q.shape[0], settings.batch_size)
    state, _ = _epoch(static, state, optimiser, loss, train, order, weights, jax.random.key(0))
    jax.block_until_ready(_select(static, state, loss, validation)[1])


class _State(NamedTuple):
    """All that training carries from one epoch to the next."""

    params: Any
    optimiser: Any
    best: Any
    best_error: Float[Array, ""]


def _begin(model: Any, train: Batch, settings: Settings) -> tuple[_State, Any, optax.GradientTransformation]:
    optimiser = _optimiser(settings, math.ceil(train.q.shape[0] / settings.batch_size))
    params, static = eqx.partition(model, is_trained)
    return _State(params, optimiser.init(params), params, jnp.asarray(jnp.inf)), static, optimiser


@functools.lru_cache(maxsize=32)
def _optimiser(settings: Settings, steps_per_epoch: int) -> optax.GradientTransformation:
    """One object per setting, so that seeds share one compiled epoch."""
    schedule = optax.cosine_decay_schedule(settings.learning_rate, settings.epochs * steps_per_epoch)
    return optax.adamw(schedule, weight_decay=settings.weight_decay)


def _batches(key: PRNGKeyArray, count: int, size: int) -> tuple[Int[Array, "S B"], Float[Array, "S B"]]:
    """A shuffle of all trajectories in batches; the last is filled up with trajectories of weight zero."""
    steps = math.ceil(count / size)
    order = jnp.resize(jax.random.permutation(key, count), (steps, size))
    weights = (jnp.arange(steps * size) < count).astype(float).reshape(steps, size)
    return order, weights / jnp.sum(weights, axis=1, keepdims=True)


@eqx.filter_jit
def _epoch(static, state: _State, optimiser, loss: AbstractLoss, train: Batch, order, weights, key):
    keys = jax.random.split(key, order.shape)

    def objective(params, batch, batch_weights, batch_keys):
        model = eqx.combine(params, static)
        losses = jax.vmap(lambda trajectory, k: loss(model, trajectory, k))(batch, batch_keys)
        return jnp.dot(losses, batch_weights)

    def step(carry, inputs):
        params, optimiser_state = carry
        indices, batch_weights, batch_keys = inputs
        batch = jax.tree.map(lambda x: x[indices], train)
        value, gradient = jax.value_and_grad(objective)(params, batch, batch_weights, batch_keys)
        updates, optimiser_state = optimiser.update(gradient, optimiser_state, params)
        return (optax.apply_updates(params, updates), optimiser_state), value

    carry = (state.params, state.optimiser)
    (params, optimiser_state), values = jax.lax.scan(step, carry, (order, weights, keys))
    counts = jnp.sum(weights > 0, axis=1)  # the last batch may be a small one
    return state._replace(params=params, optimiser=optimiser_state), jnp.dot(values, counts) / jnp.sum(counts)


@eqx.filter_jit
def _select(static, state: _State, loss: AbstractLoss, validation: Batch):
    model = eqx.combine(state.params, static)
    error = jnp.mean(jax.vmap(lambda trajectory: loss.selection(model, trajectory))(validation))
    better = error < state.best_error
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.params, state.best)
    return state._replace(best=best, best_error=jnp.minimum(error, state.best_error)), error, better


# --- resuming --------------------------------------------------------------------------------------------------------

_FORMAT, _VERSION = "phast-training", 1


def _fingerprint(static: Any, loss: AbstractLoss, state: _State, *data: Batch) -> str:
    """A hash of what a run is, beside its settings and its seed: the given part of the model, loss, precision, data."""
    dtypes = [leaf.dtype.name for leaf in jax.tree.leaves(state)]
    digest = hashlib.sha256(repr((static, loss, dtypes)).encode())
    for leaf in jax.tree.leaves(data):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


def _store(path, state: _State, history: History, settings: Settings, key: PRNGKeyArray, run: str) -> None:
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "settings": dataclasses.asdict(settings),
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "run": run,
        "history": dataclasses.asdict(history),
    }
    write_archive(path, header, [np.asarray(leaf) for leaf in jax.tree.leaves(state)])


def _resume(path, like: _State, settings: Settings, key: PRNGKeyArray, run: str) -> tuple[_State, History]:
    header, arrays = read_archive(path, _FORMAT, _VERSION)
    leaves, tree = jax.tree.flatten(like)
    fits = [a.shape for a in arrays] == [leaf.shape for leaf in leaves]
    if header["settings"] != dataclasses.asdict(settings) or not fits or header["run"] != run:
        raise InputError(
            f"{path}: holds a run with another model, other data or other settings: delete it or choose another file"
        )
    if header["key"] != np.asarray(jax.random.key_data(key)).tolist():
        raise InputError(f"{path}: holds a run with another seed: delete it or choose another file")
    stored = header["history"]
    validation = {int(epoch): error for epoch, error in stored["validation"].items()}
    return jax.tree.unflatten(tree, [jnp.asarray(a) for a in arrays]), History(
        stored["loss"], validation, stored["best_epoch"]
    )


def as_batch(data: Trajectories) -> Batch:
    """Trajectories as the arrays that training takes, in the process's precision."""
    return Batch(jnp.asarray(data.q, dtype=float), u=None if data.u is None else jnp.asarray(data.u, dtype=float))

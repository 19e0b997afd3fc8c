"""Training by gradient descent: one compiled epoch, and :func:`train`, which returns (model, history).

An epoch is one ``lax.scan`` over shuffled batches inside one compiled program, the same for every seed. Everything that
decides the numbers (parameters, optimiser state, best model so far, epoch) goes into the checkpoint after each epoch,
and the shuffle of an epoch depends on the key and its number alone, so a killed run resumes to the same result.
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from phast.components.parameter import is_trained
from phast.errors import FitError, InputError, Reason
from phast.fitting.archives import write_archive
from phast.fitting.checkpoint import read_matching
from phast.fitting.losses import AbstractLoss, Batch


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


def train(
    model: Any,
    seen: Batch,
    validation: Batch,
    *,
    loss: AbstractLoss,
    settings: Settings = Settings(),
    key: PRNGKeyArray,
    checkpoint: str | os.PathLike | None = None,
    on_epoch: Callable[[History], None] = lambda history: None,
) -> tuple[Any, History]:
    """Train ``model`` by AdamW with a cosine schedule and return the best one on validation data.

    With ``checkpoint``, the state is written there after every epoch and a run that finds the file resumes from it.
    """
    state, static, optimiser = _begin(model, seen, settings)
    history = History()
    run = "" if checkpoint is None else _fingerprint(static, loss, state, seen, validation)
    if checkpoint is not None and os.path.exists(checkpoint):
        state, history = _resume(checkpoint, state, settings, key, run)
    for epoch in range(history.epochs_done, settings.epochs):
        shuffle_key, loss_key = jax.random.split(jax.random.fold_in(key, epoch))
        order, weights = _batches(shuffle_key, seen.q.shape[0], settings.batch_size)
        state, mean_loss = _epoch(static, state, optimiser, loss, seen, order, weights, loss_key)
        history.loss.append(float(mean_loss))
        if (epoch + 1) % settings.validate_every == 0 or epoch + 1 == settings.epochs:
            state, error, better = _select(static, state, loss, validation)
            history.validation[epoch + 1] = float(error)
            history.best_epoch = epoch + 1 if better else history.best_epoch
        if not math.isfinite(history.loss[-1]):
            advice = f"training diverged in epoch {epoch + 1}: lower the learning rate (now {settings.learning_rate})"
            raise FitError(Reason.TRAINING_DIVERGED, advice)
        if checkpoint is not None:
            _store(checkpoint, state, history, settings, key, run)
        on_epoch(history)
    return eqx.combine(state.best, static), history


def warm_up(model: Any, train: Batch, validation: Batch, *, loss: AbstractLoss, settings: Settings) -> None:
    """Compile what :func:`train` will run with these shapes: threads that start together would each compile it."""
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
    header, arrays = read_matching(path, _FORMAT, _VERSION)
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

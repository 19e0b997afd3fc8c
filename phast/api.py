"""Arrays in, arrays out: the whole job in three calls.

model = phast.learn(q, dt=0.05, coordinates=["theta:angle"], regime="partial", potential=phast.Cosine(9.81))
future = phast.forecast(model, q[0, :10], horizon=100)
d = phast.damping(model, theta)
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phast import models
from phast.components.damping import AbstractDamping
from phast.components.mass import AbstractMass, ConstantMass
from phast.components.parameter import Coefficient
from phast.components.potential import AbstractPotential
from phast.datasets import Trajectories, as_trajectories
from phast.errors import InputError
from phast.forecaster import (
    AbstractForecaster,
    AbstractIdentifiable,
    Filtered,
    Phast,
    autoregressive,
    roll_out,
    takeover,
)
from phast.hamiltonian import PortHamiltonian
from phast.sharp import partial_system, sharpen, unknown_system
from phast.suite import as_batch
from phast.training import AbstractLoss, History, NextStepLoss, Settings, fit

Regime = Literal["known", "partial", "unknown"]
MINIMUM_CONTEXT = 2
_WINDOW = 200


def enable_float64() -> None:
    """Double precision from here on, for every model that is built or loaded afterwards."""
    jax.config.update("jax_enable_x64", True)


def learn(
    data: Any,
    *,
    dt: float | None = None,
    coordinates: Sequence[str] | None = None,
    regime: Regime = "unknown",
    potential: AbstractPotential | None = None,
    mass: AbstractMass = ConstantMass(1.0),  # noqa: B008 (immutable)
    damping: AbstractDamping | None = None,
    base: Coefficient | None = None,
    bound: float | None = None,
    preset: Literal["paper", "sharp"] = "paper",
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    loss: AbstractLoss = NextStepLoss(),  # noqa: B008 (immutable)
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    on_epoch: Callable[[History], None] = lambda history: None,
) -> AbstractIdentifiable:
    """Learn a port-Hamiltonian model from positions.

    ``data`` is an array (samples, coordinates) or (trajectories, samples, coordinates), a DataFrame, a list of arrays,
    or :class:`Trajectories`. ``regime`` says what is known: ``"known"`` needs ``potential`` and a ``damping`` law with
    coefficients to learn, ``"partial"`` a ``potential`` as template, ``"unknown"`` nothing. One in five trajectories
    (or windows of a long one) is held out to select the model.

    ``preset="sharp"`` fits to second order instead of training networks (:mod:`phast.sharp`): far more accurate for up
    to two coordinates, in float64 (call :func:`enable_float64` first). ``base``, ``bound`` and what follows ``preset``,
    but for ``seed``, belong to the paper's training.
    """
    if not isinstance(data, Trajectories) and dt is None:
        raise InputError("learn needs dt=…, the time between samples")
    trajectories = data if isinstance(data, Trajectories) else as_trajectories(data, dt=dt, coordinates=coordinates)
    if preset not in ("paper", "sharp"):
        raise InputError(f"unknown preset '{preset}': choose paper or sharp")
    if preset == "sharp":
        return sharpen(_sharp_start(trajectories, regime, potential, mass, damping), trajectories, seed=seed).model
    common = {"manifold": trajectories.manifold, "dt": trajectories.dt, "key": jax.random.key(seed)}
    if regime == "known":
        potential, damping = _given(potential, damping)
        model = models.known(potential=potential, mass=mass, damping=damping, **common)
    elif regime == "partial":
        model = models.partial(
            potential=_template(potential), mass=mass, damping=damping, base=base, bound=bound, **common
        )
    elif regime == "unknown":
        model = models.unknown(damping=damping, base=base, bound=bound, **common)
    else:
        raise _unknown_regime(regime)
    train, validation = hold_out(trajectories)
    fitted, _ = fit(
        model,
        as_batch(train),
        as_batch(validation),
        loss=loss,
        settings=settings,
        key=jax.random.fold_in(jax.random.key(seed), 1),
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )
    return fitted


def _sharp_start(data: Trajectories, regime, potential, mass, damping) -> PortHamiltonian:
    if regime == "known":
        potential, damping = _given(potential, damping)
        return PortHamiltonian(potential, mass, damping)
    if regime == "partial":
        return partial_system(data, _template(potential), mass, damping)
    if regime == "unknown":
        return unknown_system(data, mass)
    raise _unknown_regime(regime)


def _given(potential, damping) -> tuple[AbstractPotential, AbstractDamping]:
    if potential is None or damping is None:
        raise InputError("regime 'known' needs potential=… and damping=…, e.g. ConstantDamping(Positive.uninformed())")
    return potential, damping


def _template(potential) -> AbstractPotential:
    if potential is None:
        raise InputError("regime 'partial' needs potential=…, the template to correct, e.g. Cosine(9.81)")
    return potential


def _unknown_regime(regime: str) -> InputError:
    return InputError(f"unknown regime '{regime}': choose known, partial or unknown")


def hold_out(data: Trajectories) -> tuple[Trajectories, Trajectories]:
    """(training, validation): every fifth trajectory held out, long recordings first cut into windows."""
    pieces = data
    if len(data) < 5:
        length = min(_WINDOW, data.length * len(data) // 10)
        if length < 20:
            raise InputError(
                f"{len(data)} × {data.length} samples are too few to learn from and to check: give at least 200 samples"
            )
        pieces = data.windows(length, length)
    held_out = np.arange(len(pieces)) % 5 == 4
    return pieces.subset(np.flatnonzero(~held_out)), pieces.subset(np.flatnonzero(held_out))


def forecast(
    model: AbstractForecaster,
    context: Any,
    horizon: int,
    *,
    mode: Literal["autoregressive", "takeover"] = "autoregressive",
    u: Any = None,
) -> np.ndarray:
    """``horizon`` configurations after ``context``: (samples, n) -> (horizon, n), or batched (N, samples, n).

    ``u``, where the model has inputs, holds the known inputs of the ``horizon`` steps.
    """
    context, batched = _positions(model, context)
    if horizon < 1:
        raise InputError(f"the horizon must be at least one step, not {horizon}")
    if mode not in ("autoregressive", "takeover"):
        raise InputError(f"unknown forecast mode '{mode}': choose autoregressive or takeover")
    if mode == "takeover" and not isinstance(model, AbstractIdentifiable):
        raise InputError(f"{type(model).__name__} has no physical state to take over: use mode='autoregressive'")
    inputs = None
    if u is not None:
        inputs = _inputs(u, (*context.shape[:1], horizon) if batched else (horizon,))
        inputs = inputs if batched else inputs[None]
    rollout = takeover if mode == "takeover" else autoregressive
    future = roll_out(rollout, model, context, horizon, inputs)
    return np.asarray(future if batched else future[0])


def filter_states(
    model: Phast, q: Any, *, measurement_noise: float = 1e-3, process_noise: float = 1e-3, u: Any = None
) -> Filtered:
    """Predict–correct along measured positions: states, covariances and innovations as numpy arrays."""
    positions, batched = _positions(model, q)
    if not (measurement_noise > 0 and process_noise > 0):
        raise InputError("measurement_noise and process_noise are standard deviations: give positive numbers")
    inputs = None if u is None else _inputs(u, positions.shape[:2] if batched else positions.shape[1:2])

    inputs = inputs if inputs is None or batched else inputs[None]
    filtered = _filter_all(model, positions, inputs, measurement_noise, process_noise)
    return Filtered(*(np.asarray(part if batched else part[0]) for part in filtered))


@eqx.filter_jit
def _filter_all(model: Phast, positions, inputs, measurement_noise: float, process_noise: float) -> Filtered:
    def one(q, u):
        return model.filter(q, u, measurement_noise=measurement_noise, process_noise=process_noise)

    return jax.vmap(one, in_axes=(0, None if inputs is None else 0))(positions, inputs)


def damping(model: AbstractIdentifiable, q: Any) -> np.ndarray:
    """The diagonal of the learned D(q), at rest, for configurations (N, n) or (N,) where n = 1."""
    n = model.manifold.size
    points = _numbers(q, "q")
    points = points.reshape(-1, 1) if points.ndim < 2 and n == 1 else np.atleast_2d(points)
    if points.ndim != 2 or points.shape[1] != n:
        raise InputError(f"the model has {n} coordinate(s), but q has shape {np.shape(q)}: give (N, {n})")
    points = jnp.asarray(points, dtype=float)
    system = model.learned_system()
    rest = jnp.zeros(model.manifold.size)
    return np.asarray(jax.vmap(lambda x: system.damping.operator(x, rest).diagonal_part())(points))


def _numbers(data: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(data, dtype=float)
    except (TypeError, ValueError):
        raise InputError(f"{name} must be numbers in rows of equal length") from None


def _inputs(u: Any, steps: tuple[int, ...]) -> Any:
    array = _numbers(u, "u")
    if array.shape[:-1] != steps or not np.isfinite(array).all():
        wanted = ", ".join(map(str, (*steps, "inputs")))
        raise InputError(f"u has shape {array.shape}: give finite numbers of shape ({wanted})")
    return jnp.asarray(array, dtype=float)


def _positions(model: AbstractForecaster, q: Any) -> tuple[Any, bool]:
    """Checked positions as (N, samples, n), and whether they came batched."""
    n = model.manifold.size
    array = _numbers(q, "the positions")
    if array.ndim == 1 and n == 1:
        array = array[:, None]
    batched = array.ndim == 3
    array = array if batched else array[None]
    if array.ndim != 3 or array.shape[-1] != n:
        raise InputError(
            f"the model has {n} coordinate(s) ({', '.join(model.manifold.names)}), but the positions have shape "
            f"{np.shape(q)}: give (samples, {n})"
        )
    if array.shape[1] < MINIMUM_CONTEXT:
        raise InputError(f"a context of {array.shape[1]} sample(s) tells no velocity: give at least {MINIMUM_CONTEXT}")
    if not np.isfinite(array).all():
        trajectory, step, coordinate = np.argwhere(~np.isfinite(array))[0]
        raise InputError(
            f"position {model.manifold.names[coordinate]} is not a finite number at sample {step}"
            f"{f' of trajectory {trajectory}' if batched else ''}: remove or interpolate it"
        )
    return jnp.asarray(array, dtype=float), batched

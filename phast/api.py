"""Arrays in, arrays out: the whole job in three calls.

phast.enable_float64()
model = phast.learn(q, dt=0.05, coordinates=["theta:angle"], regime="partial", potential=phast.Cosine(9.81))
future = phast.forecast(model, q[0, :10], horizon=100)
d = phast.damping(model, theta)
"""

import dataclasses
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phast.components.damping import AbstractDamping
from phast.components.mass import AbstractMass, ConstantMass
from phast.components.parameter import Coefficient
from phast.components.potential import AbstractPotential
from phast.data.recording import Recording
from phast.data.trajectories import Trajectories, as_trajectories, refuse_turns
from phast.errors import InputError
from phast.estimation.forecaster import (
    AbstractForecaster,
    AbstractIdentifiable,
    Filtered,
    Phast,
    autoregressive,
    roll_out,
    takeover,
)
from phast.estimation.inputs import Held, held_everywhere, held_over
from phast.estimation.moving_horizon import ModelAware, StateEstimate
from phast.fitting import adaptation, networks, uncertainty
from phast.fitting.gradient import AbstractLoss, History, NextStepLoss, Settings, as_batch, fit
from phast.fitting.second_order import WINDOW, check_motion, made_passive, natural_window, sharpen
from phast.fitting.structure import Wanted, compose
from phast.fitting.uncertainty import Spread, calibrated

Regime = Literal["known", "partial", "unknown"]
MINIMUM_CONTEXT = 2
_DEFAULT_CONTEXT = 10
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
    potential: AbstractPotential | str | None = None,
    mass: AbstractMass | str = ConstantMass(1.0),  # noqa: B008 (immutable)
    damping: AbstractDamping | str | None = None,
    port: Sequence[Sequence[float]] | str | None = None,
    pairs: bool = False,
    context: int | str | None = None,
    base: Coefficient | None = None,
    bound: float | Literal["validated"] | None = None,
    preset: Literal["sharp", "paper"] = "sharp",
    passive: bool = False,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    loss: AbstractLoss = NextStepLoss(),  # noqa: B008 (immutable)
    seed: int = 0,
    checkpoint: str | os.PathLike | None = None,
    on_epoch: Callable[[History], None] = lambda history: None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> AbstractIdentifiable:
    """Learn a port-Hamiltonian model from positions.

    ``data`` is a :class:`Recording` (:func:`read`), :class:`Trajectories`, an array (samples, coordinates) or
    (trajectories, samples, coordinates), a DataFrame or a list of arrays. ``regime`` says what is known: ``"known"``
    needs ``potential`` and a ``damping`` law with coefficients to learn, ``"partial"`` a ``potential`` as template,
    ``"unknown"`` nothing. Each may be a component or a word (:mod:`phast.fitting.structure`): ``potential="cosine"``,
    ``mass="links"``, ``damping="viscous+coulomb"``. ``port`` is G, for data with inputs.

    ``preset="sharp"`` fits to second order (:mod:`phast.fitting.second_order`), in float64: call
    :func:`enable_float64` first. ``context`` is how many samples, or seconds (``"0.2 s"``), the model takes its state
    from. ``pairs`` says that the coordinates are points in the plane, x1, y1, x2, y2, …, that act on each other in
    pairs: V is then a free function of every distance. ``passive`` makes it forecast by steps along which energy
    cannot rise (:func:`~phast.fitting.second_order.passive_transition`).

    ``preset="paper"`` trains networks as the paper does, one in five trajectories (or windows of a long one) held out
    to select the model. ``base``, ``bound``, ``settings``, ``loss`` and ``checkpoint`` belong to it. ``bound`` is β̄ of
    Eq. 11; ``"validated"`` trains with several and keeps the one whose rollouts are best on what was held out.
    """
    if not isinstance(data, Trajectories | Recording) and dt is None:
        raise InputError("learn needs dt=…, the time between samples")
    if preset not in ("paper", "sharp"):
        raise InputError(f"unknown preset '{preset}': choose paper or sharp")
    trajectories = _trajectories(data, dt, coordinates)
    if preset == "sharp":
        if settings != Settings() or not (bound is base is checkpoint is None):
            raise InputError("base, bound, settings and checkpoint belong to preset='paper': leave them out, or add it")
        window = natural_window(trajectories) if isinstance(data, Recording) else WINDOW
        model = sharpen(
            compose(regime, Wanted(potential, mass, damping, port), trajectories, pairs=pairs),
            trajectories,
            seed=seed,
            context=_context_length(context, window, trajectories),
            window=window,
            on_stage=on_stage,
        )
        on_stage("judging its spread")
        model = calibrated(model, trajectories, seed=seed)
        return made_passive(model) if passive else model
    if any(isinstance(x, str) for x in (potential, mass, damping)) or not (port is context is None):
        raise InputError("words for components, port and context go with preset='sharp'")
    if trajectories.stretch is not None:
        raise InputError("the paper's observer knows even steps only: resample the recording, or use preset='sharp'")
    if passive or pairs:
        raise InputError("passive=True and pairs=True go with preset='sharp'")
    check_motion(trajectories)
    if bound == "validated":
        return _best_bound(
            lambda b: learn(
                trajectories,
                regime=regime,
                potential=potential,
                mass=mass,
                damping=damping,
                base=base,
                bound=b,
                preset=preset,
                settings=settings,
                loss=loss,
                seed=seed,
                on_epoch=on_epoch,
            ),
            hold_out(trajectories)[1],
            on_stage,
        )
    common = {"manifold": trajectories.manifold, "dt": trajectories.dt, "key": jax.random.key(seed)}
    if regime == "known":
        potential, damping = _given(potential, damping)
        model = networks.known(potential=potential, mass=mass, damping=damping, **common)
    elif regime == "partial":
        model = networks.partial(
            potential=_template(potential), mass=mass, damping=damping, base=base, bound=bound, **common
        )
    elif regime == "unknown":
        model = networks.unknown(damping=damping, base=base, bound=bound, **common)
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


BOUNDS = (0.1, 0.3, 1.0, 3.0, None)


def _best_bound(
    train: Callable[[float | None], AbstractIdentifiable], held_out: Trajectories, on_stage: Callable[[str], None]
) -> AbstractIdentifiable:
    """The model whose takeover rollouts on held-out data are best, over bounds β̄ on the damping strength.

    The next-step error cannot tell them apart: a damping that is too strong shows only as the forecast goes on.
    """
    context = min(10, held_out.length // 2)
    q = jnp.asarray(held_out.q, dtype=float)
    best, least = None, np.inf
    for bound in BOUNDS:
        on_stage(f"damping bound {bound or 'none'}")
        model = train(bound)
        rolled = roll_out(takeover, model, q[:, :context], held_out.length - context)
        error = float(jnp.mean(held_out.manifold.squared_error(rolled, q[:, context:])))
        if best is None or error < least:
            best, least = model, error
    return best


def _trajectories(data: Any, dt: float | None, coordinates: Sequence[str] | None) -> Trajectories:
    if isinstance(data, Recording):
        return data.trajectories()
    return data if isinstance(data, Trajectories) else as_trajectories(data, dt=dt, coordinates=coordinates)


def _context_length(context: int | str | None, window: int, data: Trajectories) -> int:
    if context is None:
        return min(max(_DEFAULT_CONTEXT, window // 4), data.length - 1)
    count = steps_in(context, data.dt)
    if not MINIMUM_CONTEXT <= count <= data.length:
        raise InputError(f"a context of {count} sample(s): give {MINIMUM_CONTEXT} to {data.length}")
    return count


def steps_in(duration: int | str, dt: float) -> int:
    """How many steps a duration has: a number of them, or a time such as ``"2 s"`` or ``"500 ms"``."""
    found = re.fullmatch(rf"\s*([0-9.eE+-]+)\s*({'|'.join(_SECONDS)}|)\s*", str(duration))
    try:
        value, unit = float(found[1]), found[2]
    except (TypeError, ValueError):
        raise InputError(f"'{duration}' is no duration: give steps, '200', or a time, '2 s', '500 ms'") from None
    count = value if not unit else value * _SECONDS[unit] / dt
    if not (0.5 <= count <= _MOST_STEPS and (unit or count == round(count))):
        raise InputError(f"'{duration}' is no whole number of steps from one to {_MOST_STEPS:g} (one lasts {dt:g} s)")
    return round(count)


_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_MOST_STEPS = 1e9


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
    horizon: int | str,
    *,
    mode: Literal["autoregressive", "takeover"] = "autoregressive",
    u: Any = None,
    past: Any = None,
) -> np.ndarray:
    """``horizon`` configurations after ``context``: (samples, n) -> (horizon, n), or batched (N, samples, n).

    A :class:`Recording` is forecast from the end of each of its pieces. ``horizon`` is in steps, or a time: ``"2 s"``.
    ``u``, where the model has inputs, holds the known inputs of the ``horizon`` steps, and ``past`` those that acted
    between the samples of the context. A context that the model cannot explain is forecast from a smoother's state, and
    a warning says so.
    """
    context, batched, before = _context(model, context, past)
    horizon = _horizon(model, horizon)
    if mode not in ("autoregressive", "takeover"):
        raise InputError(f"unknown forecast mode '{mode}': choose autoregressive or takeover")
    if mode == "takeover" and not isinstance(model, AbstractIdentifiable):
        raise InputError(f"{type(model).__name__} has no physical state to take over: use mode='autoregressive'")
    inputs = _inputs(model, u, context, horizon, batched, "u")
    if isinstance(model, ModelAware):
        warn_of_fallbacks(model, context, before, batched)
    rollout = takeover if mode == "takeover" else autoregressive
    future = roll_out(rollout, model, context, horizon, inputs, before)
    return np.asarray(future if batched else future[0])


def spread(
    model: AbstractForecaster,
    context: Any,
    horizon: int | str,
    *,
    u: Any = None,
    past: Any = None,
) -> Spread:
    """A forecast and one standard deviation around it: what data and context leave open
    (:mod:`phast.fitting.uncertainty`)."""
    if not isinstance(model, ModelAware):
        raise InputError(f"a {type(model).__name__} gives no spread: learn with preset='sharp'")
    context, batched, before = _context(model, context, past)
    horizon = _horizon(model, horizon)
    inputs = _inputs(model, u, context, horizon, batched, "u")
    found = uncertainty.spread(model, context, horizon, inputs, before)
    return found if batched else Spread(*(part[0] for part in found))


def _horizon(model: AbstractForecaster, horizon: int | str) -> int:
    if isinstance(model, AbstractIdentifiable):
        return steps_in(horizon, model.dt)
    if isinstance(horizon, str):
        raise InputError(f"a {type(model).__name__} counts no time: give the horizon in steps, not '{horizon}'")
    return steps_in(horizon, 1.0)


def _context(model: AbstractForecaster, context: Any, past: Any) -> tuple[Any, bool, Any]:
    """Checked positions, whether they came batched, and what acted between them."""
    if not isinstance(context, Recording):
        positions, batched = _positions(model, context)
        return positions, batched, _inputs(model, past, positions, positions.shape[1] - 1, batched, "past")
    if not isinstance(model, ModelAware):
        raise InputError("a recording is forecast by a sharp model: give a Phast its positions as an array")
    if past is not None:
        raise InputError("a recording holds its own inputs: leave past=… out")
    ends = fitting(model, context).ends(model.window)
    return _positions(model, ends.q)[0], True, held_over(ends)


def input_count(model: AbstractIdentifiable) -> int:
    """How many inputs the system has; where it names no port, one for each coordinate."""
    return model.learned_system().input_count(model.manifold.size)


def fitting(model: ModelAware, recording: Recording) -> Recording:
    """The recording as this model counts time and inputs, or why it cannot."""
    if recording.manifold != model.manifold:
        raise InputError(
            f"the recording has the coordinates {', '.join(recording.manifold.names)}, "
            f"but the model {', '.join(model.manifold.names)}"
        )
    given, wanted = len(recording.inputs), input_count(model)
    if given != wanted and (given or model.core.system.port is not None):
        raise InputError(f"the recording has {given} input(s), but the model {wanted}: name them with inputs=…")
    if not 0.2 < recording.dt / model.dt < 5.0:
        raise InputError(f"sampled every {recording.dt:g}, but the model learned at {model.dt:g}: resample it")
    return dataclasses.replace(recording, dt=model.dt)


def estimate(model: AbstractForecaster, context: Any, *, past: Any = None) -> StateEstimate:
    """The state at the end of a context with its covariance, as numpy arrays; batched where the context is.

    ``fell_back`` marks contexts that the model cannot explain: a smoother's state stands there.
    """
    if not isinstance(model, ModelAware):
        raise InputError(f"a {type(model).__name__} gives no covariance: learn with preset='sharp'")
    positions, batched, before = _context(model, context, past)
    found = _estimate_all(model, positions, before)
    return StateEstimate(*(np.asarray(part if batched else part[0]) for part in found))


@eqx.filter_jit
def _estimate_all(model: ModelAware, contexts, past) -> StateEstimate:
    return jax.vmap(model.estimate)(contexts, past)


def warn_of_fallbacks(model: ModelAware, contexts: Any, past: Any, batched: bool = True) -> None:
    """Say which contexts a model cannot explain."""
    lost = np.flatnonzero(np.asarray(_estimate_all(model, contexts, past).fell_back))
    if len(lost):
        which = (
            f"context {lost[0]}{f' and {len(lost) - 1} more' if len(lost) > 1 else ''}" if batched else "the context"
        )
        warnings.warn(
            f"the model cannot explain {which} (constant, or with a jump?): forecast from a smoothed state instead",
            RuntimeWarning,
            stacklevel=3,
        )


def adapt(
    model: AbstractForecaster, context: Any, coefficients: Sequence[str], *, past: Any = None, tolerance: float = 0.3
) -> ModelAware:
    """The model with the named coefficients refined on one context: :func:`phast.fitting.adaptation.adapt`."""
    if not isinstance(model, ModelAware):
        raise InputError(f"a {type(model).__name__} cannot be adapted to a context: learn with preset='sharp'")
    positions, batched = _positions(model, context)
    if batched:
        raise InputError("adapt takes one context (samples, n): each has coefficients of its own")
    before = _inputs(model, past, positions, positions.shape[1] - 1, False, "past")
    return adaptation.adapt(
        model, positions[0], coefficients, past=None if before is None else before[0], tolerance=tolerance
    )


def filter_states(
    model: Phast | ModelAware,
    q: Any,
    *,
    measurement_noise: float | None = None,
    process_noise: float | None = None,
    u: Any = None,
) -> Filtered | list[Filtered]:
    """Predict–correct along measured positions: states, covariances and innovations as numpy arrays.

    Of a :class:`Recording`, one for each of its pieces, their inputs and uneven steps reckoned with.

    A sharp model fits each state to the last positions; ``measurement_noise`` overrides what it learned of the noise.
    The paper's is filtered by an extended Kalman filter (standard deviations of 1e-3 each unless given).
    """
    if isinstance(q, Recording):
        given = {"measurement_noise": measurement_noise, "process_noise": process_noise}
        if not isinstance(model, ModelAware):
            return [filter_states(model, piece.q, u=piece.u, **given) for piece in q.pieces]
        pieces = (held_everywhere(piece) for piece in fitting(model, q).singly())
        return [filter_states(model, positions, u=held, **given) for positions, held in pieces]
    positions, batched = _positions(model, q)
    if not all(x is None or x > 0 for x in (measurement_noise, process_noise)):
        raise InputError("measurement_noise and process_noise are standard deviations: give positive numbers")
    inputs = _inputs(model, u, positions, positions.shape[1], batched, "u")
    if isinstance(model, ModelAware):
        if process_noise is not None:
            raise InputError("a sharp model trusts its physics over its window: process_noise does not apply")
        if measurement_noise is not None:
            model = dataclasses.replace(model, noise=measurement_noise)
        filtered = _slide_all(model, positions, inputs)
    else:
        filtered = _filter_all(model, positions, inputs, measurement_noise or 1e-3, process_noise or 1e-3)
    return Filtered(*(np.asarray(part if batched else part[0]) for part in filtered))


@eqx.filter_jit
def _slide_all(model: ModelAware, positions, inputs) -> Filtered:
    return jax.vmap(model.filter)(positions, inputs)


@eqx.filter_jit
def _filter_all(model: Phast, positions, inputs, measurement_noise: float, process_noise: float) -> Filtered:
    def one(q, u):
        return model.filter(q, u, measurement_noise=measurement_noise, process_noise=process_noise)

    return jax.vmap(one)(positions, inputs)


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


def _inputs(model: AbstractForecaster, u: Any, positions: Any, steps: int, batched: bool, name: str) -> Any:
    """Checked inputs as (N, steps, inputs); None where there are none."""
    if u is None or isinstance(u, Held):
        return u
    array = _numbers(u, name)
    width = (input_count(model),) if isinstance(model, AbstractIdentifiable) else array.shape[-1:]
    wanted = (positions.shape[0], steps, *width) if batched else (steps, *width)
    if array.shape != wanted or not np.isfinite(array).all():
        raise InputError(f"{name} has shape {array.shape}: give finite numbers of shape {wanted}")
    return jnp.asarray(array if batched else array[None], dtype=float)


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
    refuse_turns(array, model.manifold)
    return jnp.asarray(array, dtype=float), batched

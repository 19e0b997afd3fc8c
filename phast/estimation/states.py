"""States of contexts and recordings: what a model makes of measured positions."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from phast.data.manifold import Manifold
from phast.data.recording import Recording
from phast.data.trajectories import Trajectories
from phast.errors import InputError, counted
from phast.estimation.forecaster import AbstractFilter, AbstractIdentifiable, ExtendedKalmanFilter, Filtered
from phast.estimation.inputs import held_everywhere
from phast.estimation.moving_horizon import ModelAware, StateEstimate


def input_count(model: AbstractIdentifiable) -> int:
    """How many inputs the system has; where it names no port, one for each coordinate."""
    return model.learned_system().input_count(model.manifold.size)


def matched(model: AbstractIdentifiable, recording: Recording) -> Recording:
    """The recording as this model counts time and inputs, or why it cannot."""
    check_columns(model, recording.manifold, len(recording.inputs))
    if not isinstance(model, ModelAware):
        if not recording.even or abs(recording.dt - model.dt) > 1e-3 * model.dt:
            raise InputError(
                f"sampled every {recording.dt:g}, but the model was trained at {model.dt:g}: make the steps even"
            )
        return recording
    check_step(model, recording.dt)
    return dataclasses.replace(recording, dt=model.dt)


def check_columns(model: AbstractIdentifiable, manifold: Manifold, inputs: int) -> None:
    """Refuse other coordinates, or another number of inputs, than the model has."""
    if manifold != model.manifold:
        found, wanted = manifold.coordinates, model.manifold.coordinates
        raise InputError(
            f"the recording has the coordinates {', '.join(found)}, but the model {', '.join(wanted)}: name the "
            "model's with positions=… (--positions), or rename the columns"
        )
    wanted = input_count(model)
    if isinstance(model, ModelAware) and inputs != wanted and (inputs or model.core.system.port is not None):
        raise InputError(
            f"the recording has {counted(inputs, 'input')}, but the model {wanted}: name the columns with inputs=… "
            "(--inputs)"
        )


def check_step(model: AbstractIdentifiable, dt: float) -> None:
    """Refuse samples that are much closer, or much farther apart, than those the model was fitted to."""
    if not 0.2 < dt / model.dt < 5.0:
        raise InputError(f"sampled every {dt:g}, but the model was fitted at {model.dt:g}: resample it")


@eqx.filter_jit
def _estimate_all(model: ModelAware, contexts, past) -> StateEstimate:
    return jax.vmap(model.estimate)(contexts, past)


def warn_of_fallbacks(model: ModelAware, contexts: Any, past: Any) -> None:
    """Say which contexts a model cannot explain."""
    lost = np.flatnonzero(np.asarray(_estimate_all(model, contexts, past).fell_back))
    if len(lost):
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        which = "the context" if len(contexts) == 1 else f"context {lost[0]}{more}"
        warnings.warn(
            f"the model cannot explain {which} (constant, with a jump, or in other units?): forecast from a smoothed "
            "state instead",
            RuntimeWarning,
            stacklevel=3,
        )


def state_filter(
    model: AbstractIdentifiable,
    length: int | None = None,
    *,
    noise: float | None = None,
    process_noise: float | None = None,
) -> AbstractFilter:
    """What estimates states from positions so far: of a recording of ``length`` samples, or without an end.

    A second-order model fits each state to the last positions; ``noise`` overrides what it learned of a position's
    standard deviation. A trained one is filtered by an extended Kalman filter (1e-3 each unless given).
    """
    if not all(x is None or x > 0 for x in (noise, process_noise)):
        raise InputError("noise and process noise are standard deviations: give positive numbers")
    if not isinstance(model, ModelAware):
        noises = (jnp.asarray(x or 1e-3, dtype=float) for x in (noise, process_noise))
        return ExtendedKalmanFilter(model.core, model.manifold, model.dt, *noises)
    if process_noise is not None:
        raise InputError("this model trusts its physics over its window: leave the process noise out")
    model = model if noise is None else dataclasses.replace(model, noise=noise)
    return model.state_filter(length)


@eqx.filter_jit
def _filter_all(chosen: AbstractFilter, positions, inputs) -> Filtered:
    return jax.vmap(chosen.along)(positions, inputs)


def filtered(
    model: AbstractIdentifiable,
    recording: Recording,
    *,
    noise: float | None = None,
    process_noise: float | None = None,
) -> list[Filtered]:
    """States, covariances and innovations along each piece, from every measurement so far."""
    pieces = matched(model, recording).singly()
    filters = (state_filter(model, piece.length, noise=noise, process_noise=process_noise) for piece in pieces)
    return [_first(_filter_all(chosen, *_batched(piece))) for chosen, piece in zip(filters, pieces, strict=True)]


def _batched(piece: Trajectories) -> tuple[Any, Any]:
    """Positions as the model computes, and what is held from each of them on."""
    return jnp.asarray(piece.q, dtype=float), held_everywhere(piece)


def _first(found: Any) -> Any:
    return type(found)(*(np.asarray(part[0]) for part in found))


def estimated(model: ModelAware, contexts: Any, past: Any) -> StateEstimate:
    """The state at the end of each context with its covariance."""
    return StateEstimate(*map(np.asarray, _estimate_all(model, contexts, past)))

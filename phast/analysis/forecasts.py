"""Forecasts of a recording: where they begin, what acts on them, how they compare with what was measured next.

    recording  ->  origins (the end, the start, everywhere)  ->  contexts, pasts, futures  ->  forecasts and spread

A forecast within the recording is driven by the measured inputs over the measured steps; one from its end steps evenly,
under inputs that are given, or held.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from phast.data.manifold import Manifold
from phast.data.recording import Piece, Recording
from phast.data.trajectories import refuse_turns
from phast.errors import InputError
from phast.estimation.forecaster import AbstractIdentifiable, autoregressive, roll_out, takeover
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.states import matched, warn_of_fallbacks
from phast.fitting.adaptation import adapt
from phast.fitting.uncertainty import spread

_SLOPE = 5  # samples from which the constant velocity is taken


class Asked(NamedTuple):
    """What is to be forecast. ``coming`` are the inputs after the end, ``hold`` says that the last ones stay."""

    origin: Literal["end", "start", "everywhere"] = "end"
    context: int | None = None
    horizon: int = 100
    mode: Literal["autoregressive", "takeover"] = "autoregressive"
    adapted: tuple[str, ...] = ()
    coming: Float[np.ndarray, "contexts H m"] | None = None
    hold: bool = False


class Context(NamedTuple):
    """A place to forecast from: the samples up to it, what acted between them, and what is known of what follows."""

    label: str
    t: Float[np.ndarray, " K"]
    q: Float[np.ndarray, "K n"]
    past: Held
    future: Held
    after: Float[np.ndarray, " H"]
    truth: Float[np.ndarray, "known n"]


@dataclasses.dataclass(frozen=True)
class Foresight:
    """Forecasts (B, H, n) with their spread, where the model knows it, and what was measured instead."""

    contexts: Sequence[Context]
    q: Float[np.ndarray, "B H n"]
    deviation: Float[np.ndarray, "B H n"] | None
    manifold: Manifold
    mode: str

    @property
    def labels(self) -> list[str]:
        return [context.label for context in self.contexts]

    def summary(self, factors: float | Float[np.ndarray, " n"] = 1.0) -> dict[str, Any]:
        """Errors over the steps that were measured, beside those of standing still and of constant velocity.

        ``factors`` is how many of the file's units make one of the computation's.
        """
        known = min(len(context.truth) for context in self.contexts)
        content: dict[str, Any] = {"trajectories": len(self.contexts), "horizon": self.q.shape[1], "mode": self.mode}
        content["steps_compared"] = known
        if known:
            content |= self._errors(factors)
        return content

    def off(self) -> dict[str, Float[np.ndarray, "B known n"]]:
        """Errors over the steps that were measured: of the forecasts, of standing still and of constant velocity."""
        known = min(len(context.truth) for context in self.contexts)
        truth = jnp.asarray(np.stack([context.truth[:known] for context in self.contexts]))
        paths = {
            "model": self.q[:, :known],
            "standing still": np.stack([np.tile(c.q[-1], (known, 1)) for c in self.contexts]),
            "constant velocity": np.stack([_straight(c, known) for c in self.contexts]),
        }
        return {name: np.asarray(self.manifold.difference(jnp.asarray(q), truth)) for name, q in paths.items()}

    def _errors(self, factors: float | Float[np.ndarray, " n"]) -> dict[str, float]:
        own, still, moving = (factors * off for off in self.off().values())
        told = {
            "mse": float(np.mean(own**2)),
            "mse_median": float(np.median(np.mean(own**2, axis=(1, 2)))),
            "rms": float(np.sqrt(np.mean(own**2))),
            "rms_final": float(np.sqrt(np.mean(own[:, -1] ** 2))),
            "rms_persistence": float(np.sqrt(np.mean(still**2))),
            "rms_constant_velocity": float(np.sqrt(np.mean(moving**2))),
        }
        if self.deviation is not None:
            within = np.abs(own) / (factors * self.deviation[:, : own.shape[1]])
            told["within_one_deviation"] = float(np.mean(within <= 1.0))
            told["within_two_deviations"] = float(np.mean(within <= 2.0))
        return told


def _straight(context: Context, known: int) -> Float[np.ndarray, "known n"]:
    """Constant velocity: the slope of the last samples."""
    back = min(_SLOPE, len(context.t))
    t, q = context.t[-back:], context.q[-back:]
    slope = np.polyfit(t - t[-1], q, 1)[0]
    return q[-1] + slope * (context.after[:known, None] - t[-1])


# --- where to begin --------------------------------------------------------------------------------------------------


def foresee(model: AbstractIdentifiable, recording: Recording, asked: Asked) -> Foresight:
    """Forecast ``recording`` as asked, with a spread where the model was fitted to second order."""
    recording = matched(model, recording)
    aware = isinstance(model, ModelAware)
    count = asked.context or (model.window if aware else 10)
    model = dataclasses.replace(model, window=count) if aware else model
    contexts = _contexts(recording, asked, count)
    refuse_turns(np.stack([c.q for c in contexts]), recording.manifold)
    if not asked.adapted:
        return _joint(model, contexts, asked, recording.manifold)
    if not aware:
        raise InputError(f"a {type(model).__name__} cannot be adapted to a context: fit with method=SecondOrder()")
    each = [_joint(_adapted(model, c, asked.adapted), [c], asked, recording.manifold) for c in contexts]
    deviation = None if each[0].deviation is None else np.concatenate([e.deviation for e in each])
    return Foresight(contexts, np.concatenate([e.q for e in each]), deviation, recording.manifold, asked.mode)


def _adapted(model: ModelAware, context: Context, names: Sequence[str]) -> ModelAware:
    return adapt(model, jnp.asarray(context.q), names, past=_nothing_as_none(context.past))


def _contexts(recording: Recording, asked: Asked, count: int) -> list[Context]:
    short = [piece.label for piece in recording.pieces if len(piece.t) < count]
    if len(short) == len(recording.pieces) or (short and asked.origin != "everywhere"):
        shortest = min(len(piece.t) for piece in recording.pieces)
        raise InputError(
            f"trajectory {short[0]} of {shortest} samples is shorter than the context of {count}: lower --context or "
            "give a longer one"
        )
    contexts = [
        _context(recording, k, last, asked, count)
        for k, piece in enumerate(recording.pieces)
        for last in _origins(len(piece.t), asked, count)
    ]
    if not contexts:
        raise InputError(f"no piece has {count + asked.horizon} samples to forecast within: lower --horizon")
    return contexts


def _origins(length: int, asked: Asked, count: int) -> Sequence[int]:
    """The places of the last samples of contexts in a piece."""
    if asked.origin == "end":
        return [length - 1]
    if asked.origin == "start":
        return [count - 1]
    return range(count - 1, length - asked.horizon, max(1, asked.horizon // 2))


def _context(recording: Recording, place: int, last: int, asked: Asked, count: int) -> Context:
    piece = recording.pieces[place]
    before, after = slice(last - count + 1, last + 1), slice(last, last + asked.horizon)
    steps = None if recording.even else np.diff(piece.t) / recording.dt
    past = Held(*(None if x is None else jnp.asarray(x[last - count + 1 : last]) for x in (piece.u, steps)))
    truth = piece.q[last + 1 : last + 1 + asked.horizon]
    even = piece.t[last] + recording.dt * np.arange(1, asked.horizon + 1)
    label = piece.label if asked.origin != "everywhere" else f"{piece.label} at {piece.t[last]:g}"
    if asked.origin == "end":
        return Context(label, piece.t[before], piece.q[before], past, Held(_coming(piece, place, asked)), even, truth)
    if len(truth) < asked.horizon and (piece.u is not None or steps is not None):
        raise InputError(
            f"trajectory {piece.label} ends {len(truth)} samples after the context: lower --horizon to that"
        )
    future = Held(*(None if x is None else jnp.asarray(x[after]) for x in (piece.u, steps)))
    times = piece.t[last + 1 : last + 1 + asked.horizon] if len(truth) == asked.horizon else even
    return Context(label, piece.t[before], piece.q[before], past, future, times, truth)


def _coming(piece: Piece, place: int, asked: Asked) -> jax.Array | None:
    """The inputs after the end of a piece."""
    if piece.u is None:
        return None
    if asked.coming is not None:
        return jnp.asarray(asked.coming[place])
    if asked.hold:
        return jnp.tile(jnp.asarray(piece.u[-1]), (asked.horizon, 1))
    raise InputError(
        "a driven system needs the inputs to come: give them with inputs=… (--future FILE), hold the last with "
        "hold=True (--hold), or forecast within the recording with start='everywhere' (--from everywhere)"
    )


# --- forecasting -----------------------------------------------------------------------------------------------------


def _joint(model: AbstractIdentifiable, contexts: Sequence[Context], asked: Asked, manifold: Manifold) -> Foresight:
    q = jnp.asarray(np.stack([context.q for context in contexts]))
    past, future = (
        _nothing_as_none(jax.tree.map(lambda *x: jnp.stack(x), *(getattr(context, name) for context in contexts)))
        for name in ("past", "future")
    )
    if isinstance(model, ModelAware):
        warn_of_fallbacks(model, q, past)
    if isinstance(model, ModelAware) and model.evidence is not None:
        told = spread(model, q, asked.horizon, future, past)
        return Foresight(contexts, told.q, told.deviation, manifold, asked.mode)
    rollout = takeover if asked.mode == "takeover" else autoregressive
    q = q.astype(jnp.result_type(float))
    return Foresight(
        contexts, np.asarray(roll_out(rollout, model, q, asked.horizon, future, past)), None, manifold, asked.mode
    )


def _nothing_as_none(held: Held) -> Held | None:
    return held if eqx.filter(held, eqx.is_array) != Held(None, None) else None

"""States of a running system, one measurement at a time, in the units of the user's files.

Each answer costs the same, however long the stream: the filter has a cache of constant size, and its step is one
program that is compiled before the first sample.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.data.manifold import TWO_PI
from phast.data.recording import EVEN, GAP, SHORTEST
from phast.data.trajectories import Numbers
from phast.data.units import Units
from phast.errors import FitError, InputError, Reason, counted
from phast.estimation.forecaster import AbstractFilter, AbstractIdentifiable
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.states import check_step, state_filter


@dataclasses.dataclass(frozen=True, eq=False)
class StreamedState:
    """What is known after a measurement.

    ``deviation`` is the standard deviation of (q, p); ``innovation`` is by how much the position differed from its
    prediction. ``restarted`` says that the filter knew nothing before: at the first sample, or after a gap.
    """

    t: float
    q: Float[np.ndarray, " n"]
    p: Float[np.ndarray, " n"]
    deviation: Float[np.ndarray, " twice_n"]
    innovation: Float[np.ndarray, " n"]
    restarted: bool


class StateStream:
    """A filter at work: :meth:`update` takes a measured position and returns the state then.

    The first samples give what there is: the first its position at rest, with a deviation as large as that guess is
    vague, and after ``window`` samples all are used. Where steps are even, states are those of
    :meth:`phast.Fitted.filter` along the whole recording. Made by :meth:`phast.Fitted.stream`.
    """

    def __init__(
        self,
        model: AbstractIdentifiable,
        units: Units,
        inputs: tuple[str, ...],
        *,
        noise: float | None = None,
        process_noise: float | None = None,
    ):
        self._units, self._inputs = units, inputs
        self._circles = np.asarray(units.manifold.circles)
        self._clock, self._cache = _Clock(model), None
        self._last = np.zeros(units.manifold.size)  # position, angles unwrapped, in the units of the computation
        self._double = bool(jax.config.read("jax_enable_x64"))
        chosen = state_filter(model, noise=noise, process_noise=process_noise)
        self._start, self._update = _compiled(chosen, self._last, self._held(np.zeros(len(inputs)), 1.0))

    def restart(self) -> None:
        """Forget all samples: the next one belongs to another motion."""
        self._cache = None

    def update(self, q: Numbers, u: Numbers | None = None, *, t: float | None = None) -> StreamedState:
        """The state after one more measured position.

        ``u`` holds the inputs that acted since the last sample; the first sample needs none. ``t`` is the time of this
        sample, one step after the last if left out. After a gap longer than five steps the filter starts again.
        """
        y, acted = self._position(q), self._acted(u)
        stretch = self._clock.tick(t, fresh=self._cache is None)
        restarted, held = stretch is None, self._held(acted, 1.0 if stretch is None else stretch)
        y = y if restarted else np.where(self._circles, _nearest_turn(y, self._last), y)
        with jax.enable_x64(self._double):
            cache = self._start(y, held) if restarted else self._cache
            self._cache, known = self._update(cache, y, held)
        self._last = y
        return self._said(np.asarray(known, dtype=float), restarted)

    def _said(self, known: Float[np.ndarray, " numbers"], restarted: bool) -> StreamedState:
        """What the program returned, in the units of the file."""
        if not np.isfinite(known).all():
            raise FitError(Reason.UNSTABLE)
        n, factors = len(self._last), self._units.factors
        q, p, innovation = known[:n] * factors, known[n : 2 * n] * factors, known[4 * n :] * factors
        deviation = known[2 * n : 4 * n] * np.tile(factors, 2)
        return StreamedState(self._clock.now, q, p, deviation, innovation, restarted)

    def _position(self, q: Numbers) -> Float[np.ndarray, " n"]:
        """A position in the units of the computation."""
        n, names = len(self._last), ", ".join(self._units.manifold.names)
        return self._units.from_file(_numbers(q, n, f"the position has {{}}: give {n} ({names})"))

    def _acted(self, u: Numbers | None) -> Float[np.ndarray, " m"]:
        """The inputs since the last sample."""
        count, names = len(self._inputs), ", ".join(self._inputs)
        if u is None and self._cache is None:
            return np.zeros(count)
        given = np.zeros(0) if u is None else u
        return _numbers(given, count, f"the inputs have {{}}: give the {count} that acted since ({names or 'none'})")

    def _held(self, u: Float[np.ndarray, " m"], stretch: float) -> Held:
        """For the compiled program, which takes arrays of NumPy as they are."""
        return Held(cast("Array", u) if len(u) else None, cast("Array", np.asarray(stretch)))


def _nearest_turn(angle: Float[np.ndarray, " n"], last: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """The same angle, less than half a turn from the last one."""
    return angle + TWO_PI * np.round((last - angle) / TWO_PI)


def _numbers(given: Numbers, count: int, wrong: str) -> Float[np.ndarray, " count"]:
    """So many finite numbers, or what is wrong with them."""
    try:
        x = np.asarray(given, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        raise InputError(f"{given!r} holds something that is no number") from None
    if len(x) != count:
        raise InputError(wrong.format(counted(len(x), "number")))
    if not np.isfinite(x).all():
        raise InputError(f"{given!r} is not finite: leave such samples out")
    return x


class _Clock:
    """Times of samples: how long each step lasts beside the model's own, and where there is a gap."""

    def __init__(self, model: AbstractIdentifiable):
        self._model, self.dt = model, model.dt
        self.now = self._start = 0.0
        self._begun, self._step = False, model.dt
        self._steps = self._gaps = 0  # since the last gap; gaps in a row

    def tick(self, t: float | None, *, fresh: bool) -> float | None:
        """The length of the step that led to a sample, in steps of the model; None where the filter has to begin."""
        now = self.now + (self.dt if self._begun else 0.0) if t is None else float(t)
        step = now - self.now
        if not (math.isfinite(now) and (fresh or step > 0.0)):
            raise InputError(f"time goes from {self.now:g} to {now:g}: give samples in order, one for each time")
        if fresh or step > GAP * max(self.dt, self._step):
            self._begin(now, gap=not fresh)
            return None
        self.now, self._step, self._gaps, self._steps = now, step, 0, self._steps + 1
        if self._steps == SHORTEST:
            check_step(self._model, (now - self._start) / self._steps)
        return self._stretch(step / self.dt)

    def _stretch(self, stretch: float) -> float:
        """One where it is within what clocks do; a model that was trained takes no other steps."""
        if abs(stretch - 1.0) <= EVEN:
            return 1.0
        if not isinstance(self._model, ModelAware):
            step = stretch * self.dt
            raise InputError(f"a step of {step:g}, but the model was trained at {self.dt:g}: make the steps even")
        return stretch

    def _begin(self, now: float, *, gap: bool) -> None:
        self._gaps = self._gaps + 1 if gap and not self._steps else 0
        if self._gaps == SHORTEST:
            check_step(self._model, now - self.now)
        self.now = self._start = now
        self._step, self._steps, self._begun = self.dt, 0, True


def _compiled(chosen: AbstractFilter, y: np.ndarray, held: Held) -> tuple[Callable, Callable]:
    """The first cache, and one step of a filter, as programs that take NumPy arrays.

    The numbers of a model are arguments, so that models of one structure share their programs on disk.
    """
    arrays, static = eqx.partition(chosen, eqx.is_array)
    leaves, tree = jax.tree.flatten(arrays)

    def of(leaves) -> AbstractFilter:
        return eqx.combine(jax.tree.unflatten(tree, leaves), static)

    def begin(leaves, y, held):
        return of(leaves).start(y, held)

    def step(leaves, cache, y, held):
        cache, known = of(leaves).update(cache, y, held)
        deviation = jnp.sqrt(jnp.diagonal(known.covariance))
        return cache, jnp.concatenate([known.q, known.p, deviation, known.innovation])

    y, held = jax.tree.map(jnp.asarray, (y, held))
    start = jax.jit(begin).lower(leaves, y, held).compile()
    update = jax.jit(step).lower(leaves, start(leaves, y, held), y, held).compile()
    return functools.partial(start, leaves), functools.partial(update, leaves)

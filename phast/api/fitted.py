"""A fitted model: forecasts, states, physics, files and pages."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from phast.analysis.forecasts import Asked, foresee
from phast.api.forecast import Forecast
from phast.api.identification import Identification
from phast.api.states import States
from phast.api.stream import StateStream
from phast.components.parameter import parameter_count
from phast.control.export.names import format_of
from phast.control.wanted import DRAWS, Wanted
from phast.data.durations import steps_in
from phast.data.reading import warn_of_degrees
from phast.data.recording import Piece, Recording
from phast.data.trajectories import Numbers, Trajectories
from phast.data.units import Units
from phast.errors import FitError, InputError, Reason, counted
from phast.estimation.forecaster import AbstractIdentifiable
from phast.estimation.inputs import held_over
from phast.estimation.moving_horizon import ModelAware, StateEstimate
from phast.estimation.states import check_columns, estimated, filtered, matched
from phast.fitting import archives, checkpoint
from phast.fitting.adaptation import adapt
from phast.fitting.progress import Callback, logged
from phast.fitting.second_order import MINIMUM_CONTEXT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from phast.api.controlled import Controlled
    from phast.control.shaping import EnergyCasimir

Positions = Recording | Trajectories | Numbers


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """A model that was fitted to a recording. Results are in the units of the recording that they are about.

    ``model`` is the forecaster itself, an Equinox module in the units of the computation (angles in radians).
    ``recording`` is what it was fitted to; a model that comes from a file has none. ``about`` says how it was made.
    """

    model: AbstractIdentifiable
    units: Units
    inputs: tuple[str, ...] = ()
    recording: Recording | None = None
    about: dict[str, Any] = dataclasses.field(default_factory=dict)

    # --- what comes next ---------------------------------------------------------------------------------------------

    def forecast(
        self,
        horizon: int | str = 100,
        after: Positions | None = None,
        *,
        start: Literal["end", "start", "everywhere"] = "end",
        context: int | str | None = None,
        past: Numbers | None = None,
        inputs: Numbers | None = None,
        hold: bool = False,
        mode: Literal["autoregressive", "takeover"] = "autoregressive",
        adapt: Sequence[str] = (),
    ) -> Forecast:
        """What comes next: ``horizon`` steps, or a time such as ``"2 s"``, after the end of a recording or an array.

        ``after`` is the recording of the fit unless another one, or an array (samples, n) or (contexts, samples, n) in
        the units of the fit, is given. ``start="start"`` begins after the first samples and ``"everywhere"`` all along,
        to compare with what was measured. ``context`` is how many samples, or seconds, a state is taken from; of an
        array, as many as there are, up to those that the model uses. A driven model needs what acts on it: ``inputs``
        (a number, one for each input, or an array (horizon, inputs)), or ``hold=True`` to hold the last ones; ``past``
        holds those between the samples of an array. ``adapt`` names coefficients to be refined on each context.
        """
        if start not in ("end", "start", "everywhere"):
            raise InputError(f"unknown start '{start}': choose end, start or everywhere")
        if mode not in ("autoregressive", "takeover"):
            raise InputError(f"unknown forecast mode '{mode}': choose autoregressive or takeover")
        recording, single = self._recorded(after, past)
        steps, dt = steps_in(horizon, self.model.dt), self.model.dt
        asked = Asked(
            start,
            self._samples(after, recording) if context is None else steps_in(context, dt),
            steps,
            mode,
            tuple(adapt),
            self._coming(inputs, hold, start, (len(recording.pieces), steps)),
            hold,
        )
        with self._precision():
            seen = foresee(self.model, recording, asked)
        if not np.isfinite(seen.q).all():
            raise FitError(Reason.UNSTABLE)
        return Forecast.of(seen, recording.units, single=single and start != "everywhere")

    def _samples(self, after: Positions | None, recording: Recording) -> int | None:
        """How many samples of an array make a context; what a model needs of a recording is left to it."""
        if after is None or isinstance(after, Recording | Trajectories):
            return None
        given = len(recording.pieces[0].t)
        return min(self.model.window, given) if isinstance(self.model, ModelAware) else given

    def _coming(self, inputs: Numbers | None, hold: bool, start: str, shape: tuple[int, int]) -> np.ndarray | None:
        """The inputs of the steps to come, (contexts, steps, inputs)."""
        if inputs is None and not hold:
            return None
        if not self.inputs:
            raise InputError("this model was fitted without inputs: leave inputs and hold out (--future, --hold)")
        if start != "end":
            raise InputError(f"start='{start}' uses the measured inputs: leave inputs and hold out")
        if inputs is None:
            return None
        if hold:
            raise InputError("inputs and hold=True were both given: give one of them")
        wanted, given = (*shape, len(self.inputs)), np.asarray(inputs, dtype=float)
        given = given[..., : wanted[1], :] if given.ndim > 1 else given  # a file may go on for longer
        if given.shape not in ((), *(wanted[k:] for k in range(3))) or not np.isfinite(given).all():
            raise InputError(
                f"inputs have shape {given.shape}: give a finite number, one for each of {', '.join(self.inputs)}, or "
                f"an array {wanted[1:]}"
            )
        return np.broadcast_to(given, wanted)

    def score(self, recording: Recording, horizon: int | str = 10) -> float:
        """1 - (rms forecast error / rms change)²: one is perfect, zero is standing still, averaged over coordinates."""
        off = self.forecast(horizon, recording, start="everywhere").seen.off()
        own, still = (np.mean(off[name] ** 2, axis=(0, 1)) for name in ("model", "standing still"))
        return float(np.mean(1.0 - own / np.maximum(still, np.finfo(float).tiny)))

    # --- states ------------------------------------------------------------------------------------------------------

    def filter(
        self, recording: Positions | None = None, *, noise: float | None = None, process_noise: float | None = None
    ) -> States:
        """Positions and momenta at every sample, from every measurement so far.

        ``noise`` is the standard deviation of a measured position, as learned if left out.
        """
        found, _ = self._recorded(recording, None)
        with self._precision():
            return States.of(found, filtered(self.model, found, noise=noise, process_noise=process_noise))

    def stream(
        self,
        *,
        inputs: Sequence[str] | None = None,
        noise: float | None = None,
        process_noise: float | None = None,
    ) -> StateStream:
        """A filter for a running system: its ``update`` takes one measured position and returns the state then.

        Compiled here, so that the first sample need not wait. ``inputs`` are the names of what will be given with the
        positions, those of the fit if left out. ``noise`` is the standard deviation of a measured position.
        """
        names = self.inputs if inputs is None else tuple(inputs)
        check_columns(self.model, self.units.manifold, len(names))
        with self._precision():
            return StateStream(self.model, self.units, names, noise=noise, process_noise=process_noise)

    def estimate(self, context: Positions, *, past: Numbers | None = None) -> StateEstimate:
        """The state (q, p) at the end of each context with its covariance, in the units of the computation.

        ``past`` holds the inputs between the samples of an array. ``fell_back`` marks contexts that the model cannot
        explain: a smoother's state stands there.
        """
        model, (recording, single) = self._aware("gives no covariance"), self._recorded(context, past)
        with self._precision():
            contexts = matched(model, recording).ends(min(len(piece.t) for piece in recording.pieces))
            found = estimated(model, jnp.asarray(contexts.q, dtype=float), held_over(contexts))
        return StateEstimate(*(part[0] if single else part for part in found))

    # --- physics -----------------------------------------------------------------------------------------------------

    def identify(self, recording: Recording | None = None) -> Identification:
        """Coefficients with their uncertainties and what the data leave open; fields and energy along a recording."""
        model = self._aware("carries no evidence of its fit")
        recording = self.recording if recording is None else recording
        with self._precision():
            along = None if recording is None else matched(model, recording)
            return Identification.of(model, self.units if along is None else along.units, along)

    def damping(self, q: Numbers) -> np.ndarray:
        """The diagonal of the learned D(q), at rest, for configurations (N, n), or (N,) of one coordinate."""
        n = self.model.manifold.size
        points = np.asarray(q, dtype=float)
        points = points.reshape(-1, 1) if points.ndim < 2 and n == 1 else np.atleast_2d(points)
        if points.ndim != 2 or points.shape[1] != n:
            raise InputError(f"the model has {counted(n, 'coordinate')}, but q has shape {np.shape(q)}: give (N, {n})")
        with self._precision():
            system, rest = self.model.learned_system(), jnp.zeros(n)
            points = jnp.asarray(self.units.from_file(points), dtype=float)
            return np.asarray(jax.vmap(lambda x: system.damping.operator(x, rest).diagonal_part())(points))

    def adapt(
        self,
        context: Positions,
        coefficients: Sequence[str],
        *,
        past: Numbers | None = None,
        tolerance: float = 0.3,
    ) -> "Fitted":
        """The model with the named coefficients refined on one context; they may move by about ``tolerance``."""
        model, (recording, _) = self._aware("cannot be adapted to a context"), self._recorded(context, past)
        if len(recording.pieces) != 1:
            raise InputError("adapt takes one context: each has coefficients of its own")
        with self._precision():
            one = matched(model, recording).singly()[0]
            before = jax.tree.map(lambda x: x[0], held_over(one))
            q = jnp.asarray(one.q[0], dtype=float)
            return dataclasses.replace(self, model=adapt(model, q, coefficients, past=before, tolerance=tolerance))

    # --- control -----------------------------------------------------------------------------------------------------

    def control(
        self,
        target: Mapping[str, float],
        *,
        bandwidth: float | Sequence[float],
        damping_ratio: float | Sequence[float] = 0.7,
        limits: float | Sequence[float] | None = None,
        holding: float | Sequence[float] | None = None,
        start: Mapping[str, float] | Sequence[Mapping[str, float]] | None = None,
        recording: Recording | None = None,
        tolerance: float | Sequence[float] | None = None,
        within: int | str | None = None,
        draws: int = DRAWS,
        seed: int = 0,
    ) -> "Controlled":
        """A controller that takes a driven model to ``target`` (``{"theta": 45.0}``) and holds it there, tried out.

        Potential shaping and damping injection: given the ``bandwidth`` [rad/s], ``damping_ratio`` and ``limits`` (the
        largest magnitude) of each input, the gains and the input at the target follow from the learned model;
        ``holding`` gives that input instead. ``draws`` systems that the data leave possible are then controlled with
        the noise of the fit, from rest at ``start``, by default at positions of the ``recording`` (that of the fit
        unless another one is given). A trial settles if it stays within ``tolerance`` of the target (0.05 rad, or 5 %
        of the way, unless given) ``within`` a time. Positions are in the units of the fit.
        """
        from phast.api.controlled import controlled

        starts = [start] if isinstance(start, Mapping) else start
        wanted = Wanted(target, bandwidth, damping_ratio, limits, holding, starts, tolerance, within, draws)
        model = self._aware("carries no evidence of its fit")
        with self._precision():
            seen = recording or self.recording
            return controlled(self, model, wanted, None if seen is None else matched(model, seen), seed)

    # --- files and pages ---------------------------------------------------------------------------------------------

    def report(
        self, path: str | os.PathLike, recording: Positions | None = None, *, progress: Callback | None = None
    ) -> Path:
        """Write one HTML page: how well the model fits, its forecasts, its coefficients, how it was made.

        It is about the recording of the fit unless another one is given, and in the units of its file.
        """
        from phast.report.model_page import write_model_page

        model, (found, _) = self._aware("carries no evidence of its fit"), self._recorded(recording, None)
        with self._precision():
            return write_model_page(model, found, path, about=self.about, progress=logged(progress, lambda model: self))

    def save(self, path: str | os.PathLike) -> Path:
        """Write the model to one file, which :func:`phast.load` reads. The data are not saved."""
        known = {"units": list(self.units.names), "inputs": list(self.inputs)}
        return checkpoint.save(self.model, path, **self.about, **known)

    def export(
        self,
        path: str | os.PathLike,
        *,
        name: str | None = None,
        single: bool = False,
        controller: "EnergyCasimir | None" = None,
        limits: Sequence[float] | None = None,
    ) -> Path:
        """Write the model as code that runs without Python: a ``.c`` file with its header, or an ``.onnx`` file.

        C99 without memory allocation or dependencies, for the time step, the filter and a ``controller`` if one is
        given (``limits`` is the largest magnitude of each of its inputs); ``name`` begins every name in it and is that
        of the file if left out. ONNX (extra ``onnx``) for the time step. Angles are in radians there. ``single`` is for
        single precision.
        """
        from phast.control.export.files import core_of, write_c

        form = format_of(path)
        if controller is not None and not self.inputs:
            raise InputError("this model was fitted without inputs, so there is nothing to control it with")
        if form == "onnx":
            if name is not None or controller is not None:
                raise InputError("name and controller are of the export to C: leave them out, or write a .c file")
            from phast.control.export.onnx_model import write_onnx

            return write_onnx(core_of(self.model), self.model.manifold.size, len(self.inputs), path, single=single)
        chosen = None if limits is None else tuple(limits)
        options = {"name": name, "single": single, "controller": controller, "limits": chosen}
        return write_c(self.model, self.units, self.inputs, path, **options)[0]

    def summary(self) -> dict[str, Any]:
        """How it was made and what was found as plain data, for JSON."""
        known = {"parameters": parameter_count(self.model), **self.about}
        return known | (self._identified().summary() if self._has_evidence else {})

    # --- how it shows itself -----------------------------------------------------------------------------------------

    def to_frame(self) -> pd.DataFrame:
        """One row for each coefficient."""
        return self._identified().to_frame()

    def plot(self) -> "Figure":
        """Force and damping along each coordinate of the recording of the fit."""
        if self.recording is None:
            raise InputError("a model from a file holds no recording: identify(recording).plot() draws along another")
        return self.identify().plot()

    def __repr__(self) -> str:
        count = counted(parameter_count(self.model), "coefficient")
        head = f"{type(self.model).__name__} of {', '.join(self.units.labels)}, {count}"
        return f"{head}\n{self._identified()!r}" if self._has_evidence else head

    def _repr_html_(self) -> str:
        return self._identified()._repr_html_() if self._has_evidence else f"<pre>{self!r}</pre>"

    def _identified(self) -> Identification:
        with self._precision():
            return Identification.of(self._aware("carries no evidence of its fit"), self.units, None)

    @property
    def _has_evidence(self) -> bool:
        return isinstance(self.model, ModelAware) and self.model.evidence is not None

    # --- inside ------------------------------------------------------------------------------------------------------

    def _aware(self, lacks: str) -> ModelAware:
        if not isinstance(self.model, ModelAware):
            raise InputError(f"a trained {type(self.model).__name__} {lacks}: fit with method=SecondOrder()")
        return self.model

    def _precision(self) -> contextlib.AbstractContextManager:
        """Double precision where the model has it, for as long as it computes."""
        leaves = jax.tree.leaves(eqx.filter(self.model, eqx.is_inexact_array))
        return jax.enable_x64(any(leaf.dtype == np.float64 for leaf in leaves))

    def _recorded(self, data: Positions | None, past: Numbers | None) -> tuple[Recording, bool]:
        """Positions as a recording, and whether they are one piece that was not asked for as several."""
        recording, single = self._taken(data, past)
        if self.inputs and not recording.inputs:
            raise InputError(
                f"this model is driven by {', '.join(self.inputs)}: name the columns with inputs=… (--inputs), or give "
                "past=…, the inputs between the samples of an array"
            )
        return recording, single

    def _taken(self, data: Positions | None, past: Numbers | None) -> tuple[Recording, bool]:
        if data is None:
            if self.recording is None:
                raise InputError("a model from a file holds no recording: give one, phast.read('swing.csv')")
            data = self.recording
        if isinstance(data, Recording | Trajectories):
            if past is not None:
                raise InputError("a recording holds its own inputs: leave past=… out")
            recording = data if isinstance(data, Recording) else Recording.of(data)
            return recording, len(recording.pieces) == 1
        return self._contexts(data, past)

    def _contexts(self, data: Numbers, past: Numbers | None) -> tuple[Recording, bool]:
        """Arrays in the units of the fit as pieces."""
        q, single = self._checked(data)
        before = [None] * len(q) if past is None else self._inputs_between(past, q, single)
        t = self.model.dt * np.arange(q.shape[1])
        pieces = tuple(
            Piece(str(i), t, *each) for i, each in enumerate(zip(self.units.from_file(q), before, strict=True))
        )
        warn_of_degrees(pieces, self.units)
        names = self.inputs if past is not None else ()
        return Recording(pieces, self.model.manifold, self.model.dt, names, counted=self.units), single

    def _checked(self, data: Numbers) -> tuple[np.ndarray, bool]:
        """Finite positions (contexts, samples, n), and whether they came as one context."""
        n = self.model.manifold.size
        try:
            q = np.asarray(data, dtype=float)
        except (TypeError, ValueError):
            raise InputError("the positions must be numbers in rows of equal length") from None
        q = q[:, None] if q.ndim == 1 and n == 1 else q
        single, q = q.ndim == 2, q if q.ndim == 3 else q[None]
        if q.ndim != 3 or q.shape[2] != n:
            names = ", ".join(self.model.manifold.names)
            raise InputError(
                f"the model has {counted(n, 'coordinate')} ({names}), but the positions have shape {np.shape(data)}: "
                f"give (samples, {n})"
            )
        if q.shape[1] < MINIMUM_CONTEXT:
            raise InputError(
                f"a context of {counted(q.shape[1], 'sample')} gives no velocity: give at least {MINIMUM_CONTEXT}"
            )
        if not np.isfinite(q).all():
            context, step, i = np.argwhere(~np.isfinite(q))[0]
            raise InputError(
                f"position {self.model.manifold.names[i]} is not a finite number at sample {step}"
                f"{'' if single else f' of context {context}'}: remove or interpolate it"
            )
        return q, single

    def _inputs_between(self, past: Numbers, q: np.ndarray, single: bool) -> np.ndarray:
        """The inputs from every sample on; what acts after the last is not known yet, and not used."""
        wanted = (len(q), q.shape[1] - 1, len(self.inputs))
        given = np.asarray(past, dtype=float)
        given = given[None] if single else given
        if given.shape != wanted or not np.isfinite(given).all():
            shape = wanted[1:] if single else wanted
            raise InputError(f"past has shape {np.shape(past)}: give finite numbers of shape {shape}")
        return np.concatenate([given, given[:, -1:]], axis=1)


def load(path: str | os.PathLike, *, classes: Sequence[type] = ()) -> Fitted:
    """The model in ``path``. Name your own component classes in ``classes`` if it is composed of any."""
    double = archives.needs_float64(path)
    with jax.enable_x64(double or jax.config.read("jax_enable_x64")):
        model = checkpoint.load(path, classes=classes)
    if not isinstance(model, AbstractIdentifiable):
        raise InputError(f"{path}: holds a {type(model).__name__}, which is no fitted model of a system")
    about = archives.describe(path)
    names = about.pop("units", None)
    units = Units.computed(model.manifold) if names is None else Units(model.manifold, tuple(names))
    return Fitted(model, units, tuple(about.pop("inputs", ())), None, about)

"""``phast.fit``: a recording, a structure and a method to a fitted model."""

from typing import Any

from phast.api.fitted import Fitted
from phast.data.reading import read
from phast.data.recording import Recording
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.errors import InputError
from phast.estimation.forecaster import AbstractIdentifiable
from phast.fitting.method import AbstractMethod
from phast.fitting.progress import Callback, logged
from phast.fitting.second_order import SecondOrder
from phast.fitting.structure import Structure


def fit(
    data: Any,
    structure: Structure | AbstractEnergetic = Structure(),  # noqa: B008 (frozen)
    *,
    method: AbstractMethod = SecondOrder(),  # noqa: B008 (frozen)
    dt: float | None = None,
    positions: str | list[str] | None = None,
    seed: int = 0,
    progress: Callback | None = None,
) -> Fitted:
    """Learn a port-Hamiltonian model from positions.

    ``data`` is a :class:`~phast.data.recording.Recording` (:func:`phast.read`), simulated trajectories, or whatever
    :func:`phast.read` takes: an array (samples, coordinates) or (trajectories, samples, coordinates), a list of them, a
    DataFrame; for these ``dt`` is the time between samples and ``positions`` names the coordinates
    (``"x,theta:angle:deg"``). ``structure`` says what to look for; a composed system, whose learned coefficients are
    then fitted, may be given instead. ``progress`` is called at every stage, with a model as soon as there is one.
    """
    if not isinstance(structure, Structure | AbstractEnergetic):
        raise InputError(f"structure={structure!r}: give Structure(potential=…, damping=…), or a composed system")
    if not isinstance(method, AbstractMethod):
        raise InputError(f"method={method!r}: give SecondOrder(…) or Gradient(…)")
    recording = as_recording(data, dt, positions)
    about = structure.words() if isinstance(structure, Structure) else {"system": type(structure).__name__}
    asked = {"structure": about, "method": type(method).__name__, "seed": seed, "notes": list(recording.notes)}

    def fitted(model: AbstractIdentifiable) -> Fitted:
        return Fitted(model, recording.units, recording.inputs, recording, asked)

    model = method.fit(structure, recording.trajectories(), seed=seed, progress=logged(progress, fitted))
    return fitted(model)


def as_recording(data: Any, dt: float | None = None, positions: str | list[str] | None = None) -> Recording:
    """Whatever holds positions, as a recording."""
    if isinstance(data, Recording | Trajectories):
        if not (dt is positions is None):
            raise InputError(f"a {type(data).__name__} has a step and named coordinates: leave dt and positions out")
        return data if isinstance(data, Recording) else Recording.of(data)
    return read(data, dt=dt, positions=positions)

"""What a controller is asked to do, in the units of the recording's file. Checked before anything heavy is loaded."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from phast.data.durations import check_duration
from phast.data.units import Units
from phast.errors import InputError, counted

Each = float | Sequence[float]  # one number for all, or one each
DRAWS = 200


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A target, how fast and how damped to get there, within which limits, and how that is tried out.

    ``bandwidth`` [rad/s], ``damping_ratio``, ``limits`` and ``holding`` are one number for all inputs or one each;
    ``tolerance`` is one for all coordinates or one each. What is None is chosen by :mod:`phast.control.design` and
    :mod:`phast.control.trials`.
    """

    target: Mapping[str, float]
    bandwidth: Each
    damping_ratio: Each = 0.7
    limits: Each | None = None
    holding: Each | None = None
    start: Sequence[Mapping[str, float]] | None = None
    tolerance: Each | None = None
    within: int | str | None = None
    draws: int = DRAWS

    def __post_init__(self):
        for name in ("target", "start"):
            for point in _points(getattr(self, name)):
                _check_finite(name, point.values())
        for name in ("bandwidth", "damping_ratio", "limits", "tolerance"):
            given = getattr(self, name)
            if given is not None and not all(math.isfinite(x) and x > 0.0 for x in _numbers(given)):
                raise InputError(f"{name} {_spelled(given)}: give positive numbers")
        if self.holding is not None:
            _check_finite("holding", _numbers(self.holding))
        if self.within is not None:
            check_duration(self.within)
        if self.draws < 1:
            raise InputError(f"draws {self.draws}: give at least one")

    def position(self, point: Mapping[str, float], name: str, units: Units) -> Float[np.ndarray, " n"]:
        """A point in the units of the computation; ``name`` says what it is of."""
        known = units.manifold.names
        unknown = [coordinate for coordinate in point if coordinate not in known]
        missing = [coordinate for coordinate in known if coordinate not in point]
        if unknown or missing:
            wrong = f"no coordinate '{unknown[0]}'" if unknown else f"nothing for '{missing[0]}'"
            example = ",".join(f"{coordinate}=0" for coordinate in known)
            raise InputError(f"{name}: {wrong}: give {', '.join(units.labels)} as '{example}'")
        return units.from_file(np.array([point[coordinate] for coordinate in known]))

    def each(self, name: str, count: int, noun: str) -> Float[np.ndarray, " count"] | None:
        """An option as one number for each input or coordinate."""
        given = getattr(self, name)
        if given is None:
            return None
        numbers = np.array(_numbers(given), dtype=float)
        if len(numbers) not in (1, count):
            raise InputError(
                f"{name} {_spelled(given)} has {counted(len(numbers), 'number')}, but the model has "
                f"{counted(count, noun)}: give one number, or one for each"
            )
        return np.broadcast_to(numbers, (count,)).copy()


def numbers_by_name(text: str, option: str) -> dict[str, float]:
    """``"x=0.5,theta=0"``: a number for each coordinate."""
    found: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = (word.strip() for word in part.partition("="))
        if not (equals and name) or name in found:
            raise InputError(f"{option} '{text}': give each coordinate once, as in 'x=0.5,theta=0'")
        found[name] = _number(number, option, text)
    return found


def numbers_of(text: str, option: str) -> tuple[float, ...]:
    """``"2.0"`` or ``"2.0,1.0"``."""
    return tuple(_number(part, option, text) for part in text.split(","))


def _number(word: str, option: str, text: str) -> float:
    try:
        found = float(word)
    except ValueError:
        raise InputError(f"{option} '{text}': '{word.strip()}' is not a number") from None
    if not math.isfinite(found):
        raise InputError(f"{option} '{text}': give finite numbers")
    return found


def _points(given: Mapping[str, float] | Sequence[Mapping[str, float]] | None) -> Sequence[Mapping[str, float]]:
    return [given] if isinstance(given, Mapping) else list(given or ())


def _numbers(given: Each) -> Sequence[float]:
    return np.atleast_1d(np.asarray(given, dtype=float)).tolist()


def _check_finite(name: str, numbers) -> None:
    for number in numbers:
        if not math.isfinite(number):
            raise InputError(f"{name} {number:g}: give finite numbers")


def _spelled(given: Each) -> str:
    return ", ".join(f"{x:g}" for x in _numbers(given))

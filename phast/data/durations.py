"""Durations: a number of steps, or a time such as "2 s"."""

import contextlib
import re

from phast.errors import InputError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_MOST_STEPS = 1e9


def check_duration(text: str | int) -> tuple[float, str]:
    """The number and the unit of a duration; what is none is refused."""
    found = re.fullmatch(rf"\s*([0-9.eE+-]+)\s*({'|'.join(_SECONDS)}|)\s*", str(text))
    with contextlib.suppress(ValueError):
        if found is not None:
            return float(found[1]), found[2]
    raise InputError(f"'{text}' is no duration: give steps, '200', or a time, '2 s', '500 ms'")


def steps_in(duration: int | str, dt: float) -> int:
    """How many steps a duration has: a number of them, or a time such as ``"2 s"`` or ``"500 ms"``."""
    value, unit = check_duration(duration)
    count = value if not unit else value * _SECONDS[unit] / dt
    if not (0.5 <= count <= _MOST_STEPS and (unit or count == round(count))):
        raise InputError(f"'{duration}' is no whole number of steps from one to {_MOST_STEPS:g} (one lasts {dt:g} s)")
    return round(count)

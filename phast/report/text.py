"""Numbers and results as text."""

import math
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal

from phast.analysis.identifiability import Coefficient, Determination
from phast.analysis.quality import Quality
from phast.data.units import Units
from phast.errors import counted

_PLAIN = (-3, 6)  # the powers of ten that are written without an exponent
_DIGITS = 17  # with which a double is written exactly


def figure(value: float) -> str:
    """Four digits; in scientific notation, or as a distance from one, where that says more."""
    if math.isinf(value):
        return "diverged"
    if 0.9999 < value < 1.0:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def padded(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def each_with_unit(values: Sequence[float], units: Units) -> str:
    """One number for each coordinate, with its unit: ``0.05 deg, 0.001 m``; once where all are the same."""
    texts = (f"{figure(value)} {unit}".rstrip() for value, unit in zip(values, units.names, strict=True))
    return ", ".join(dict.fromkeys(texts))


def residual_text(found: Quality, units: Units) -> str:
    """By how much the model misses the positions of its fit."""
    return f"{each_with_unit(found.residual, units)} rms over {counted(found.count, 'position')}"


def coefficient_table(coefficients: Sequence[Coefficient], units: Sequence[str]) -> list[str]:
    """A line for each coefficient: value ± deviation and unit, or why the data do not determine it."""
    rows = [[c.name, reading(c), unit] for c, unit in zip(coefficients, units, strict=True)]
    return padded([["coefficient", "value ± 1σ", "unit"], *rows])


# --- numbers with their uncertainty ----------------------------------------------------------------------------------


def with_deviation(value: float, deviation: float) -> str:
    """A value and its standard deviation to the same place: ``24.0312 ± 0.0006``, ``(1.234 ± 0.005)e-06``.

    What is written is within a tenth of the deviation of the value.
    """
    if not _resolved(value, deviation):
        return f"{_alone(value, deviation)} ± {deviation:.2g}"
    power, exponent = _power(value, deviation)
    both = f"{_written(value, deviation, power)} ± {_written(deviation, deviation, power)}"
    return f"({both}){exponent}" if exponent else both


def to_its_digits(value: float, deviation: float) -> str:
    """A value to the place that its standard deviation leaves: ``24.0312``, ``1.234e-06``."""
    if not _resolved(value, deviation):
        return _alone(value, deviation)
    power, exponent = _power(value, deviation)
    return _written(value, deviation, power) + exponent


def reading(found: Coefficient) -> str:
    """A coefficient as the data determine it: ``0.4992 ± 0.0009``; ``at zero, below 0.0004 (95 %)``; or ``not
    determined``, with what is known of it."""
    if found.verdict is Determination.DETERMINED:
        return with_deviation(found.value, found.deviation)
    if found.upper is not None:
        return f"{found.verdict}, below {found.upper:.2g} (95 %)"
    if not math.isfinite(found.deviation):
        return str(found.verdict)
    return f"{found.verdict} ({with_deviation(found.value, found.deviation)})"


def _resolved(value: float, deviation: float) -> bool:
    """Whether the deviation says how many digits of the value count, and a double has them."""
    return math.isfinite(value) and 0.0 < deviation < math.inf and deviation > abs(value) * 10.0 ** (2 - _DIGITS)


def _alone(value: float, deviation: float) -> str:
    """All digits beside a deviation of nothing, four beside one that is not known."""
    return repr(float(value)) if 0.0 <= deviation < math.inf else f"{value:.4g}"


def _place(deviation: float) -> int:
    """The power of ten of the last digit that is written: at most a fifth of the deviation."""
    return math.floor(math.log10(deviation) + math.log10(0.2) + 1e-9)


def _power(value: float, deviation: float) -> tuple[int, str]:
    """The power of ten that is taken out of both, and how it is written."""
    power = math.floor(math.log10(max(abs(value), deviation)))
    if _PLAIN[0] <= power < _PLAIN[1]:
        return 0, ""
    return power, f"e{power:+03d}"


def _written(number: float, deviation: float, power: int) -> str:
    """The number over this power of ten, rounded at the place that the deviation leaves."""
    place = Decimal(1).scaleb(_place(deviation))
    rounded = Decimal(number).quantize(place, rounding=ROUND_HALF_EVEN).scaleb(-power) + 0  # no minus before zero
    return f"{rounded:f}"

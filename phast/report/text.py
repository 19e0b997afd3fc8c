"""Numbers and results as text."""

import math
from collections.abc import Sequence

from phast.analysis.identifiability import Coefficient


def figure(value: float) -> str:
    """Four digits; in scientific notation, or as a distance from one, where that says more."""
    if math.isinf(value):
        return "diverged"
    if 0.9999 < value < 1.0:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"


def count_of(count: int, noun: str) -> str:
    """``1 forecast``, ``2 forecasts``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def padded(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells in columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def coefficient_table(coefficients: Sequence[Coefficient], units: Sequence[str]) -> list[str]:
    """A line for each coefficient: value, ± and unit, and whether the data determine it."""
    rows = [
        [c.name, figure(c.value), figure(c.deviation), unit, "yes" if c.identifiable else "NOT DETERMINED"]
        for c, unit in zip(coefficients, units, strict=True)
    ]
    return padded([["coefficient", "value", "± (1σ)", "unit", "determined"], *rows])

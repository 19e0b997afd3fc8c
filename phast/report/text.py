"""Numbers and results as text."""

import math


def figure(value: float) -> str:
    """Four digits; in scientific notation, or as a distance from one, where that says more."""
    if math.isinf(value):
        return "diverged"
    if 0.9999 < value < 1.0:
        return f"1 - {1.0 - value:.1e}"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e4 or value == 0 else f"{value:.2e}"

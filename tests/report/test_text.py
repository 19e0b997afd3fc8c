"""Numbers as text: values with the digits that their uncertainty leaves, and what is said of a coefficient."""

import math
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phast.analysis.identifiability import Coefficient, Determination
from phast.errors import counted
from phast.report.text import reading, to_its_digits, with_deviation

VALUES = st.floats(-1e12, 1e12) | st.floats(-1e-6, 1e-6) | st.floats(allow_nan=False, allow_infinity=False)
DEVIATIONS = st.floats(1e-12, 1e12) | st.floats(0.0, allow_infinity=False, exclude_min=True)


def read_back(text: str) -> tuple[float, float]:
    number = r"(-?[0-9.]+(?:e[+-]\d+)?)"
    shared = re.fullmatch(rf"\({number} ± {number}\)(e[+-]\d+)", text)
    value, deviation, power = shared.groups() if shared else (*text.split(" ± "), "")
    return float(value + power), float(deviation + power)


@pytest.mark.parametrize(
    ("value", "deviation", "text"),
    [
        (24.03123, 6.17e-4, "24.0312 ± 0.0006"),
        (1.2341e-6, 5e-9, "(1.234 ± 0.005)e-06"),
        (-2.5, 0.13, "-2.50 ± 0.13"),
        (0.0, 0.1, "0.00 ± 0.10"),
        (-1e-9, 1.0, "0.0 ± 1.0"),  # no minus before zero
        (13.0, 230.0, "10 ± 230"),
        (13.0, 2.3e4, "0 ± 23000"),
        (1e10, 6e7, "(1.000 ± 0.006)e+10"),
        (9.81, 0.0, "9.81 ± 0"),
        (9.81234, math.inf, "9.812 ± inf"),
        (9.81234, math.nan, "9.812 ± nan"),
        (math.nan, 1.0, "nan ± 1"),
        (math.inf, 1.0, "inf ± 1"),
        (0.1, 1e-30, "0.1 ± 1e-30"),
    ],
)
def test_a_value_and_its_deviation_end_at_the_same_place(value, deviation, text):
    assert with_deviation(value, deviation) == text


@given(VALUES, DEVIATIONS)
@example(5e-324, 5e-324)
@example(1e308, 1e308)
def test_what_is_written_is_within_a_tenth_of_the_deviation(value, deviation):
    written, uncertain = read_back(with_deviation(value, deviation))
    assert abs(written - value) <= 0.1001 * deviation
    assert uncertain == pytest.approx(deviation, rel=0.11)
    assert abs(float(to_its_digits(value, deviation)) - value) <= 0.1001 * deviation


@given(st.floats(1e-3, 1e3), st.floats(1e-6, 1e3))
def test_no_digit_is_written_that_says_nothing(value, deviation):
    """The last place is worth more than a fiftieth of the deviation."""
    digits = with_deviation(value, deviation).split(" ± ")[1].partition(".")[2]
    assert 10.0 ** -len(digits) > 0.0199 * deviation or not digits


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (Coefficient("a", 0.49921, 0.00093), "0.4992 ± 0.0009"),
        (Coefficient("a", 1e-9, 2e-4, Determination.AT_ZERO, 3.9e-4), "at zero, below 0.00039 (95 %)"),
        (Coefficient("a", 13.0, 2.3e4, Determination.UNDETERMINED, 4.5e4), "not determined, below 4.5e+04 (95 %)"),
        (Coefficient("a", 56.0, 82.0, Determination.UNDETERMINED), "not determined (60 ± 80)"),
        (Coefficient("a", 56.0, math.inf, Determination.UNDETERMINED), "not determined"),
    ],
)
def test_a_coefficient_reads_as_it_is_determined(found, text):
    assert reading(found) == text


def test_things_are_counted():
    assert [counted(n, "forecast") for n in (0, 1, 2, 1200)] == [
        "0 forecasts", "1 forecast", "2 forecasts", "1,200 forecasts",
    ]  # fmt: skip

"""Durations: any number with a unit, as steps."""

from hypothesis import given
from hypothesis import strategies as st

from phast.data.durations import steps_in
from phast.errors import InputError

DT = 0.05


@given(
    count=st.integers(1, 10**6),
    dt=st.floats(1e-9, 1e4),
    unit=st.sampled_from(
        [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("min", 60.0), ("h", 3600)]
    ),
    space=st.sampled_from(["", " ", "  "]),
)
def test_a_duration_is_a_number_of_steps_in_any_unit(count, dt, unit, space):
    name, seconds = unit
    assert steps_in(f"{count * dt / seconds!r}{space}{name}", dt) == count
    assert steps_in(count, dt) == steps_in(f"{space}{count}{space}", dt) == count


@given(st.floats(0.01, 1e3), st.floats(0.0, 100.0))
def test_a_longer_time_is_never_fewer_steps(dt, longer):
    duration = 3.0 * dt
    assert steps_in(f"{duration} s", dt) == 3 <= steps_in(f"{duration + longer} s", dt)


@given(st.one_of(st.text(max_size=6), st.floats(), st.integers()))
def test_any_duration_is_steps_or_one_clear_line(duration):
    try:
        found = steps_in(duration if isinstance(duration, int | str) else repr(duration), DT)
    except InputError as error:
        assert "\n" not in str(error).replace(str(duration), "") and "steps" in str(error)
    else:
        assert isinstance(found, int) and found >= 1

"""Figures: units on every axis, numbers in the units of the file, and legends beside what they explain."""

import numpy as np
import pytest

from phast.analysis.fields import Curve, Field
from phast.analysis.forecasts import Context, Foresight
from phast.data.manifold import Manifold
from phast.data.units import Units
from phast.estimation.inputs import Held
from phast.report.plots import damping_field, error_growth, fields_figure, forecast_figure, measured_figure

MANIFOLD = Manifold.parse("theta:angle", "x")
UNITS = Units(MANIFOLD, ("deg", "m"))


@pytest.fixture(scope="module")
def seen():
    """Two forecasts of an angle and a line, twice as far off as the other."""
    t = 0.1 * np.arange(30)
    q = np.stack([np.sin(t), 0.1 * t], axis=1)
    past = Held(None, None)
    contexts = [Context(str(k), t[:10], q[:10], past, past, t[10:], q[10:]) for k in range(2)]
    off = np.array([0.01, 0.02])[:, None, None] * np.ones((2, 20, 2))
    return Foresight(contexts, q[10:] + off, np.full((2, 20, 2), 0.01), MANIFOLD, "autoregressive")


def drawn(figure):
    figure.draw_without_rendering()
    return figure


def legends(figure):
    return [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend() is not None)]


def figures(seen):
    curve = Curve("force -∂V/∂q [deg/s²]", np.ones(5), np.ones(5))
    yield forecast_figure(seen, UNITS)
    yield measured_figure(seen, UNITS, "a rig")
    yield fields_figure([Field("theta [deg]", np.arange(5.0), np.array([1.0, 3.0]), curve, curve)])
    yield damping_field(np.arange(5.0), np.ones(5), {"learned": np.ones(5)}, name="theta")
    yield error_growth({"a": np.ones(5)}, dt=0.1)


def test_every_axis_has_its_unit_and_no_legend_lies_over_a_panel(seen):
    for figure in map(drawn, figures(seen)):
        bottom = [ax for ax in figure.axes if ax.get_xlabel()]
        assert bottom and all(ax.get_xlabel().endswith("]") for ax in bottom)
        assert all(ax.get_ylabel().endswith("]") for ax in figure.axes)
        panels = [ax.get_window_extent() for ax in figure.axes]
        assert not [box for legend in legends(figure) for box in panels if box.overlaps(legend.get_window_extent())]


def test_forecasts_and_errors_are_drawn_in_the_units_of_the_file(seen):
    angle, angle_errors, line, line_errors = measured_figure(seen, UNITS, "a rig").axes
    assert [ax.get_ylabel() for ax in (angle, line)] == ["theta [deg]", "x [m]"]
    np.testing.assert_allclose(angle.lines[0].get_ydata(), np.rad2deg(np.sin(0.1 * np.arange(30))))
    rms = np.sqrt(np.mean([0.01**2, 0.02**2]))
    np.testing.assert_allclose(angle_errors.lines[0].get_ydata(), np.rad2deg(rms), rtol=1e-5)
    np.testing.assert_allclose(line_errors.lines[0].get_ydata(), rms, rtol=1e-5)

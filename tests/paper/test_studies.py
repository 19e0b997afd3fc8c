"""The two studies on small data: better velocities forecast better, and finished parts are not run again."""

import numpy as np
import pytest

from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.paper import studies
from phast.paper.protocol import Split

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")
WINDY = system("pendulum-windy")


@pytest.fixture
def small(monkeypatch):
    data = simulate(WINDY, 40, length=110, seed=4)
    split = Split(data.subset(slice(0, 20)), data.subset(slice(20, 30)), data.subset(slice(30, None)))
    monkeypatch.setattr(studies, "benchmark_split", lambda system: split)
    monkeypatch.setattr(studies, "_STIFFNESS", (1e-4,))


def test_a_better_velocity_is_a_better_forecast(small):
    curves = studies.velocity_study(WINDY)
    rough, five, _, best = (np.median(curve) for curve in curves.values())
    assert best < 0.1 * five < 1e-4 * rough
    assert all(curve.shape == (studies.HORIZON,) for curve in curves.values())


def test_the_noise_study_goes_on_where_it_was(small, monkeypatch, tmp_path):
    ran = []
    paper = {"metrics": {"rollout_theta_wrap_mse_h100": 0.5, "rollout_theta_wrap_mse_h100_median": 0.25}}
    monkeypatch.setattr(studies, "run_missing", lambda *_, **__: [paper])
    run = studies._by_states
    monkeypatch.setattr(studies, "_by_states", lambda *a: ran.append(a[-1]) or run(*a))
    first = studies.noise_study(tmp_path, WINDY, levels=[0.01], on_stage=lambda stage: None)
    assert [r["model"] for r in first] == ["FD+TCN", "map", "horizon", "floor"] and ran == [0.01]
    medians = {r["model"]: r["metrics"]["rollout_h100_median"] for r in first}
    assert medians["FD+TCN"] == 0.25 and medians["horizon"] < medians["map"]
    assert studies.noise_study(tmp_path, WINDY, levels=[0.01], on_stage=lambda stage: None) == first and ran == [0.01]

"""The control study: its trials, what is measured of them, how observers are trained, and its tables."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.control.loop import Trace
from phast.control.ports import ModelOutput
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.observers import ConvolutionalObserver, FiniteDifference
from phast.fitting.losses import Batch
from phast.fitting.training import Settings
from phast.paper import casimir, experiments
from phast.paper.casimir_estimators import VelocityLoss, controller, estimator_builder, setting_for, told_noise
from phast.paper.casimir_table import metrics_of, success_figure
from phast.paper.catalogue import SUCCESS, TABLES
from phast.paper.experiments import CasimirPreset
from phast.paper.protocol import Split
from phast.paper.tables import published

PENDULUM = dataclasses.replace(system(casimir.SYSTEM), dt=casimir.DT)
NAMES = ("casimir", "casimir-full-state", "casimir-near-stable", "casimir-noise-match", "casimir-stress")
FEW = Settings(epochs=2, batch_size=4, learning_rate=0.01, validate_every=1)


@pytest.fixture(scope="module")
def swings():
    data = simulate(PENDULUM, 8, length=40, seed=3)
    return Split(data.subset(slice(0, 4)), data.subset(slice(4, 6)), data.subset(slice(6, 8)))


def setting(swings, noise=0.01):
    return setting_for(PENDULUM, noise, swings, FEW, 0)


def test_trials_begin_where_the_docs_say():
    q, p = casimir.starts(20)
    assert q.shape == p.shape == (100, 1)
    q, p = (x.reshape(5, 20) for x in (q, p))
    bounds = {"near-stable": (0.5, 2.0), "moderate": (1.5, 4.0), "large": (3.0, 6.0), "spinning": (np.pi, 16.0)}
    for i, regime in enumerate(casimir.REGIMES):
        if regime in bounds:
            assert np.abs(q[i]).max() <= bounds[regime][0] and np.abs(p[i]).max() <= bounds[regime][1]
    assert np.abs(q[3] - np.pi).max() <= 0.2 and np.abs(p[4]).min() >= 12.0 and (p[4] < 0).any()
    np.testing.assert_array_equal(casimir.starts(20).q, casimir.starts(20).q)


def trace_of(q, **changed):
    """A made-up run of the pendulum's angle."""
    q = np.asarray(q, dtype=float)[..., None]
    zero = np.zeros_like(q)
    fields = {name: changed.get(name, zero) for name in Trace._fields}
    return Trace(**(fields | {"q": q, "measured": q + 0.3}))


def test_what_a_trial_comes_to():
    still = np.zeros((5, 300))
    still[1] = 2.0 * np.pi  # a full turn is the target too
    still[2, -50] = 0.06  # once too far in the last second
    still[3, :150] = 1.0  # far, but early
    still[4, 7] = np.nan
    ones = np.ones((5, 300, 1))
    found = casimir.trial_metrics(casimir.plant_of(PENDULUM), trace_of(still, applied=2.0 * ones, y=0.5 * ones), 0.0)
    np.testing.assert_array_equal(found["success"], [1.0, 1.0, 0.0, 1.0, 0.0])
    np.testing.assert_allclose(found["worst_error"][:4], [0.0, 0.0, 0.06, 0.0], atol=1e-12)
    np.testing.assert_allclose(found["measured_error"], 0.3)
    np.testing.assert_allclose(found["effort"], 4.0 * 300 * casimir.DT)
    np.testing.assert_allclose(found["velocity_error"], 0.5)
    aside = casimir.trial_metrics(casimir.plant_of(PENDULUM), trace_of(still), 1.0)
    assert not aside["success"].any() and aside["final_error"][0] == pytest.approx(1.0)


@pytest.mark.usefixtures("float64", "quick_compile")
def test_the_oracle_succeeds_everywhere_and_differences_cost_what_noise_makes_them(monkeypatch, swings):
    monkeypatch.setattr(casimir, "SAMPLES", 400)
    oracle, rough = (controller(name, setting(swings)) for name in ("oracle", "finite-difference"))
    exact, noisy = (casimir.judged(each, 0.01, each=1) for each in (oracle, rough))
    assert exact["velocity_error"] == 0.0 and exact["effort"] < noisy["effort"]
    assert noisy["velocity_error"] == pytest.approx(0.01 * 2.0 / np.sqrt(np.pi) / casimir.DT, rel=0.1)
    expected = casimir.INJECTION**2 * 400 * casimir.DT * 2.0 * (0.01 / casimir.DT) ** 2  # d² T 2σ²/dt²
    assert noisy["effort_near-stable"] - exact["effort_near-stable"] == pytest.approx(expected, rel=0.25)
    assert {f"success_{regime}" for regime in casimir.REGIMES} <= set(exact)


@pytest.mark.usefixtures("float64")
def test_a_target_aside_is_held_by_a_model_s_potential(swings):
    held = controller("oracle", setting(swings), target=1.0)
    assert float(held.law.holding[0]) == pytest.approx(9.81 * np.sin(1.0))
    assert float(controller("oracle", setting(swings), target=1.0, holding=False).law.holding[0]) == 0.0
    assert isinstance(held.estimator, ModelOutput)
    with pytest.raises(InputError, match="no potential to hold the target 1 by"):
        controller("finite-difference", setting(swings), target=1.0)
    with pytest.raises(InputError, match="unstable gains"):
        controller("oracle", setting(swings), stiffness=-12.0)
    with pytest.raises(InputError, match="unknown estimator 'kalman' of the control study: choose one of oracle"):
        estimator_builder("kalman")


@pytest.mark.usefixtures("float64", "quick_compile")
@pytest.mark.parametrize(
    "name, variation",
    [("fd-tcn", {"high": 0.01}), ("fd-tcn", {"high": 0.05, "conditioned": True}), ("phast-observer", {})],
)
def test_observers_are_trained_and_left_in_double_precision(swings, name, variation):
    made = controller(name, setting(swings, 0.02), **variation)
    observer = made.estimator.observer
    start = FiniteDifference(PENDULUM.manifold)
    q = jnp.asarray(swings.test.q[0])
    assert observer.head.weight.dtype == jnp.float64
    assert float(jnp.max(jnp.abs(observer.velocities(q, casimir.DT) - start.velocities(q, casimir.DT)))) > 1e-6
    assert observer.noise == (pytest.approx(2.0) if "conditioned" in variation else None)


@pytest.mark.usefixtures("float64", "quick_compile")
def test_the_velocity_loss_is_that_of_the_noise_that_it_draws():
    """For the finite difference itself: 2σ²/dt² on average, and nothing else where the velocity is constant."""
    observer = ConvolutionalObserver.create(PENDULUM.manifold, key=jax.random.key(0))
    q = 0.3 * casimir.DT * jnp.arange(4000.0)[:, None]
    one = Batch(q, v=jnp.full_like(q, 0.3).at[0].set(0.0))
    quiet, loud = (VelocityLoss(level, level, casimir.DT) for level in (0.0, 0.01))
    assert float(quiet(observer, one, jax.random.key(1))) < 1e-20
    assert float(loud(observer, one, jax.random.key(1))) == pytest.approx(2.0, rel=0.1)
    assert float(loud.selection(observer, one)) == float(loud.selection(observer, one)) == pytest.approx(2.0, rel=0.1)
    listening = ConvolutionalObserver.create(PENDULUM.manifold, noise=0.0, key=jax.random.key(0))
    assert told_noise(listening, 3.0).noise == 3.0 and told_noise(observer, 3.0).noise is None


@pytest.mark.usefixtures("float64")
def test_driven_recordings_have_noise_and_the_torques_that_moved_them():
    plant = casimir.plant_of(PENDULUM)
    clean, noisy = (casimir.driven(plant, noise, count=2, length=60) for noise in (0.0, 0.02))
    assert clean.u is not None and clean.u.shape == clean.q.shape == (2, 60, 1)
    np.testing.assert_array_equal(clean.u[:, 0], clean.u[:, 24])
    assert (clean.u[:, 24] != clean.u[:, 25]).all()
    assert np.std(noisy.q - clean.q) == pytest.approx(0.02, rel=0.25)
    bend = np.diff(clean.q[:, :, 0], n=2, axis=1) / plant.dt**2 + 9.81 * np.sin(clean.q[:, 1:-1, 0])
    mean = 0.5 * (clean.u[:, :-2, 0] + clean.u[:, 1:-1, 0])
    np.testing.assert_allclose(bend, mean, atol=0.05)


@pytest.mark.usefixtures("quick_compile")
def test_a_run_leaves_a_record(monkeypatch, swings):
    monkeypatch.setattr(casimir, "SAMPLES", 120)
    monkeypatch.setattr(experiments, "benchmark_split", lambda simulator: swings)
    monkeypatch.setitem(experiments.PRESETS, "few", CasimirPreset(FEW, each=1))
    row = TABLES["casimir-near-stable"].rows[2]
    with jax.enable_x64(True):
        (outcome,) = experiments.run(dataclasses.replace(row.experiment, preset="few"), data=swings)
    metrics = outcome.record["metrics"]
    assert (outcome.record["noise"], outcome.record["dt"]) == (0.01, casimir.DT)
    assert 0.0 < metrics["velocity_error_near-stable"] < 1.0 and metrics["effort"] > metrics["effort_near-stable"]


# --- tables ----------------------------------------------------------------------------------------------------------


def record(row, **metrics):
    told = {"success": 1.0, "final_error": 2e-3, "worst_error": 3e-3, "measured_error": 0.01, "effort": 300.0}
    told |= {"velocity_error": 0.2}
    told |= {f"{name}_{regime}": value / 2.0 for name, value in told.items() for regime in casimir.REGIMES}
    each = row.experiment
    about = {"system": each.system, "model": each.model, "preset": each.preset, "noise": each.noise, "dt": each.dt}
    return about | {"seed": 0, "variation": dict(each.variation), "metrics": told | metrics}


def test_every_published_row_stands_beside_one_of_ours():
    for name in NAMES:
        ours = {f"{row.name}, σ = {row.experiment.noise:g}" for row in TABLES[name].rows}
        assert set(published()[name]) <= ours


def test_a_table_shows_all_trials_or_one_regime_beside_the_published():
    whole, near = TABLES["casimir"], TABLES["casimir-near-stable"]
    rough = next(row for row in near.rows if row.name == "finite differences")
    shown, told = whole.sheet([record(rough)]).lines[0], near.sheet([record(rough)]).lines[0]
    assert shown[:4] == ["0.01", "finite differences", "1", "1"]
    assert shown[6:] == ["300", "342.2", "0.2", "1.117"]
    assert told == ["0.01", "finite differences", "0.001", "0.017", "150", "80.1", "0.1", "1.117"]
    lost = whole.sheet([record(rough, effort=None)])
    assert lost.lines[0][6] == "" and lost.data[0]["effort"] is None
    assert "paper" not in TABLES["casimir-target"].sheet([]).heading


def test_the_figure_has_a_bar_for_each_way_and_regime():
    records = [record(row) for row in SUCCESS.rows[:2]]
    assert metrics_of(SUCCESS.rows[5], records, None) is None
    drawn = success_figure(SUCCESS, records)
    assert [len(ax.patches) for ax in drawn.axes] == [2 * len(casimir.REGIMES)] * 2
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == [row.name for row in SUCCESS.rows[:2]]

"""State estimation through the model, and second-order identification: laws on small data, in float64."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import second_order, without_spread, wrapped

import phast
from phast.analysis.identifiability import damping_band, report
from phast.cli.main import main
from phast.components.damping import ConstantDamping, Friction, FrictionField, SumDamping, WindyDamping
from phast.components.mass import ConstantMass, LinkedMass
from phast.components.parameter import Bounded, Positive, Real, parameter_count
from phast.components.potential import Cosine, Quadratic, Scaled
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, save_trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExactDamping, RungeKutta, Timestep, Transition, leapfrog
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import FitError, InputError, Reason
from phast.estimation.derivatives import Samples, Smoother, choose_smoother, differentiate, noise_scale
from phast.estimation.forecaster import Core, autoregressive
from phast.estimation.moving_horizon import ModelAware, estimate_state
from phast.estimation.smoother import smooth_map
from phast.fitting.checkpoint import load, save
from phast.fitting.coefficients import coefficients_of, in_units, names_of
from phast.fitting.free_fields import consumer_resource, unknown_system
from phast.fitting.matching import acceleration, match
from phast.fitting.second_order import made_passive
from phast.fitting.shooting import Identified, shoot
from phast.fitting.smoothness import roughness

WINDY = system("pendulum-windy")
STEP = Transition(leapfrog(), ExactDamping(), Timestep(WINDY.dt, 8))

pytestmark = pytest.mark.usefixtures("float64")


@pytest.fixture(scope="module")
def swings() -> Trajectories:
    return simulate(WINDY, 24, length=60, seed=3)


def learner() -> PortHamiltonian:
    """KNOWN, every coefficient wrong."""
    law = WindyDamping(Positive.uninformed(), Positive.uninformed(), (0,))
    return PortHamiltonian(Scaled(Cosine(9.81), Positive.starting_at(1.3)), ConstantMass(1.0), law)


def coefficients(fitted: PortHamiltonian) -> list[float]:
    return [float(fitted.potential.scale()), float(fitted.damping.base()), float(fitted.damping.gain())]


# --- the moving horizon ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def estimates(swings):
    with jax.enable_x64(True):
        core = Core(WINDY.port_hamiltonian, STEP)
        estimate = eqx.filter_jit(jax.vmap(lambda y: estimate_state(core, WINDY.manifold, WINDY.dt, y, noise=0.01)))
        return {
            "clean": estimate(jnp.asarray(swings.q[:, :10])),
            "noisy": estimate(jnp.asarray(swings.with_noise(0.01, seed=1).q[:, :10])),
            "jump": estimate(jnp.asarray(swings.q[:, :10]).at[:, 5:].add(2 * np.pi)),
        }


def test_the_true_model_finds_the_true_state(estimates, swings):
    np.testing.assert_allclose(estimates["clean"].p, swings.p[:, 9], rtol=1e-4, atol=1e-4)  # eight leapfrogs per sample
    rough = np.abs(np.diff(swings.q[:, 8:10], axis=1)[:, 0] / WINDY.dt - swings.v[:, 9])
    assert np.median(np.abs(estimates["clean"].p - swings.p[:, 9])) < 1e-3 * np.median(rough)
    assert not estimates["clean"].fell_back.any()


def test_a_turn_of_the_angle_changes_nothing(estimates):
    np.testing.assert_allclose(estimates["jump"].p, estimates["clean"].p, atol=1e-8)


def test_the_covariance_covers_the_error(estimates, swings):
    """Errors in units of their own standard deviation have a mean square near one."""
    noisy = estimates["noisy"]
    deviation = np.sqrt(np.asarray(noisy.covariance[:, 1, 1]))
    scores = np.asarray(noisy.p[:, 0] - swings.p[:, 9, 0]) / deviation
    assert 0.4 < np.mean(scores**2) < 2.0
    covariance = np.asarray(noisy.covariance)
    np.testing.assert_allclose(covariance, np.swapaxes(covariance, 1, 2), atol=1e-9)


def test_a_hopeless_context_falls_back_and_says_so():
    """A potential that is not finite gives no path to fit: the smoother's state stands in."""
    broken = PortHamiltonian(Quadratic(float("inf")), ConstantMass(1.0), ConstantDamping(0.0))
    y = jnp.linspace(1.0, 1.9, 10)[:, None]
    state = estimate_state(Core(broken, STEP), Manifold.parse("x"), 0.05, y)
    assert bool(state.fell_back)
    assert float(state.p[0]) == pytest.approx(2.0, rel=1e-3)


def test_smoothing_keeps_straight_lines_and_fills_gaps():
    y = jnp.linspace(0.0, 2.0, 9)[:, None]
    weights = jnp.ones(9).at[4].set(0.0)
    smooth, slopes = smooth_map(y.at[4].set(50.0), weights, 0.5)
    np.testing.assert_allclose(smooth, y, atol=1e-9)
    np.testing.assert_allclose(slopes, 0.5, atol=1e-9)


def test_forecasts_follow_the_truth_and_use_no_future(swings):
    model = ModelAware(Core(WINDY.port_hamiltonian, STEP), WINDY.manifold, WINDY.dt)
    q = jnp.asarray(swings.q[0])
    np.testing.assert_allclose(autoregressive(model, q[:10], 20), q[10:30], atol=1e-3)
    np.testing.assert_allclose(model.takeover(q[:10], 20), autoregressive(model, q[:10], 20), atol=1e-12)
    predict = eqx.filter_jit(model.predict_next)
    predicted = predict(q[:30])
    np.testing.assert_allclose(predicted[3:29], q[4:30], atol=1e-3)
    changed = predict(q[:30].at[20:].add(1.0))
    np.testing.assert_allclose(changed[:20], predicted[:20], atol=1e-6)


# --- identification --------------------------------------------------------------------------------------------------


def test_noise_is_measured_and_clean_data_are_seen_to_be_clean(swings):
    assert noise_scale(swings) < 1e-5
    assert noise_scale(swings.with_noise(0.02, seed=5)) == pytest.approx(0.02, rel=0.15)


def test_more_noise_asks_for_a_wider_smoother(swings):
    widths = [choose_smoother(swings.with_noise(s, seed=5), np.array([s])).window for s in (1e-6, 1e-2, 5e-2)]
    assert widths[0] < widths[1] <= widths[2]


def test_smoothers_differentiate_polynomials_exactly():
    t = 0.1 * np.arange(20)
    data = Trajectories((1.0 + t - 2.0 * t**2 + 0.3 * t**4)[None, :, None], 0.1, Manifold.parse("x"))
    samples = differentiate(data, Smoother(7, 4))
    inner = t[3:-3]
    np.testing.assert_allclose(samples.v[:, 0], 1.0 - 4.0 * inner + 1.2 * inner**3, atol=1e-9)
    np.testing.assert_allclose(samples.a[:, 0], -4.0 + 3.6 * inner**2, atol=1e-8)


@pytest.mark.parametrize("name", ["pendulum-windy", "cartpole-windy", "double-pendulum-damped"])
def test_accelerations_are_those_of_the_simulator(name):
    """Central differences of the simulated velocity, M(q) or not."""
    chosen = system(name)
    data = simulate(chosen, 2, length=7, dt=1e-3)
    a = (data.v[:, 4] - data.v[:, 2]) / 2e-3
    found = jax.vmap(lambda q, v: acceleration(chosen.port_hamiltonian, q, v))(
        jnp.asarray(data.q[:, 3]), jnp.asarray(data.v[:, 3])
    )
    np.testing.assert_allclose(found, a, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def identified(swings):
    with jax.enable_x64(True):
        samples = differentiate(swings, Smoother(7, 6))
        started = match(learner(), samples, deviation=0.05)
        clean = shoot(Core(started, STEP), swings.windows(20, 20), noise=1e-5)
        noisy = swings.with_noise(0.01, seed=9).windows(20, 20)
        return started, clean, shoot(Core(started, STEP), noisy, noise=0.01)


def test_matching_comes_close_and_shooting_closer(identified):
    truth = np.array([1.0, 0.3, 0.5])
    started, clean, _ = identified
    np.testing.assert_allclose(coefficients(started), truth, atol=2e-2)
    np.testing.assert_allclose(coefficients(clean.system), truth, atol=2e-4)
    assert clean.evidence.rms < 1e-5


def test_uncertainties_are_honest(identified):
    """The errors of the noisy fit, weighed by its information, are a chi-square of three degrees of freedom."""
    _, clean, noisy = identified
    raw = [np.array([float(s.potential.scale.raw), float(s.damping.base.raw), float(s.damping.gain.raw)])
           for s in (noisy.system, clean.system)]  # fmt: skip
    off = raw[0] - raw[1]
    assert 0.05 < off @ noisy.evidence.information @ off < 16.0
    np.testing.assert_allclose(noisy.evidence.covariance @ noisy.evidence.information, np.eye(3), atol=1e-4)
    assert noisy.evidence.rms == pytest.approx(0.01, rel=0.2)


def test_a_shared_scale_is_seen_to_be_undetermined(swings):
    """With V, M and D all free, multiplying all three changes no trajectory: one direction has no information."""
    free = eqx.tree_at(lambda s: s.mass, learner(), ConstantMass(Positive.starting_at(1.3)))
    samples = differentiate(swings, Smoother(7, 6))
    started = match(free, samples, deviation=0.05)
    found = shoot(Core(started, STEP), swings.windows(20, 20).subset(slice(0, 30)), noise=1e-4)
    information = found.evidence.information
    values = np.linalg.eigvalsh(information / np.sqrt(np.outer(*[np.diag(information)] * 2)))
    assert values[0] < 1e-7 * values[-1]
    ratios = np.array(coefficients(found.system)) / float(found.system.mass.masses())
    np.testing.assert_allclose(ratios, [1.0, 0.3, 0.5], atol=1e-3)
    told = report(found)
    assert not any(c.identifiable for c in told.coefficients)
    assert len(told.remarks) == 1 and "multiplying all three by one factor" in told.remarks[0]


def test_the_report_gives_values_with_uncertainties(identified):
    told = report(identified[2])
    assert [c.name for c in told.coefficients] == ["potential.scale", "damping.base", "damping.gain"]
    for found, truth in zip(told.coefficients, (1.0, 0.3, 0.5), strict=True):
        assert found.identifiable and abs(found.value - truth) < 4 * found.deviation < 0.4
    assert told.remarks == []
    curve, band = damping_band(identified[2], np.array([[0.0], [np.pi / 2]]))
    np.testing.assert_allclose(curve[:, 0], [told.coefficients[1].value, sum(c.value for c in told.coefficients[1:])])
    assert (band > 0).all() and band[0, 0] == pytest.approx(told.coefficients[1].deviation, rel=1e-6)


def rig() -> PortHamiltonian:
    """Two links with friction in their joints, as small as on a bench."""
    circles = Manifold.parse("first:angle", "second:angle")
    field = FrictionField.uninformed(Grid(circles, (4,), (0.0,), (1.0,), (0,)), units=(1e-3, 1e-3, 1e-4))
    return PortHamiltonian(
        Cosine(Positive.starting_at(jnp.array([0.2, 0.1]), unit=0.1), Real.starting_at((0.05, -0.02))),
        LinkedMass(Positive.starting_at(3e-3, unit=1e-3), 2e-3, Bounded.starting_at(0.4)),
        SumDamping((Friction(Positive.starting_at(2e-3, unit=1e-3), joints=((-1.0, 1.0),)), field)),
    )


def test_trained_numbers_have_names_and_physical_values():
    system = rig()
    names, natural = names_of(system), in_units(system)
    scalars = [(name, kind, pytest.approx(value)) for (name, kind), (value, _) in zip(names, natural, strict=True)][:7]
    assert scalars == [
        ("potential.amplitudes[0]", "positive", 0.2),
        ("potential.amplitudes[1]", "positive", 0.1),
        ("potential.centre[0]", "plain", 0.05),
        ("potential.centre[1]", "plain", -0.02),
        ("mass.first", "positive", 3e-3),
        ("mass.coupling", "plain", 0.4),
        ("damping[0].viscous", "positive", 2e-3),
    ]
    assert names[7:] == [("damping[1]", "field")] * 12
    theta, rebuild = coefficients_of(system)
    ahead, behind = (np.array(in_units(rebuild(theta + h)))[:, 0] for h in (1e-6, -1e-6))
    np.testing.assert_allclose(np.array(natural)[:, 1], (ahead - behind) / 2e-6, rtol=1e-7)


def test_friction_fields_take_part_in_the_roughness_prior():
    theta, rebuild = coefficients_of(rig())
    jacobian = jax.jacfwd(lambda t: roughness(rebuild(t), jnp.array([1.0, 2.0, 3.0])))(theta)
    assert (np.abs(jacobian[:, 7:]).max(axis=0) > 0.5).all() and not jacobian[:, :7].any()


def test_friction_that_varies_around_the_circle_is_found_from_accelerations():
    """Coulomb friction 10⁻³ (1 + ½ sin θ), beside a constant viscous one, in two thousand noisy samples."""
    rng = np.random.default_rng(0)
    q, v = rng.uniform(0.0, 2 * np.pi, (2000, 1)), rng.normal(0.0, 3.0, (2000, 1))
    coulomb, smooth = 1e-3 * (1.0 + 0.5 * np.sin(q)), np.sqrt(v**2 + 0.05**2)
    a = (-0.05 * np.sin(q - 0.3) - 2e-4 * v - coulomb * v / smooth) / 2e-3 + 0.02 * rng.normal(size=q.shape)
    grid = Grid(Manifold.parse("theta:angle"), (12,), (0.0,), (1.0,))
    field = FrictionField.uninformed(grid, units=(1e-4, 1e-3, 1e-5))
    cosine = Cosine(Positive.uninformed(unit=0.1), Real.starting_at(0.0))
    found = match(PortHamiltonian(cosine, ConstantMass(2e-3), field), Samples(q, v, a, None), deviation=0.02)
    assert float(found.potential.centre()) == pytest.approx(0.3, abs=1e-3)
    assert float(found.potential.amplitudes()) == pytest.approx(0.05, rel=1e-3)
    places = np.linspace(0.0, 2 * np.pi, 25)[:, None]

    def force(law, place):
        return law.operator(jnp.asarray(place), jnp.ones(1)).matvec(jnp.ones(1))[0]

    rubbing = np.array([float(force(found.damping, place)) for place in places])
    truth = 2e-4 + 1e-3 * (1.0 + 0.5 * np.sin(places[:, 0])) / np.hypot(1.0, 0.05)
    np.testing.assert_allclose(rubbing, truth, atol=8e-5)


def test_what_the_data_never_show_is_said():
    """At rest at the bottom nothing depends on the damping."""
    still = Trajectories(np.zeros((3, 40, 1)), 0.05, Manifold.parse("theta:angle"))
    found = shoot(Core(learner(), STEP), still, noise=1e-3, iterations=1)
    assert any("say nothing" in remark or "trade off" in remark for remark in report(found).remarks)


def test_a_fit_learns_a_forecaster_from_positions(swings):
    found = second_order(learner(), swings, seed=0)
    np.testing.assert_allclose(coefficients(found.core.system), [1.0, 0.3, 0.5], atol=1e-3)
    again = second_order(learner(), swings, seed=0)
    assert coefficients(again.core.system) == coefficients(found.core.system)


def test_nothing_to_learn_is_said(swings):
    with pytest.raises(InputError, match="nothing to identify"):
        second_order(WINDY.port_hamiltonian, swings)


def test_arrays_are_fitted_and_forecast(swings):
    start = learner()
    structure = phast.Structure(potential=start.potential, damping=start.damping, regime="known")
    fitted = phast.fit(swings.q, structure, dt=WINDY.dt, positions="theta:angle")
    np.testing.assert_allclose(coefficients(fitted.model.learned_system()), [1.0, 0.3, 0.5], atol=1e-3)
    np.testing.assert_allclose(fitted.forecast(20, swings.q[:, :10]).q, swings.q[:, 10:30], atol=1e-2)


def test_a_sharp_model_survives_a_file(swings, tmp_path):
    model = ModelAware(Core(learner(), STEP), WINDY.manifold, WINDY.dt)
    save(model, tmp_path / "model.phast")
    again = load(tmp_path / "model.phast")
    np.testing.assert_array_equal(
        wrapped(again).forecast(5, swings.q[0, :10]).q, wrapped(model).forecast(5, swings.q[0, :10]).q
    )


def test_a_fit_is_in_double_precision_whatever_the_process_computes_in(swings):
    single = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_array(x) else x, learner())
    with jax.enable_x64(False):
        found = second_order(single, swings)
    np.testing.assert_allclose(coefficients(found.core.system), [1.0, 0.3, 0.5], atol=1e-3)
    assert found.core.system.damping.base.raw.dtype == np.float64


def test_many_coordinates_have_a_series_and_a_constant_damping():
    data = simulate(system("n-body-3"), 2, length=20)
    start = unknown_system(data)
    assert parameter_count(start.potential) == 209 and parameter_count(start.damping) == 21


def test_identify_reports_on_a_file(swings, tmp_path, monkeypatch, capsys):
    save_trajectories(swings, tmp_path / "data.csv")
    words = f"identify {tmp_path}/data.csv --positions theta:angle --regime unknown --json {tmp_path}/found.json"
    monkeypatch.setattr("sys.argv", ["phast", *words.split()])
    monkeypatch.setattr("phast.fitting.free_fields._ALONG", {1: (8, 8)})
    without_spread(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert "determined up to a constant" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert max(found["rms"]) < 1e-2 and max(found["noise"]) < 1e-5


# --- accelerations that the samples are too coarse for ---------------------------------------------------------------


def test_a_sharp_turn_counts_little_where_accelerations_are_matched():
    """A fast pulse of force that the samples alias is known to be off, and does not spoil the rest of the fit."""
    t = 0.05 * np.arange(400)
    kicked = t > 10.0
    swing = np.where(kicked, 1.3 * np.sin(t) + 0.5 * np.sin(t - 10.0), 1.3 * np.sin(t))[None, :, None]
    data = Trajectories(swing, 0.05, Manifold.parse("x"))
    samples = differentiate(data, Smoother(7, 6))
    near = np.abs(t[3:-3] - 10.0) < 0.2
    assert samples.bias[near].max() > 1e3 * np.median(samples.bias)
    spring = PortHamiltonian(Quadratic(Positive.starting_at(3.0)), ConstantMass(1.0), ConstantDamping(0.0))
    blunt = match(spring, samples._replace(bias=None), deviation=1e-4)
    sharp = match(spring, samples, deviation=1e-4)
    off = [abs(float(found.potential.stiffness()) - 1.0) for found in (blunt, sharp)]
    assert off[1] < 1e-4 < 1e-3 < off[0]


# --- what is consumed ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prey() -> Trajectories:
    return simulate(system("predator-prey"), 40, length=80, seed=3)


@pytest.fixture(scope="module")
def consumed(prey) -> ModelAware:
    with jax.enable_x64(True):
        return second_order(consumer_resource(prey, "known"), prey, seed=0)


def test_prey_alone_tell_how_they_and_their_predators_live(consumed):
    """α = 1, β = 0.1, γ = 0.4, δ = 0.1, K = 100, μ = 0.01, from prey numbers, the predators unseen."""
    found = {c.name: c.value for c in report(Identified(consumed.core.system, consumed.evidence)).coefficients}
    expected = {
        "potential[0].gain": 0.1,
        "potential[0].decay": 0.41,
        "damping.inner.coefficients": 0.1,  # α / (K δ)
        "growth": 1.0 - 0.01 - 0.01 * 0.41 / 0.1,  # of prey at the number at which predators neither grow nor decay
    }
    assert found.keys() == expected.keys()
    np.testing.assert_allclose(list(found.values()), [expected[name] for name in found], rtol=1e-5)
    assert all(c.identifiable for c in report(Identified(consumed.core.system, consumed.evidence)).coefficients)


def test_unseen_predators_are_estimated_and_forecast(consumed, prey):
    filtered = eqx.filter_jit(jax.vmap(consumed.filter))(jnp.asarray(prey.q))
    np.testing.assert_allclose(filtered.p[:, 12:], 0.1 * prey.p[:, 12:], rtol=1e-3, atol=1e-4)
    future = wrapped(dataclasses.replace(consumed, evidence=None)).forecast(60, prey.q[:, :10]).q
    np.testing.assert_allclose(future, prey.q[:, 10:70], rtol=1e-3, atol=1e-4)


def test_what_is_consumed_is_positive_has_no_inputs_and_no_passive_steps(consumed, prey):
    with pytest.raises(InputError, match="positive numbers"):
        consumer_resource(dataclasses.replace(prey, q=prey.q - prey.q.min()))
    with pytest.raises(InputError, match="mechanical systems"):
        made_passive(consumed)
    with pytest.raises(InputError, match="without inputs"):
        wrapped(consumed).forecast(5, prey.q[0, :10], inputs=np.ones((5, 1)))


def test_a_fit_that_leaves_the_numbers_says_so(prey):
    """Steps of a hundred years from such a start have no finite path."""
    core = Core(consumer_resource(prey, "known"), RungeKutta(Timestep(100.0)))
    with pytest.raises(FitError, match="check the units") as error:
        shoot(core, prey, noise=0.1)
    assert error.value.reason is Reason.UNEXPLAINED

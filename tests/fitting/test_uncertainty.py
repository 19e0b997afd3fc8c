"""The spread of a forecast: it covers, follows the noise, equals what ensembles show, and is a number at a bound."""

import dataclasses
import json
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import wrapped

from phast.analysis.identifiability import identified, report
from phast.components.damping import ConstantDamping, FrictionField
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive, parameter_count
from phast.components.potential import Cosine, Quadratic
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import Evidence, ModelAware
from phast.fitting.checkpoint import load, save
from phast.fitting.coefficients import _NEAR_ZERO, coefficients_of
from phast.fitting.networks import known
from phast.fitting.shooting import shoot
from phast.fitting.uncertainty import Spread, calibrated, drawn, spread

DAMPED = system("pendulum-damped")
CONTEXT, HORIZON, NOISE = 10, 50, 0.01
COUNT = 30  # trajectories to learn from, and to judge by: too few to be shared out, and compiled by each core

pytestmark = pytest.mark.usefixtures("float64")


def fitted(start: PortHamiltonian, data: Trajectories, noise: float) -> ModelAware:
    """As ``sharpen`` does it, from a start that is near enough, with a noise that is known."""
    core = Core(start, RungeKutta(Timestep(data.dt, 2)))
    found = shoot(core, data, noise=noise, smooth=False)
    core = Core(found.system, core.transition)
    model = ModelAware(core, data.manifold, data.dt, CONTEXT, (noise,), found.evidence)
    return calibrated(model, data)


def pendulum() -> PortHamiltonian:
    law = ConstantDamping(Positive.starting_at(0.6))
    return PortHamiltonian(Cosine(Positive.starting_at(9.5, unit=10.0)), ConstantMass(1.0), law)


@pytest.fixture(scope="module")
def swings() -> tuple[Trajectories, Trajectories]:
    """Positions without noise, to learn from and to judge by."""
    data = simulate(DAMPED, 2 * COUNT, length=CONTEXT + HORIZON, seed=1)
    return data.subset(slice(0, COUNT)), data.subset(slice(COUNT, None))


@pytest.fixture(scope="module")
def models(swings) -> dict[float, ModelAware]:
    """By noise."""
    with jax.enable_x64(True):
        return {s: fitted(pendulum(), swings[0].with_noise(s, seed=2), s) for s in (NOISE, 2 * NOISE)}


def spread_of(model: ModelAware, contexts: np.ndarray, horizon: int) -> Spread:
    return spread(model, jnp.asarray(contexts), horizon)


def contexts(swings, noise: float, seed: int) -> np.ndarray:
    return swings[1].with_noise(noise, seed=seed).q[:, :CONTEXT]


@pytest.fixture(scope="module")
def told(models, swings):
    """The spread of forecasts from noisy contexts, by noise."""
    with jax.enable_x64(True):
        return {s: spread_of(model, contexts(swings, s, 3), HORIZON) for s, model in models.items()}


def test_two_in_three_measurements_lie_within_one_deviation(told, swings):
    """Of what will be measured; the motion itself is nearer, but not by so much that the spread says nothing."""
    for noise, found in told.items():
        later = swings[1].with_noise(noise, seed=4).q[:, CONTEXT:]
        measured = np.abs(found.q - later) <= found.deviation
        true = np.abs(found.q - swings[1].q[:, CONTEXT:]) <= found.deviation
        assert 0.6 < measured.mean() < 0.8
        assert 0.5 < measured[:, :5].mean() < 0.9 and 0.5 < measured[:, -5:].mean() < 0.9
        assert measured.mean() < true.mean()


def test_a_model_that_is_right_needs_no_widening(models):
    for model in models.values():
        assert 1.0 <= model.evidence.inflation < 1.6


def test_a_model_that_is_wrong_is_widened_until_it_covers(models, swings):
    """Its friction is off by a fifth, of which its evidence knows nothing."""
    model = models[NOISE]
    drag = Positive.starting_at(1.2 * float(model.core.system.damping.coefficients()))
    wrong = eqx.tree_at(lambda m: m.core.system.damping.coefficients, model, drag)
    before = spread_of(wrong, contexts(swings, NOISE, 3), HORIZON)
    wrong = calibrated(wrong, swings[0].with_noise(NOISE, seed=2))
    after = spread_of(wrong, contexts(swings, NOISE, 3), HORIZON)
    later = swings[1].with_noise(NOISE, seed=4).q[:, CONTEXT:]
    inside = [(np.abs(x.q - later) <= x.deviation).mean() for x in (before, after)]
    assert wrong.evidence.inflation > 2.0 and inside[0] < 0.6 and 0.55 < inside[1] < 0.9


def test_twice_the_noise_is_twice_the_spread(told):
    ratio = told[2 * NOISE].deviation / told[NOISE].deviation
    assert np.median(ratio) == pytest.approx(2.0, rel=0.2)


def plain(model: ModelAware, covariance: np.ndarray) -> ModelAware:
    """The same model with this covariance, and not widened."""
    evidence = dataclasses.replace(model.evidence, covariance=covariance, inflation=1.0)
    return dataclasses.replace(model, evidence=evidence)


def test_what_noise_leaves_open_is_what_fresh_noise_shows(models, swings):
    """With given coefficients: forecasts from contexts that were measured again and again."""
    model = plain(models[NOISE], np.zeros((2, 2)))
    found = spread_of(model, swings[1].q[:, :CONTEXT], HORIZON)
    again = np.stack([spread_of(model, contexts(swings, NOISE, seed), HORIZON).q for seed in range(10, 110)])
    expected = np.hypot(np.std(again, axis=0), NOISE)
    np.testing.assert_allclose(np.median(found.deviation / expected), 1.0, atol=0.05)
    assert (np.abs(found.deviation / expected - 1.0) < 0.35).mean() > 0.95  # of a hundred draws


def test_what_coefficients_leave_open_is_what_an_ensemble_shows(models, swings):
    """Models drawn from the covariance, each with its own state: that, beside what noise leaves open."""
    model, y = models[NOISE], contexts(swings, NOISE, 3)
    both, noise = (spread_of(plain(model, s * model.evidence.covariance), y, HORIZON).deviation for s in (1.0, 0.0))
    found = np.sqrt(both**2 - noise**2)[:8]
    theta, rebuild = coefficients_of(model.core.system)
    draws = np.random.default_rng(0).multivariate_normal(np.asarray(theta), model.evidence.covariance, 200)

    @jax.jit
    def member(theta):
        other = dataclasses.replace(model, core=Core(rebuild(theta), model.core.transition), evidence=None)
        return jax.vmap(lambda context: other.takeover(context, HORIZON))(jnp.asarray(y[:8]))

    expected = np.std([np.asarray(member(draw)) for draw in draws], axis=0)
    late = slice(5, None)  # before, hardly anything is open
    np.testing.assert_allclose(found[:, late], expected[:, late], rtol=0.2, atol=0.02 * expected.max())


def test_an_angle_is_never_wider_than_the_circle(models, swings):
    model = plain(models[NOISE], 1e6 * models[NOISE].evidence.covariance)
    found = spread_of(model, contexts(swings, NOISE, 3), HORIZON)
    assert found.deviation.max() == pytest.approx(np.pi / np.sqrt(3.0))


# --- at the bound ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bound() -> tuple[ModelAware, np.ndarray]:
    """An oscillator that gains energy, learned by one that cannot: its drag is none."""
    rng, dt = np.random.default_rng(0), 0.1
    t, phase = dt * np.arange(CONTEXT + HORIZON), rng.uniform(0.0, 6.0, (COUNT, 1))
    q = (np.exp(0.01 * t) * np.cos(t + phase) + 1e-3 * rng.normal(size=(COUNT, len(t))))[..., None]
    law = ConstantDamping(Positive.starting_at(0.1))
    start = PortHamiltonian(Quadratic(Positive.starting_at(1.1)), ConstantMass(1.0), law)
    with jax.enable_x64(True):
        return fitted(start, Trajectories(q, dt, Manifold.parse("x")), 1e-3), q


def test_a_coefficient_at_its_bound_has_a_finite_spread(bound):
    model, q = bound
    assert float(model.core.system.damping.coefficients.raw) == _NEAR_ZERO
    found = spread_of(model, q[:, :CONTEXT], HORIZON)
    assert np.isfinite(found.deviation).all() and (found.deviation < 1.0).all()
    assert 0.5 < (np.abs(found.q - q[:, CONTEXT:]) <= found.deviation).mean() < 0.9


def test_a_coefficient_at_its_bound_is_reported_as_none(bound):
    told = report(identified(bound[0]))
    stiffness, drag = told.coefficients
    assert drag.value < 1e-8 and 0.0 < drag.deviation < 0.1
    assert stiffness.identifiable and stiffness.value == pytest.approx(1.0, abs=0.02)
    assert np.isfinite(told.conditioning)


# --- evidence --------------------------------------------------------------------------------------------------------


def test_a_forecaster_without_evidence_says_so(models):
    model = models[NOISE]
    bare = dataclasses.replace(model, evidence=None)
    y = np.zeros((1, CONTEXT, 1))
    with pytest.raises(InputError, match="carries no evidence of its fit: fit it again"):
        spread_of(bare, y, 5)
    assert wrapped(bare).forecast(5, y).deviation is None
    with pytest.raises(InputError, match="this ModelAware carries no evidence of its fit: fit with method=Sec"):
        identified(bare)
    paper = known(
        manifold=model.manifold,
        dt=model.dt,
        potential=Cosine(9.81),
        damping=ConstantDamping(0.1),
        key=jax.random.key(0),
    )
    with pytest.raises(InputError, match="this Phast carries no evidence"):
        identified(paper)
    assert wrapped(paper).forecast(5, y).deviation is None


def test_evidence_travels_with_a_model_and_stays_numpy(models, swings, tmp_path):
    model = models[NOISE]
    again = load(save(model, tmp_path / "model.phast"))
    assert jax.tree.structure(again) == jax.tree.structure(model)
    for name in ("information", "covariance"):
        one, other = getattr(model.evidence, name), getattr(again.evidence, name)
        assert type(one) is type(other) is np.ndarray and one.tobytes() == other.tobytes()
    for name in ("rms", "count", "inflation"):
        one, other = getattr(model.evidence, name), getattr(again.evidence, name)
        assert type(one) is type(other) and one == other
    assert again.noise == model.noise and isinstance(again.evidence, Evidence)
    y = contexts(swings, NOISE, 3)
    for one, other in zip(spread_of(model, y, HORIZON), spread_of(again, y, HORIZON), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_file_from_before_there_was_evidence_still_forecasts(models, swings, tmp_path):
    """Its noise was one number for all coordinates, and nothing was said of evidence."""
    model = dataclasses.replace(models[NOISE], noise=NOISE, evidence=None)
    path = save(model, tmp_path / "now.phast")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries["header.json"])
    del header["model"]["fields"]["evidence"]
    assert header["model"]["fields"]["noise"] == NOISE
    with zipfile.ZipFile(tmp_path / "before.phast", "w") as archive:
        for name, content in (entries | {"header.json": json.dumps(header)}).items():
            archive.writestr(name, content)
    before = load(tmp_path / "before.phast")
    assert before.evidence is None and before.noise == NOISE
    future = wrapped(before).forecast(10, swings[1].q[:, :CONTEXT]).q
    np.testing.assert_allclose(future, swings[1].q[:, CONTEXT : CONTEXT + 10], atol=0.01)
    with pytest.raises(InputError, match="carries no evidence"):
        spread_of(before, swings[1].q[:, :CONTEXT], 10)


def test_evidence_is_never_trained(models):
    assert parameter_count(models[NOISE]) == 2


# --- draws -----------------------------------------------------------------------------------------------------------


def sure_of(system: PortHamiltonian, covariance: np.ndarray, inflation: float = 1.0) -> ModelAware:
    evidence = Evidence(np.linalg.inv(covariance), covariance, 1e-3, 100, inflation)
    return ModelAware(Core(system, RungeKutta(Timestep(0.05))), DAMPED.manifold, 0.05, CONTEXT, NOISE, evidence)


def test_draws_have_the_covariance_of_the_fit_widened():
    """Of the values themselves: softplus is passed to first order."""
    covariance = np.array([[4e-4, 1e-4], [1e-4, 9e-4]])
    model = sure_of(pendulum(), covariance, inflation=2.0)
    theta, rebuild = coefficients_of(model.core.system)
    draws = drawn(model, 4000, seed=1)
    slopes = np.asarray(jax.nn.sigmoid(theta))
    values = np.asarray(jax.nn.softplus(draws))
    np.testing.assert_allclose(np.cov(values.T), 4.0 * covariance * np.outer(slopes, slopes), rtol=0.15)
    np.testing.assert_array_equal(draws, drawn(model, 4000, seed=1))
    assert (np.asarray(jax.vmap(lambda t: rebuild(t).damping.coefficients())(jnp.asarray(draws))) > 0.0).all()


def test_a_coefficient_at_zero_is_not_drawn_far_from_it():
    """Where softplus is flat its number may be anything, but its value hardly moves."""
    field = FrictionField(jnp.full((4, 3), _NEAR_ZERO), Grid(DAMPED.manifold, (4,), (0.0,), (0.0,)))
    system = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), field)
    draws = drawn(sure_of(system, 1e4 * np.eye(12)), 50)
    assert np.asarray(jax.nn.softplus(draws)).max() < 1e-5


def test_what_is_no_spread_gives_no_draws():
    with pytest.raises(InputError, match="no evidence of its fit"):
        drawn(dataclasses.replace(sure_of(pendulum(), np.eye(2)), evidence=None), 3)

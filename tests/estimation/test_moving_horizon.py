"""The moving horizon beyond forecasts: inputs, sliding, training, adaptation; and energy that cannot rise."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import second_order, wrapped
from jax.flatten_util import ravel_pytree

import phast
from phast.components.damping import ConstantDamping, WindyDamping
from phast.components.mass import CartPoleMass, ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, QuadraticForm, Scaled
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, refuse_turns
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import Core, Filtered
from phast.estimation.moving_horizon import ModelAware, estimate_state
from phast.fitting.losses import Batch, HorizonLoss
from phast.fitting.second_order import passive_transition, sharpest
from phast.fitting.training import Settings, train

pytestmark = pytest.mark.usefixtures("float64")

ANGLE, DT = Manifold.parse("theta:angle"), 0.05
STEP = RungeKutta(Timestep(DT, 2))


def pendulum(gravity=9.81, drag=0.4) -> PortHamiltonian:
    return PortHamiltonian(
        Scaled(Cosine(9.81), Positive.starting_at(gravity / 9.81)),
        ConstantMass(1.0),
        ConstantDamping(Positive.starting_at(drag)),
    )


def drive(count=12, length=60, seed=0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(q, p, u) of a pendulum pushed by torques that are held from sample to sample."""
    rng = np.random.default_rng(seed)
    u = rng.normal(0.0, 2.0, (count, length, 1))
    start = jnp.asarray(rng.uniform(-2.0, 2.0, (count, 2)))

    def one(x, u):
        q, p = Core(pendulum(), STEP).rollout(x[:1], x[1:], length - 1, u[:-1])
        return jnp.concatenate([x[None, :1], q]), jnp.concatenate([x[None, 1:], p])

    q, p = jax.jit(jax.vmap(one))(start, jnp.asarray(u))
    return np.asarray(q), np.asarray(p), u


@pytest.fixture(scope="module")
def driven():
    with jax.enable_x64(True):
        return drive()


def model(**options) -> ModelAware:
    return ModelAware(Core(pendulum(**options), STEP), ANGLE, DT)


@eqx.filter_jit
def estimated(y, u):
    return estimate_state(model().core, ANGLE, DT, jnp.asarray(y), u=u)


def test_inputs_that_acted_on_the_window_are_reckoned_with(driven):
    q, p, u = driven
    told = estimated(q[0, :10], u[0, :9])
    untold = estimated(q[0, :10], None)
    np.testing.assert_allclose(told.p, p[0, 9], atol=1e-8)
    assert abs(float(untold.p[0]) - p[0, 9, 0]) > 1e-2
    fitted = wrapped(model(), ("u",))
    future = fitted.forecast(30, q[:, :10], inputs=u[:, 9:39], past=u[:, :9]).q
    np.testing.assert_allclose(future, q[:, 10:40], atol=1e-7)
    with pytest.raises(InputError, match=r"past has shape .* \(12, 9, 1\)"):
        fitted.forecast(30, q[:, :10], inputs=u[:, 9:39], past=u[:, :10])


def test_coefficients_are_found_under_known_inputs(driven):
    q, _, u = driven
    found = second_order(pendulum(6.0, 0.9), Trajectories(q, DT, ANGLE, u=u)).learned_system()
    assert float(found.potential.scale()) == pytest.approx(1.0, abs=1e-5)
    assert float(found.damping.coefficients()) == pytest.approx(0.4, abs=1e-4)


def test_sliding_is_fitting_each_window_again(driven):
    """One warm step per sample ends where eight cold ones do; also with noise, with which the optimum moves."""
    q, _, u = driven
    noisy = jnp.asarray(q[0] + np.random.default_rng(1).normal(0.0, 0.01, q[0].shape))
    found = eqx.filter_jit(model().filter)(noisy, jnp.asarray(u[0]))
    for end in (10, 25, 60):
        cold = estimated(noisy[end - 10 : end], u[0, end - 10 : end - 1])
        np.testing.assert_allclose(
            jnp.concatenate([found.q, found.p], 1)[end - 1], jnp.concatenate([cold.q, cold.p]), atol=1e-4
        )
        np.testing.assert_allclose(found.covariance[end - 1], cold.covariance, rtol=0.05)


def test_filtering_is_better_than_any_single_measurement(driven):
    q, p, u = driven
    noisy = q + np.random.default_rng(2).normal(0.0, 0.02, q.shape)
    pieces = wrapped(model(), ("u",)).filter(Trajectories(noisy, DT, ANGLE, u=u), noise=0.02).pieces
    filtered = Filtered(*(np.stack([getattr(each, name) for each in pieces]) for name in Filtered._fields))
    late = slice(12, None)
    error, measured = (np.sqrt(np.mean((x - q)[:, late] ** 2)) for x in (filtered.q, noisy))
    assert error < 0.75 * measured
    scores = (filtered.p - p)[:, late, 0] / np.sqrt(filtered.covariance[:, late, 1, 1])
    assert 0.6 < np.mean(scores**2) < 1.5
    assert np.std(filtered.innovation[:, late]) < 1.5 * np.sqrt(0.02**2 + np.mean(filtered.covariance[:, late, 0, 0]))
    with pytest.raises(InputError, match="process noise"):
        wrapped(model()).filter(noisy, process_noise=0.1)


@pytest.mark.parametrize("unit", [1e3, 1e-6], ids=["in millimetres", "in megametres"])
def test_the_unit_of_a_coordinate_changes_no_estimate(unit):
    """A cart on a spring that pulls a pendulum: x counted in 1/unit metres, and noise as large as it is on each."""
    line, scale = Manifold.parse("x", "theta:angle"), np.array([unit, 1.0])

    def estimate(per):
        spring = QuadraticForm(((2.0 / per, 0.5 / per), (0.0, 3.0)))
        truth = PortHamiltonian(spring, ConstantMass((1.5 / per**2, 0.4)), ConstantDamping((0.2 / per**2, 0.1)))
        core = Core(truth, STEP)
        q, _ = core.rollout(jnp.array([0.3 * per, -0.2]), jnp.array([0.4 / per, 0.1]), 11)
        noise = (1e-3 * per, 2e-2)
        y = q + jnp.array(noise) * np.random.default_rng(0).normal(size=(11, 2))
        return jax.jit(lambda y: estimate_state(core, line, DT, y, noise=noise))(y)

    here, there = estimate(1.0), estimate(unit)
    np.testing.assert_allclose(there.q / scale, here.q, rtol=1e-7)
    np.testing.assert_allclose(there.p * scale, here.p, rtol=1e-6)
    both = np.concatenate([scale, 1.0 / scale])
    size = np.sqrt(np.outer(np.diag(here.covariance), np.diag(here.covariance)))
    np.testing.assert_allclose((there.covariance / np.outer(both, both)) / size, here.covariance / size, atol=1e-6)
    assert not here.fell_back and not there.fell_back


# --- training through it ---------------------------------------------------------------------------------------------


def test_gradients_pass_through_the_fit(driven):
    """The loss of a model that is off, against finite differences in every coefficient."""
    q, _, u = driven
    wrong = model(gravity=9.0, drag=0.6)
    trainable, rest = eqx.partition(wrong, eqx.is_inexact_array)
    flat, unflatten = ravel_pytree(trainable)
    trajectory = Batch(jnp.asarray(q[0]), u=jnp.asarray(u[0]))
    loss = jax.jit(lambda x: HorizonLoss(10, 10).selection(eqx.combine(unflatten(x), rest), trajectory))
    gradient = jax.grad(loss)(flat)
    for i in range(flat.size):
        step = 1e-5 * jnp.eye(flat.size)[i]
        difference = (loss(flat + step) - loss(flat - step)) / 2e-5
        np.testing.assert_allclose(gradient[i], difference, rtol=1e-3, atol=1e-8)


def test_training_through_it_finds_the_physics(driven):
    q, _, u = driven
    batch = Batch(jnp.asarray(q[:4, :40]), u=jnp.asarray(u[:4, :40]))
    settings = Settings(epochs=100, batch_size=4, learning_rate=0.05)
    found, history = train(
        model(gravity=8.5, drag=0.7), batch, batch, loss=HorizonLoss(10, 10), settings=settings, key=jax.random.key(0)
    )
    assert history.loss[-1] < 1e-3 * history.loss[0]
    assert float(found.core.system.damping.coefficients()) == pytest.approx(0.4, abs=0.02)


def test_a_window_that_does_not_fit_is_refused(driven):
    with pytest.raises(InputError, match="shorter horizon"):
        HorizonLoss(10, 60).selection(model(), Batch(jnp.asarray(driven[0][0])))


# --- adaptation ------------------------------------------------------------------------------------------------------


def test_a_named_coefficient_follows_the_window_and_the_others_stay(driven):
    q, _, u = driven
    stale = model(drag=0.3)
    fresh = wrapped(stale, ("u",)).adapt(q[3, :10], ["damping.coefficients"], past=u[3, :9]).model
    assert float(fresh.core.system.damping.coefficients()) == pytest.approx(0.4, abs=2e-3)
    assert float(fresh.core.system.potential.scale()) == float(stale.core.system.potential.scale())
    before, after = (
        np.abs(wrapped(m, ("u",)).forecast(40, q[3, :10], inputs=u[3, 9:49], past=u[3, :9]).q - q[3, 10:50]).max()
        for m in (stale, fresh)
    )
    assert after < 0.1 * before


def test_adaptation_is_the_same_in_any_unit(driven):
    """The same pendulum, ten thousand times lighter."""
    q, _, u = driven
    light = PortHamiltonian(
        Cosine(9.81e-4), ConstantMass(1e-4), ConstantDamping(Positive.starting_at(0.3e-4, unit=1e-4)), ((1e-4,),)
    )
    start = eqx.tree_at(lambda m: m.core.system, model(), light)
    fresh = wrapped(start, ("u",)).adapt(q[3, :10], ["damping"], past=u[3, :9]).model
    assert float(fresh.core.system.damping.coefficients()) == pytest.approx(0.4e-4, abs=2e-7)


def test_what_the_window_does_not_say_stays_as_learned():
    """At rest nothing depends on the drag, so nothing moves it."""
    fresh = wrapped(model()).adapt(np.zeros((10, 1)), ["damping"]).model
    assert float(fresh.core.system.damping.coefficients()) == pytest.approx(0.4, abs=1e-9)


def test_a_coefficient_that_is_not_there_is_named():
    with pytest.raises(InputError, match=r"no coefficient 'drag': it has potential\.scale, damping\.coefficients"):
        wrapped(model()).adapt(np.zeros((10, 1)), ["drag"])


# --- contexts that say little ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [1.0, 0.0], ids=["where it would fall", "where it rests"])
def test_a_constant_context_is_rest_or_a_flagged_fallback(held):
    found = wrapped(model()).estimate(np.full((10, 1), held))
    assert bool(found.fell_back) == (held == 1.0)
    np.testing.assert_allclose([found.q[0], found.p[0]], [held, 0.0], atol=1e-6)
    assert np.isfinite(found.covariance).all()


def test_a_fallback_is_said():
    with pytest.warns(RuntimeWarning, match="cannot explain the context"):
        assert np.isfinite(wrapped(model()).forecast(5, np.full((10, 1), 1.0)).q).all()


def test_an_angle_declared_as_a_line_is_seen_by_its_jump():
    line = eqx.tree_at(lambda m: m.manifold, model(), Manifold.parse("theta"))
    q = np.linspace(2.9, 3.5, 10)[:, None]
    fitted, turned = wrapped(model()), np.where(q > np.pi, q - 2 * np.pi, q)
    with pytest.raises(InputError, match="declare it as 'theta:angle'"):
        wrapped(line).forecast(5, turned)
    np.testing.assert_allclose(fitted.forecast(5, turned).q - fitted.forecast(5, q).q, 0.0, atol=1e-6)
    wrapped(line).forecast(5, 7.0 * np.arange(10.0)[:, None])  # fast, but steadily so


def test_two_samples_are_the_least_and_still_no_nan():
    q = np.array([[0.3], [0.35]])
    found = wrapped(model()).estimate(q)
    assert np.isfinite(found.covariance).all() and np.isfinite(wrapped(model()).forecast(5, q).q).all()
    with pytest.raises(InputError, match="at least 2"):
        wrapped(model()).forecast(5, q[:1])


def test_a_recording_without_motion_is_refused():
    with pytest.raises(InputError, match="'theta' never moves"):
        phast.fit(np.ones((4, 50, 1)), dt=DT, positions="theta:angle")


# --- time steps ------------------------------------------------------------------------------------------------------


def test_the_step_is_as_fine_as_the_motion_asks_for():
    windows = simulate(system("cartpole-windy"), 8, length=20)
    truth = system("cartpole-windy").port_hamiltonian
    coarse = sharpest(truth, windows, tolerance=1e-2)
    fine = sharpest(truth, windows, tolerance=1e-9)
    assert coarse.timestep.substeps == 1 and fine.timestep.substeps > 1


def test_stiff_damping_gets_the_exact_damping_step():
    stiff = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(1e4))
    windows = simulate(system("pendulum-damped"), 4, length=20)
    assert not isinstance(sharpest(stiff, windows, tolerance=1e-6), RungeKutta)


def test_energy_never_rises_along_a_passive_forecast():
    """M(q), damping, and a step five times as long as the data's own, from states far above the separatrix."""
    truth = PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), WindyDamping(0.3, 0.5, (1, 1)))
    core = Core(truth, passive_transition(0.25, substeps=1))
    states = jax.random.uniform(jax.random.key(0), (16, 4), minval=-6.0, maxval=6.0)
    q, p = jax.jit(jax.vmap(lambda x: core.rollout(x[:2], x[2:], 60)))(states)
    energy = jax.vmap(jax.vmap(truth.energy))(q, p)
    assert float(jnp.max(jnp.diff(energy, axis=1))) < 1e-9
    assert float(jnp.min(energy[:, 0] - energy[:, -1])) > 0.1


def test_a_bound_on_the_damping_is_chosen_by_rollouts(monkeypatch):
    monkeypatch.setattr("phast.fitting.gradient.BOUNDS", (0.01, 1.0))
    told = []
    settings = Settings(epochs=8, batch_size=8, learning_rate=2e-2)
    data = simulate(system("pendulum-damped"), 30, length=60)
    found = phast.fit(
        data,
        phast.Structure(potential=Cosine(9.81)),
        method=phast.Gradient(settings=settings, bound="validated", base=0.0),
        progress=told.append,
    ).model
    assert [progress.done for progress in told] == 2 * list(range(1, 9))
    assert found.core.system.damping.bound == 0.5  # each of two directions: the drag of 0.5 needs more than 0.01


def test_what_moves_by_two_pi_at_a_time_is_no_angle():
    """A crash of the prey by six a sample, between steps of four and five, is motion."""
    fast = np.cumsum([0.0, 1.0, 2.5, 4.0, 6.2, 5.0, 3.0, 1.0])[None, :, None]
    refuse_turns(fast, Manifold.parse("prey"))
    with pytest.raises(InputError, match="'prey:angle'"):
        refuse_turns(np.cumsum([0.0, 0.3, 0.3, -6.0, 0.3, 0.3])[None, :, None], Manifold.parse("prey"))


def test_noise_on_a_slow_motion_is_no_reason_to_leave_the_model():
    """Where little moves, standing still may fit noise better than physics; a smoothed velocity would be all noise."""
    rng = np.random.default_rng(5)
    slow = jnp.asarray(rng.normal(0.0, 0.05, (200, 10, 1)))  # a pendulum at rest, measured badly
    hanging, held = (
        jax.jit(jax.vmap(lambda y, noise=noise: estimate_state(model().core, ANGLE, DT, y, noise=noise)))(y)
        for y, noise in ((slow, 0.05), (0.5 * np.pi + 0.2 * slow, 0.01))
    )
    assert not hanging.fell_back.any() and float(jnp.max(jnp.abs(hanging.p))) < 1.0
    assert held.fell_back.all()  # a pendulum that stays level is no noise

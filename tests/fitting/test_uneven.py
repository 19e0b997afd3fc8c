"""Steps of any length: time steps, derivatives, states and fits know how long each lasts."""

import dataclasses

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import second_order
from hypothesis import given
from hypothesis import strategies as st

from phast.analysis.identifiability import identified, report
from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExactDamping, ImplicitMidpoint, RungeKutta, Timestep, Transition, leapfrog
from phast.estimation.derivatives import choose_smoother, differentiate, evenly, noise_scale
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held, held_over
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.smoother import smooth_map
from phast.fitting.coefficients import coefficients_of
from phast.fitting.shooting import _Shooting

pytestmark = pytest.mark.usefixtures("float64")

ANGLE, DT, WINDOW = Manifold.parse("theta:angle"), 0.05, 10


def pendulum(gravity=9.81, drag=0.4) -> PortHamiltonian:
    law = ConstantDamping(Positive.starting_at(drag))
    return PortHamiltonian(Cosine(Positive.starting_at(gravity, unit=10.0)), ConstantMass(1.0), law)


def solved(start, u, steps):
    """(q, p) by an adaptive method of eighth order, from sample to sample, the input held between."""
    system = pendulum()

    def field(_, x, u):
        return jnp.concatenate(system.vector_field(x[:1], x[1:], u))

    def one(x, held):
        control = diffrax.PIDController(rtol=1e-11, atol=1e-11)
        term, options = diffrax.ODETerm(field), {"stepsize_controller": control, "adjoint": diffrax.ForwardMode()}
        x = diffrax.diffeqsolve(term, diffrax.Dopri8(), 0.0, held[1], held[1] / 4, x, held[0], **options).ys[-1]
        return x, x

    path = jnp.concatenate([start[None], jax.lax.scan(one, start, (u, steps))[1]])
    return path[:, :1], path[:, 1:]


@pytest.fixture(scope="module")
def motion() -> dict[str, Trajectories]:
    """The same twelve driven pendulums, by an even clock and by an uneven one whose mean step is longer."""
    rng = np.random.default_rng(0)
    count, length = 12, 60
    start, u = rng.uniform(-2.0, 2.0, (count, 2)), rng.normal(0.0, 2.0, (count, length, 1))
    uneven = np.where(rng.random((count, length, 1)) < 0.2, 2.4, rng.uniform(0.4, 1.4, (count, length, 1)))
    with jax.enable_x64(True):
        solve, found = jax.jit(jax.vmap(solved)), {}
        for name, stretch in (("even", np.ones_like(uneven)), ("uneven", uneven)):
            q, p = map(np.asarray, solve(start, u[:, :-1], DT * stretch[:, :-1, 0]))
            found[name] = Trajectories(q, DT, ANGLE, p=p, u=u, stretch=None if name == "even" else stretch)
    return found


# --- time steps ------------------------------------------------------------------------------------------------------

TRANSITIONS = {
    "Runge-Kutta": lambda dt: RungeKutta(Timestep(dt, 2)),
    "Strang": lambda dt: Transition(leapfrog(), ExactDamping(), Timestep(dt, 2)),
    "midpoint": lambda dt: Transition(ImplicitMidpoint(), ExactDamping(), Timestep(dt)),
}


@pytest.mark.parametrize("build", TRANSITIONS.values(), ids=TRANSITIONS.keys())
def test_a_rollout_over_uneven_steps_is_even_ones_end_to_end(build):
    stretch, u = (1.0, 2.0, 0.5), jnp.array([[0.3], [-1.0], [2.0]])
    state = jnp.array([1.0]), jnp.array([0.5])
    core = Core(pendulum(), build(DT))
    q, p = jax.jit(lambda q, p: core.rollout(q, p, 3, Held(u, jnp.array(stretch))))(*state)
    for i, factor in enumerate(stretch):
        step = Core(pendulum(), build(factor * DT))
        state = jax.jit(lambda q, p, step=step, i=i: step(q, p, u[i]))(*state)
        np.testing.assert_allclose((q[i], p[i]), state, rtol=1e-11)


@pytest.mark.parametrize(
    ("build", "order"),
    [(RungeKutta, 4), (lambda timestep: Transition(leapfrog(), ExactDamping(), timestep), 2)],
    ids=["Runge-Kutta", "Strang"],
)
def test_finer_steps_converge_to_the_solution_at_the_uneven_times(motion, build, order):
    """The slope of log error against log step is the order."""
    data, errors = motion["uneven"], []
    for substeps in (2, 4, 8):
        core = Core(pendulum(), build(Timestep(DT, substeps)))
        follow = jax.jit(jax.vmap(lambda q, p, u, core=core: core.rollout(q, p, 59, u)[0]))
        q = follow(data.q[:, 0], data.p[:, 0], held_over(data))
        errors.append(np.sqrt(np.mean((np.asarray(q) - data.q[:, 1:]) ** 2)))
    slope = np.polyfit(np.log([2, 4, 8]), np.log(errors), 1)[0]
    assert slope == pytest.approx(-order, abs=0.3)


# --- derivatives -----------------------------------------------------------------------------------------------------


def test_resampling_keeps_time():
    """A cubic in time is one after resampling, with the same derivatives, however uneven the steps were."""
    rng = np.random.default_rng(1)
    stretch = rng.uniform(0.2, 3.0, (3, 50, 1)) * np.array([0.5, 1.0, 2.0])[:, None, None]
    t = Trajectories(np.zeros((3, 50, 1)), 0.1, Manifold.parse("x"), stretch=stretch).times[..., None]
    data = Trajectories(1.0 + t - 2.0 * t**2 + 0.3 * t**3, 0.1, Manifold.parse("x"), stretch=stretch, u=np.floor(t))
    even = evenly(data)
    assert even.stretch is None and even.dt <= data.dt and len(even) > len(data)
    first = even.subset([0])
    ticks = first.t[3:-3]
    np.testing.assert_allclose(first.q[0, :, 0], np.polyval([0.3, -2.0, 1.0, 1.0], first.t), rtol=1e-9, atol=1e-9)
    samples = differentiate(first, choose_smoother(first, np.zeros(1))._replace(window=7))
    np.testing.assert_allclose(samples.a[:, 0], -4.0 + 1.8 * ticks, rtol=1e-5, atol=1e-5)
    latest = np.searchsorted(t[0, :, 0], first.t + 1e-9, side="right") - 1
    np.testing.assert_array_equal(first.u[0, :, 0], data.u[0, latest, 0])


def test_even_steps_said_to_be_uneven_change_nothing(motion):
    data = motion["even"]
    said = dataclasses.replace(data, stretch=np.ones((*data.q.shape[:2], 1)))
    again = evenly(said)
    np.testing.assert_allclose(again.q, data.q, atol=1e-9)
    np.testing.assert_array_equal(again.u, data.u)
    np.testing.assert_allclose(noise_scale(said), noise_scale(data), rtol=1e-6)


@pytest.mark.parametrize("clock", ["even", "uneven"])
def test_noise_is_measured_by_any_clock(motion, clock):
    noisy = motion[clock].with_noise(0.02, seed=3)
    assert float(noise_scale(noisy)[0]) == pytest.approx(0.02, rel=0.15)
    assert float(noise_scale(motion[clock])[0]) < 1e-3


@given(st.lists(st.floats(0.05, 20.0), min_size=5, max_size=5), st.floats(-5.0, 5.0), st.floats(-5.0, 5.0))
def test_smoothing_keeps_straight_lines_over_any_steps(stretch, offset, slope):
    with jax.enable_x64(True):
        t = 0.1 * np.concatenate([[0.0], np.cumsum(stretch)])
        y = jnp.asarray(offset + slope * t)[:, None]
        smooth, slopes = smooth_map(y, jnp.ones(len(t)), 0.1, jnp.asarray(stretch))
        np.testing.assert_allclose(smooth, y, atol=1e-7)
        np.testing.assert_allclose(slopes, slope, atol=1e-5)


# --- states ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def observer() -> ModelAware:
    with jax.enable_x64(True):
        return ModelAware(Core(pendulum(), RungeKutta(Timestep(DT, 4))), ANGLE, DT, WINDOW, noise=(0.01,))


@pytest.fixture(scope="module")
def filtered(motion, observer):
    """Filtered states of noisy positions, by clock."""
    run, found = jax.jit(jax.vmap(lambda q, held: observer.filter(q, held))), {}
    with jax.enable_x64(True):
        for clock, data in motion.items():
            noisy = data.with_noise(0.01, seed=5)
            stretch = np.ones(data.q.shape[:2]) if data.stretch is None else data.stretch[..., 0]
            found[clock] = noisy, run(jnp.asarray(noisy.q), Held(jnp.asarray(data.u), jnp.asarray(stretch)))
    return found


@pytest.fixture(scope="module")
def estimate(observer):
    """The states at the end of many contexts."""
    run = jax.jit(jax.vmap(lambda q, held: observer.estimate(q, held)))
    return lambda data: run(jnp.asarray(data.q), held_over(data))


def test_the_true_model_finds_the_true_state_by_any_clock(motion, estimate):
    data = motion["uneven"].steps(0, WINDOW)
    found = estimate(data)
    np.testing.assert_allclose(found.p, data.p[:, -1], atol=1e-5)
    assert not found.fell_back.any()
    wrong = estimate(dataclasses.replace(data, stretch=np.ones_like(data.stretch)))
    assert np.median(np.abs(wrong.p - data.p[:, -1])) > 1e-2  # had the steps been taken for even


def test_filtering_by_an_uneven_clock_is_as_good_as_by_an_even_one(filtered):
    late, errors = slice(WINDOW, None), {}
    for clock, (data, states) in filtered.items():
        off = np.asarray(states.p)[:, late] - data.p[:, late]
        errors[clock] = np.sqrt(np.mean(off**2))
        scores = off[..., 0] / np.sqrt(np.asarray(states.covariance)[:, late, 1, 1])
        assert 0.6 < np.mean(scores**2) < 1.6
        expected = np.sqrt(0.01**2 + np.mean(np.asarray(states.covariance)[:, late, 0, 0]))
        assert np.std(np.asarray(states.innovation)[:, late]) < 2.0 * expected
    assert errors["uneven"] < 1.2 * errors["even"]  # its windows last longer, and tell more


def test_sliding_is_fitting_each_window_again(filtered, estimate):
    noisy, states = filtered["uneven"]
    for end in (WINDOW, 25, 60):
        cold = estimate(noisy.steps(end - WINDOW, end))
        np.testing.assert_allclose(states.p[:, end - 1], cold.p, atol=5e-3)
        np.testing.assert_allclose(states.covariance[:, end - 1], cold.covariance, rtol=0.1, atol=1e-6)


# --- fits ------------------------------------------------------------------------------------------------------------


def test_coefficients_are_found_under_inputs_by_an_uneven_clock(motion):
    """Within three standard deviations, and those are small."""
    found = second_order(pendulum(6.0, 0.9), motion["uneven"].with_noise(2e-3, seed=7))
    told = {c.name: c for c in report(identified(found)).coefficients}
    for name, truth in (("potential.amplitudes", 9.81), ("damping.coefficients", 0.4)):
        assert abs(told[name].value - truth) < 3.0 * told[name].deviation < 0.05
    assert found.noise[0] == pytest.approx(2e-3, rel=0.15)
    assert found.evidence.rms == pytest.approx(2e-3, rel=0.15)


def _reduced(core: Core, data: Trajectories, theta, rebuild, noise: float) -> np.ndarray:
    """Jᵀ J of the coefficients with the first states eliminated, by central differences of the residuals."""

    def residual(theta, x, y, u):
        q, _ = Core(rebuild(theta), core.transition).rollout(x[:1], x[1:], y.shape[0] - 1, u)
        return ANGLE.difference(jnp.concatenate([x[None, :1], q]), y).reshape(-1) / noise

    def slopes(x, y, u):
        moves, size = 1e-5 * jnp.eye(theta.size + 2), theta.size

        def along(move):
            ahead, behind = (residual(theta + s * move[:size], x + s * move[size:], y, u) for s in (1.0, -1.0))
            return (ahead - behind) / 2e-5

        return jax.vmap(along)(moves).T

    states = jnp.concatenate([jnp.asarray(data.q[:, 0]), jnp.asarray(data.p[:, 0])], axis=1)
    jacobian = np.asarray(jax.jit(jax.vmap(slopes))(states, jnp.asarray(data.q), held_over(data)))
    by_theta, by_x = jacobian[..., : theta.size], jacobian[..., theta.size :]
    rest = by_theta - by_x @ np.linalg.pinv(by_x) @ by_theta
    return np.einsum("bsk,bsl->kl", rest, rest)


def test_sensitivities_over_uneven_steps_are_those_of_finite_differences(motion):
    """Right to second order in the substep."""
    data, errors = motion["uneven"].steps(0, 20), []
    theta, rebuild = coefficients_of(pendulum(9.0, 0.5))
    states = jnp.concatenate([jnp.asarray(data.q[:, 0]), jnp.asarray(data.p[:, 0])], axis=1)
    for substeps in (2, 4):
        core = Core(rebuild(theta), RungeKutta(Timestep(DT, substeps)))
        batches = jax.tree.map(lambda x: jnp.asarray(x)[None], (states, data.q, held_over(data), np.ones(len(data))))
        found = np.asarray(_Shooting(core, rebuild, ANGLE, 0.01).linearise(theta, batches).matrix)
        expected = _reduced(core, data, theta, rebuild, 0.01)
        errors.append(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    assert errors[1] < 2e-3 and errors[1] < 0.3 * errors[0]

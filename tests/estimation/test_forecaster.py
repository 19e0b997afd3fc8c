"""Forecasters by law: the cache forgets nothing, inputs reach every rollout, the filter beats finite differences."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from phast.components.damping import ConstantDamping, HouseholderDamping
from phast.components.mass import CartPoleMass, ConstantMass
from phast.components.potential import Cosine, Quadratic
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExactDamping, ExplicitDamping, Timestep, Transition, leapfrog
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.estimation.forecaster import Core, Phast, PhastBlock, autoregressive, roll_out, shared_out, takeover
from phast.estimation.observers import FiniteDifference, MassCanonicalizer
from phast.fitting.networks import known
from phast.paper.models import phast_known, phast_partial, phast_unknown

PAIR = Manifold.parse("x", "theta:angle")
CONTEXT, HORIZON = 5, 6
WINDY = system("pendulum-windy")

MODELS = {
    "known": lambda key: phast_known(WINDY, key=key),
    "partial": lambda key: phast_partial(WINDY, key=key),
    "unknown": lambda key: phast_unknown(WINDY, key=key),
    "mass of q, one input for two coordinates": lambda key: pushed_cart(key),
}


def pushed_cart(key):
    """A cart-pole with its true M(q), pushed at the cart only."""
    model = known(
        manifold=PAIR,
        dt=0.02,
        potential=Cosine((0.0, 9.81)),
        damping=ConstantDamping(0.2),
        mass=CartPoleMass(),
        key=key,
    )
    return eqx.tree_at(lambda m: m.core.system.port, model, ((1.0,), (0.0,)), is_leaf=lambda x: x is None)


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request, float64, perturbed, trainable_count):
    """A model as training may leave it."""
    fresh = request.param(jax.random.key(0))
    return perturbed(fresh, np.random.default_rng(1).normal(0.0, 0.05, trainable_count(fresh)))


@pytest.fixture(scope="module")
def truth():
    """Simulated windy pendulums."""
    return simulate(WINDY, 6, length=120, seed=3)


def positions(model, seed=0):
    rng = np.random.default_rng(seed)
    n = model.manifold.size
    return jnp.asarray(np.pi - 0.1 + np.cumsum(rng.uniform(-0.2, 0.3, (CONTEXT, n)), axis=0))


@eqx.filter_jit
def predict(model, q, u):
    return model.predict_next(q, u)


@eqx.filter_jit
def rollouts(model, q, u):
    """(autoregressive, takeover)."""
    return autoregressive(model, q, HORIZON, u), model.takeover(q, HORIZON, u)


@eqx.filter_jit
def last_states(model, q):
    """The state at the end of a context, by streaming and in one go."""
    along_q, along_p = model.states(q)
    return model.state_after(q), (along_q[-1], along_p[-1])


@eqx.filter_jit
def step(core, q, p, u):
    return core(q, p, u)


def by_prefixes(model, context, u):
    """The definition of a self-conditioned rollout: predict from everything so far, append, again."""
    total = CONTEXT + HORIZON
    path = np.zeros((total, model.manifold.size))  # rows that are not known yet cannot matter (causality)
    path[:CONTEXT] = context
    inputs = np.zeros((total, u.shape[1]))
    inputs[CONTEXT - 1 : -1] = u
    for t in range(CONTEXT, total):
        path[t] = predict(model, jnp.asarray(path), jnp.asarray(inputs))[t - 1]
    return path[CONTEXT:]


def test_every_rollout_is_its_definition(model):
    """Unforced and forced alike; one test, so that each program is compiled once."""
    q = positions(model)
    streamed, at_once = last_states(model, q)
    np.testing.assert_allclose(np.ravel(streamed), np.ravel(at_once), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(streamed[0], q[-1])

    still = jnp.zeros((HORIZON, 1))
    pushed = jnp.asarray(np.random.default_rng(2).normal(0.0, 2.0, (HORIZON, 1)))
    unforced, forced = rollouts(model, q, still), rollouts(model, q, pushed)
    for u, (rolled, taken) in ((still, unforced), (pushed, forced)):
        np.testing.assert_allclose(rolled, by_prefixes(model, q, u), rtol=1e-9, atol=1e-9)
        state, expected = streamed, []
        for row in u:
            state = step(model.core, *state, row)
            expected.append(state[0])
        np.testing.assert_allclose(taken, np.stack(expected), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(rolled[0], taken[0], rtol=1e-9, atol=1e-9)  # the modes differ from step two

    for without, zero, push in zip(rollouts(model, q, None), unforced, forced, strict=True):
        np.testing.assert_allclose(without, zero, rtol=1e-12, atol=1e-12)
        assert np.abs(push - zero).max() > 1e-3


@pytest.mark.usefixtures("float64")
def test_a_constant_push_on_a_free_mass():
    """q = q₀ + v t + ½ (u/m) t², which kick–drift–kick gets exactly."""
    free = PortHamiltonian(Quadratic(0.0), ConstantMass(2.0), ConstantDamping(0.0))
    core = Core(free, Transition(leapfrog(), ExplicitDamping(), Timestep(0.1)))
    q, p = core.rollout(jnp.array([1.0]), jnp.array([3.0]), 10, jnp.full((10, 1), 4.0))
    t = 0.1 * np.arange(1, 11)
    np.testing.assert_allclose(q[:, 0], 1.0 + 1.5 * t + 0.5 * 2.0 * t**2, rtol=1e-12)
    np.testing.assert_allclose(p[:, 0], 3.0 + 4.0 * t, rtol=1e-12)


def true_model(substeps=1, *, damping_step=None, dt=WINDY.dt):
    """Windy Pendulum as it is; only the momentum is hidden."""
    physics = WINDY.port_hamiltonian
    transition = Transition(leapfrog(), damping_step or ExactDamping(), Timestep(dt, substeps))
    return Phast(Core(physics, transition), FiniteDifference(WINDY.manifold), MassCanonicalizer(), WINDY.manifold, dt)


@pytest.mark.usefixtures("float64")
def test_the_true_system_in_fine_steps_follows_the_simulation(truth):
    def error(substeps):
        core = true_model(substeps).core
        q, p = jax.jit(jax.vmap(lambda q, p: core.rollout(q, p, 20)))(truth.q[:, 0], truth.p[:, 0])
        return max(np.abs(q - truth.q[:, 1:21]).max(), np.abs(p - truth.p[:, 1:21]).max())

    coarse, fine = error(4), error(32)
    assert fine < 2e-3
    assert fine < coarse / 30  # second order: 64 times, but for the kinks of |sin θ|


# --- predict and correct ---------------------------------------------------------------------------------------------


def filtered(model, q, sigma, process=1e-3):
    run = jax.jit(jax.vmap(lambda x: model.filter(x, measurement_noise=sigma, process_noise=process)))
    return run(jnp.asarray(q, dtype=float))


@pytest.mark.usefixtures("float64")
def test_the_filter_beats_finite_differences(truth):
    sigma, model = 0.01, true_model(2)
    noisy = truth.with_noise(sigma, seed=1)
    states = filtered(model, noisy.q, sigma, process=3e-3)
    settled = slice(15, None)

    def rms(x):
        return float(np.sqrt(np.mean(np.square(x))))

    rough = jax.vmap(lambda x: FiniteDifference(WINDY.manifold).velocities(x, WINDY.dt))(jnp.asarray(noisy.q))
    filter_error = rms((states.p - truth.p)[:, settled])
    assert filter_error < rms((rough - truth.p)[:, settled]) / 8
    assert rms((states.q - truth.q)[:, settled]) < 0.6 * sigma

    # It knows how good it is: errors in units of its own covariance are near one, and surprise shrinks to the noise.
    error = np.concatenate([states.q - truth.q, states.p - truth.p], axis=-1)[:, settled]
    normalised = np.einsum("bti,btij,btj->bt", error, np.linalg.inv(states.covariance[:, settled]), error)
    assert 0.3 < normalised.mean() / 2 < 3.0
    assert rms(states.innovation[:, 1:2]) > 5 * rms(states.innovation[:, settled])
    assert rms(states.innovation[:, settled]) < 1.5 * sigma
    spread = np.trace(states.covariance, axis1=-2, axis2=-1)
    assert np.all(spread[:, -1] < spread[:, 1])


@pytest.mark.parametrize("sigma", [1e-5, 1e-3, 0.1])
def test_covariances_stay_covariances_in_single_precision(truth, sigma):
    states = filtered(true_model(), truth.q, sigma)
    covariance = np.asarray(states.covariance, dtype=np.float64)
    np.testing.assert_array_equal(covariance, covariance.swapaxes(-1, -2))
    scale = np.abs(covariance).max(axis=(-1, -2), keepdims=True)
    assert np.linalg.eigvalsh(covariance / scale).min() > -1e-6
    assert np.diagonal(covariance, axis1=-2, axis2=-1).min() >= 0.0
    np.testing.assert_allclose(states.p[:, 20:], truth.p[:, 20:], atol=max(0.1, 20 * sigma))


@pytest.mark.usefixtures("float64")
def test_the_filter_of_a_linear_system_is_the_kalman_filter():
    """Written out with dense matrices and the textbook's update, for two coordinates and inputs."""
    dt, sigma, process, steps = 0.1, 0.05, 0.02, 15
    manifold = Manifold.parse("x", "y")
    physics = PortHamiltonian(Quadratic((1.0, 3.0)), ConstantMass((1.0, 2.0)), ConstantDamping(0.3))
    core = Core(physics, Transition(leapfrog(), ExplicitDamping(), Timestep(dt)))
    model = Phast(core, FiniteDifference(manifold), MassCanonicalizer(), manifold, dt)
    rng = np.random.default_rng(0)
    q, u = jnp.asarray(rng.normal(size=(steps, 2))), jnp.asarray(rng.normal(size=(steps, 2)))
    got = jax.jit(lambda q, u: model.filter(q, u, measurement_noise=sigma, process_noise=process))(q, u)

    def flow(x, force):
        return np.concatenate([np.asarray(part) for part in core(x[:2], x[2:], force)])

    zero = jnp.zeros(2)
    transition = np.stack([flow(jnp.asarray(e), zero) for e in np.eye(4)], axis=1)
    pushes = np.stack([flow(jnp.zeros(4), jnp.asarray(e)) for e in np.eye(2)], axis=1)
    measure, identity = np.eye(2, 4), np.eye(4)
    x = np.concatenate([q[0], np.zeros(2)])
    cov = np.diag([sigma**2] * 2 + [1 / dt**2] * 2)
    for t in range(steps):
        innovation = np.asarray(q[t]) - measure @ x
        gain = cov @ measure.T @ np.linalg.inv(measure @ cov @ measure.T + sigma**2 * np.eye(2))
        x = x + gain @ innovation
        cov = (identity - gain @ measure) @ cov
        np.testing.assert_allclose(got.innovation[t], innovation, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(np.concatenate([got.q[t], got.p[t]]), x, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(got.covariance[t], cov, rtol=1e-6, atol=1e-9)
        x = transition @ x + pushes @ np.asarray(u[t])
        cov = transition @ cov @ transition.T + np.diag([1e-12] * 2 + [process**2] * 2)


# --- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_blocks_stack():
    width, length = 6, 4
    keys = jax.random.split(jax.random.key(0), 3)
    damping = HouseholderDamping.create(PAIR, base=0.2, total_bound=0.5, width=4, harmonics=1, key=keys[2])
    physics = PortHamiltonian(Cosine((3.0, 2.0)), ConstantMass((1.0, 2.0)), damping)
    core = Core(physics, Transition(leapfrog(), ExplicitDamping(), Timestep(0.1)))
    blocks = tuple(PhastBlock.create(core, width, 2, key=key) for key in keys[:2])
    x = jnp.asarray(np.random.default_rng(0).normal(size=(length, width)))

    @eqx.filter_jit
    def loss(blocks, x):
        for block in blocks:
            x = block(x)
        return jnp.sum(x**2), x

    assert loss(blocks, x)[1].shape == (length, width)
    closed = tuple(dataclasses.replace(block, up=jnp.zeros_like(block.up)) for block in blocks)
    np.testing.assert_array_equal(loss(closed, x)[1], x)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda b: loss(b, x)[0]))(blocks)
    flat, unflatten = ravel_pytree(eqx.filter(blocks, eqx.is_inexact_array))
    direction = np.random.default_rng(1).normal(size=flat.shape)
    static = eqx.filter(blocks, eqx.is_inexact_array, inverse=True)

    def along(h):
        return float(loss(eqx.combine(unflatten(flat + h * direction), static), x)[0])

    slope = float(ravel_pytree(gradient)[0] @ direction)
    np.testing.assert_allclose(slope, (along(1e-5) - along(-1e-5)) / 2e-5, rtol=1e-5)
    assert all(float(jnp.abs(block.down).max()) > 0 for block in gradient)


# --- energy ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("base", [0.0, 0.3, 200.0])
def test_a_takeover_gains_no_energy_with_exact_damping(base):
    """Whatever D ⪰ 0 is, energy rises by no more than leapfrog's own error, which is of second order in dt."""
    damping = HouseholderDamping.create(WINDY.manifold, base=base, width=4, harmonics=1, key=jax.random.key(0))
    damping = ConstantDamping(0.0) if base == 0.0 else damping
    context = jnp.array([[1.0], [1.2]])

    def rise(substeps):
        model = true_model(substeps)
        model = eqx.tree_at(lambda m: m.core.system.damping, model, damping)
        q, p = jax.jit(lambda c: model.core.rollout(*model.state_after(c), 400))(context)
        energy = np.asarray(jax.vmap(model.core.system.energy)(q, p))
        return np.max(energy - np.minimum.accumulate(energy)), energy[0]

    coarse, start = rise(1)
    fine, _ = rise(4)
    assert coarse < 0.02 * start
    assert fine < coarse / 10 + 1e-12


@pytest.mark.parametrize("count", [1, 33, 64])
def test_forecasts_shared_out_over_the_cores_are_the_same(count):
    """Whatever the number of trajectories, none is lost, doubled or moved."""
    model = phast_known(system("pendulum-windy"), key=jax.random.key(0))
    contexts = jax.random.normal(jax.random.key(1), (count, 5, 1))
    together = jax.jit(jax.vmap(lambda q: autoregressive(model, q, 4)))(contexts)
    np.testing.assert_allclose(roll_out(autoregressive, model, contexts, 4), together, rtol=1e-5, atol=1e-5)
    taken = jax.jit(jax.vmap(lambda q: model.takeover(q, 4)))(contexts)
    np.testing.assert_allclose(roll_out(takeover, model, contexts, 4), taken, rtol=1e-5, atol=1e-5)


def test_trajectories_shared_out_keep_the_precision_of_their_caller(float64, monkeypatch):
    """Threads do not inherit the context in which double precision was asked for."""
    monkeypatch.setattr("phast.estimation.forecaster.cores", lambda: 2)
    x = jnp.linspace(0.0, 1.0, 33)
    found = shared_out(lambda part: part / jnp.asarray(3.0), x)
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, np.asarray(x) / 3.0, rtol=1e-14)

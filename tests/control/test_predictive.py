"""Predictive control: the Riccati iteration against dense solutions and known laws, limits, and a loop that holds."""

import functools
import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import phast
from phast.control.plant import Plant
from phast.control.predictive import PredictiveControl, Weights
from phast.control.regulator import regulator, root_of
from phast.control.riccati import AbstractOptimalControl, Plan, box_minimum, improved, plan_cost
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware

DT = 0.02


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


class Linear(AbstractOptimalControl):
    """x⁺ = A x + B u with residuals √Q x, √R u and √P x_N."""

    a: jax.Array
    b: jax.Array
    q: jax.Array
    r: jax.Array
    p: jax.Array
    limits: jax.Array

    def step(self, x, u):
        return self.a @ x + self.b @ u

    def stage(self, x, u):
        return jnp.concatenate([self.q * x, self.r * u])

    def final(self, x):
        return self.p @ x


def linear(inputs: int, limit: float, seed: int = 0) -> Linear:
    """Three unstable states."""
    rng = np.random.default_rng(seed)
    a, b = np.eye(3) + 0.2 * rng.standard_normal((3, 3)), rng.standard_normal((3, inputs))
    flow, slope = np.hstack([a, b]), np.diag([1.0, 0.5, 2.0, *[0.7] * inputs])
    p = root_of(regulator(flow, slope)[1])
    arrays = map(jnp.asarray, (a, b, np.diag(slope)[:3], np.diag(slope)[3:], p, np.full(inputs, limit)))
    return Linear(*arrays)


def idle(problem: Linear, horizon: int) -> Plan:
    return Plan(jnp.zeros((horizon + 1, 3)), jnp.zeros((horizon, len(problem.limits))))


X0 = np.array([1.0, -2.0, 0.5])


# --- the Riccati iteration -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [1, 2])
def test_without_active_limits_the_first_input_is_the_regulators(inputs):
    problem = linear(inputs, 1e6)
    flow = np.hstack([problem.a, problem.b])
    gain, p = regulator(flow, np.diag(np.concatenate([problem.q, problem.r])))
    plan, found = improved(problem, jnp.asarray(X0), idle(problem, 7))
    np.testing.assert_allclose(plan.u[0], -gain @ X0, rtol=1e-9)
    np.testing.assert_allclose(found, 0.5 * X0 @ p @ X0, rtol=1e-9)  # what it costs for ever


@pytest.mark.parametrize(("inputs", "limit"), [(1, 0.2), (2, 0.4)])
def test_under_limits_it_converges_to_the_solution_of_the_dense_problem(inputs, limit):
    problem, horizon = linear(inputs, limit), 12
    plan, step = idle(problem, horizon), jax.jit(lambda plan: improved(problem, jnp.asarray(X0), plan))
    for _ in range(30):
        plan, found = step(plan)

    def residuals(u):
        x, rows = jnp.asarray(X0), []
        for each in u.reshape(horizon, inputs):
            rows.append(problem.stage(x, each))
            x = problem.step(x, each)
        return jnp.concatenate([*rows, problem.final(x)])

    nothing = jnp.zeros(horizon * inputs)
    slope = np.asarray(jax.jacfwd(residuals)(nothing))
    dense = scipy.optimize.lsq_linear(slope, -np.asarray(residuals(nothing)), (-limit, limit), tol=1e-14)
    assert (np.abs(dense.x) > 0.999 * limit).any() and (np.abs(dense.x) < 0.99 * limit).any()
    np.testing.assert_allclose(found, dense.cost, rtol=1e-6)
    np.testing.assert_allclose(plan.u.ravel(), dense.x, atol=2e-3)
    assert np.abs(plan.u).max() <= limit


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_minimum_in_a_box_is_that_of_a_solver(size):
    rng = np.random.default_rng(size)
    for _ in range(30):
        root = rng.standard_normal((size, size)) + np.eye(size)
        hessian, gradient = root.T @ root + 0.1 * np.eye(size), 3.0 * rng.standard_normal(size)
        low, high = -rng.uniform(0.0, 1.0, size), rng.uniform(0.0, 1.0, size)
        z, free = box_minimum(*map(jnp.asarray, (hessian, gradient, low, high)))
        upper = np.linalg.cholesky(hessian).T
        wanted = scipy.optimize.lsq_linear(upper, -np.linalg.solve(upper.T, gradient), (low, high), method="bvls").x
        np.testing.assert_allclose(z, wanted, atol=1e-9)
        np.testing.assert_array_equal(free, (wanted > low + 1e-9) & (wanted < high - 1e-9))


def test_a_regulator_solves_the_riccati_equation_and_refuses_what_it_cannot_reach():
    flow, slope = np.array([[1.1, 0.1, 0.0], [0.0, 0.9, 1.0]]), np.diag([1.0, 1.0, 1.0])
    gain, p = regulator(flow, slope)
    a, b = flow[:, :2], flow[:, 2:]
    np.testing.assert_allclose(p, np.eye(2) + a.T @ p @ (a - b @ gain), rtol=1e-9)
    with pytest.raises(InputError, match="cannot stabilise"):
        regulator(np.array([[1.1, 0.0, 0.0], [0.0, 0.9, 1.0]]), slope)


# --- the controller --------------------------------------------------------------------------------------------------


def cart_pole() -> phast.PortHamiltonian:
    mass = phast.components.mass.CartPoleMass(1.0, 0.3, 0.5)
    return phast.PortHamiltonian(phast.Cosine((0.0, 1.5)), mass, phast.Friction((0.5, 0.01)), port=((1.0,), (0.0,)))


MANIFOLD = phast.Manifold.parse("x", "theta:angle")
UPRIGHT = (0.0, math.pi)


def model_of(system) -> ModelAware:
    return ModelAware(Core(system, phast.RungeKutta(phast.Timestep(DT))), MANIFOLD, DT, 10, 0.002)


@functools.cache
def controller(limits: float = 10.0) -> PredictiveControl:
    within = ((-1.0, 1.0), None)
    return PredictiveControl.create(model_of(cart_pole()), UPRIGHT, limits=limits, horizon=25, within=within)


@functools.cache
def solver():
    control = controller()
    return jax.jit(lambda x, plan: control.solve(x, plan))


def test_each_iteration_costs_no_more_and_keeps_the_limits_exactly():
    x = jnp.array([0.1, math.pi - 0.3, 0.3, -0.05])
    plan, costs = Plan(jnp.broadcast_to(x, (26, 4)), jnp.zeros((25, 1))), []  # no motion of the model
    for _ in range(25):
        plan = solver()(x, plan)
        costs.append(float(plan_cost(controller().problem, plan)))
    assert all(after <= before * (1.0 + 1e-12) for before, after in itertools.pairwise(costs))
    assert costs[-1] < 0.99 * costs[0] and costs[-1] == pytest.approx(costs[-2], rel=1e-6)
    assert float(jnp.max(jnp.abs(plan.u))) == 10.0  # one is there, and none beyond
    moved = jax.vmap(controller().problem.step)(plan.x[:-1], plan.u)
    np.testing.assert_allclose(moved, plan.x[1:], atol=1e-12)  # a motion of the model


def test_where_it_has_converged_the_cost_does_not_change_with_free_inputs():
    x, problem = jnp.array([0.1, math.pi + 0.1, 0.0, 0.0]), controller().problem
    plan = controller().first_plan(x)
    for _ in range(20):
        plan = solver()(x, plan)

    def total(u):
        ends, states = jax.lax.scan(lambda x, each: (problem.step(x, each), x), x, u)
        return plan_cost(problem, Plan(jnp.concatenate([states, ends[None]]), u))

    total = jax.jit(total)
    slopes = [(total(plan.u.at[t, 0].add(1e-4)) - total(plan.u.at[t, 0].add(-1e-4))) / 2e-4 for t in (0, 5, 12, 24)]
    idle = (total(plan.u.at[0, 0].add(1.0)) - total(plan.u)) * 1e-4
    assert np.abs(slopes).max() < idle < 1.0


def test_near_the_target_it_is_the_regulator():
    off = jnp.array([1e-6, 2e-6, -1e-6, 1e-6])
    x = jnp.array([*UPRIGHT, 0.0, 0.0]) + off
    plan = solver()(x, controller().first_plan(x))
    np.testing.assert_allclose(plan.u[0], -controller().gain @ off, rtol=1e-4)


@functools.cache
def jitted():
    """Start, update and the true plant, compiled once."""
    control, plant = controller(), Plant(cart_pole(), MANIFOLD, DT, (10.0,))
    start = jax.jit(lambda q: control.start(q, (q, q)))
    update = jax.jit(lambda cache, q, u: control.update(cache, q, u, (q, q)))
    return start, update, jax.jit(lambda q, p, u: plant(q, p, u))


def test_it_holds_the_true_pole_upright_from_noisy_positions_alone():
    start, update, plant = jitted()
    rng, (q, p) = np.random.default_rng(0), (jnp.array([0.3, math.pi - 0.25]), jnp.zeros(2))
    (cache, decided), seen = start(q), []
    for _ in range(170):
        q, p = plant(q, p, decided.u)
        cache, decided = update(cache, q + 0.002 * rng.standard_normal(2), decided.u)
        seen.append((*np.abs(q - jnp.asarray(UPRIGHT)), float(jnp.abs(decided.u[0]))))
    assert np.max(seen[-25:], axis=0)[:2].max() < 0.05
    assert np.max(seen, axis=0)[2] <= 10.0


def test_positions_that_are_no_numbers_and_angles_that_jump_do_not_reach_the_actuators():
    start, update, _ = jitted()
    q = jnp.array([0.1, math.pi - 0.1])
    cache, decided = start(q)
    turned, _ = update(cache, q - jnp.array([0.0, 2 * math.pi]), decided.u)
    usual, _ = update(cache, q, decided.u)
    np.testing.assert_allclose(turned.plan.u, usual.plan.u, atol=1e-6)
    cache = usual
    for _ in range(3):
        cache, decided = update(cache, jnp.array([jnp.nan, math.pi]), decided.u)
        assert np.isfinite(decided.u).all() and np.abs(decided.u).max() <= 10.0
    lost = cache._replace(plan=jax.tree.map(lambda x: x * jnp.nan, cache.plan))
    _, decided = update(lost, jnp.array([0.1, math.pi]), decided.u)
    assert np.isfinite(decided.u).all()


# --- bad input -------------------------------------------------------------------------------------------------------

GOOD = {"target": UPRIGHT, "limits": 10.0}
BAD = {
    "limits for two": ({"limits": (1.0, 2.0)}, r"limits=.*one finite number for each input, 1 in all"),
    "limits of zero": ({"limits": 0.0}, "positive numbers"),
    "limits that are no number": ({"limits": math.nan}, "finite"),
    "weights for three": ({"weights": Weights(position=(1.0, 1.0, 1.0))}, "position=.*coordinate, 2 in all"),
    "a target for one": ({"target": (1.0, 2.0, 3.0)}, "target=.*coordinate, 2 in all"),
    "a target beyond its limits": (
        {"target": (2.0, math.pi), "within": ((-1.0, 1.0), None)},
        "x=2 is outside its limits",
    ),
    "a pole held aslant": ({"target": (0.0, 2.5)}, "no input holds x=0, theta=2.5"),
    "limits upside down": ({"within": ((1.0, -1.0), None)}, "give \\(least, largest\\)"),
    "too few limits of positions": ({"within": ((-1.0, 1.0),)}, "within has 1 entries"),
    "no horizon": ({"horizon": 0}, "at least 2 samples"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_line(case):
    changed, told = BAD[case]
    with pytest.raises(InputError, match=told) as refused:
        PredictiveControl.create(model_of(cart_pole()), **(GOOD | changed))
    assert "\n" not in str(refused.value)


def test_a_target_that_takes_more_than_the_limits_and_a_model_without_a_port_are_refused():
    arm = phast.PortHamiltonian(phast.Cosine(9.81), phast.ConstantMass(1.0), phast.ConstantDamping(0.1))
    model = ModelAware(Core(arm, phast.RungeKutta(phast.Timestep(DT))), phast.Manifold.parse("theta:angle"), DT)
    with pytest.raises(InputError, match=r"takes 9\.81 of input 1, and its limit is 5"):
        PredictiveControl.create(model, (math.pi / 2,), limits=5.0)
    prey = phast.ConsumerResource(phast.Quadratic(1.0), phast.ConstantDamping(0.1), 1.0)
    with pytest.raises(InputError, match="no input port"):
        PredictiveControl.create(eqx.tree_at(lambda m: m.core.system, model, prey), (1.0,), limits=5.0)
    for bad in ({"position": -1.0}, {"effort": 0.0}, {"outside": 0.0}):
        with pytest.raises(InputError, match="weight"):
            Weights(**bad)

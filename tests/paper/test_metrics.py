"""Every metric beside a plain NumPy version of its definition, and what a perfect model must score."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import Still

from phast.components.damping import ConstantDamping, WindyDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import ExactDamping, Timestep, Transition, leapfrog
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import AbstractForecaster, Core, Phast
from phast.estimation.observers import AbstractObserver, FiniteDifference, MassCanonicalizer
from phast.paper.metrics import damping_recovery, error_name, evaluate, first_step_floor

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

PAIR = Manifold.parse("x", "theta:angle")
DT, CONTEXT, HORIZONS = 0.1, 3, (2, 5)
MASSES, AMPLITUDES, BASE, GAIN = np.array([2.0, 1.0]), np.array([0.0, 3.0]), 0.3, 0.5
WINDY = system("pendulum-windy")


def truth():
    return PortHamiltonian(Cosine((0.0, 3.0)), ConstantMass((2.0, 1.0)), WindyDamping(BASE, GAIN, (1, 1)))


def model(damping=0.6):
    """The right physics but for its damping, so that nothing is zero by accident."""
    physics = dataclasses.replace(truth(), damping=ConstantDamping(damping))
    core = Core(physics, Transition(leapfrog(), ExactDamping(), Timestep(DT)))
    return Phast(core, FiniteDifference(PAIR), MassCanonicalizer(), PAIR, DT)


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    q = np.array([0.0, 3.0]) + np.cumsum(rng.normal(0.02, 0.1, (4, 12, 2)), axis=1)
    return Trajectories(q, DT, PAIR, v=rng.normal(size=q.shape))


# --- the definitions, written out ------------------------------------------------------------------------------------


def difference(a, b):
    d = np.array(a - b)
    d[..., 1] = (d[..., 1] + np.pi) % (2 * np.pi) - np.pi
    return d


def step(q, p, damping=0.6):
    p = p * np.exp(-0.5 * DT * damping / MASSES)
    p = p - 0.5 * DT * AMPLITUDES * np.sin(q)
    q = q + DT * p / MASSES
    p = p - 0.5 * DT * AMPLITUDES * np.sin(q)
    return q, p * np.exp(-0.5 * DT * damping / MASSES)


def next_of(path):
    """One prediction from everything so far."""
    v = difference(path[-1], path[-2]) / DT if len(path) > 1 else np.zeros(2)
    return step(path[-1], MASSES * v)[0]


def energies(path):
    """H at the later end of every step of a path, and the power lost on the way."""
    energy, power = [], []
    for a, b in itertools.pairwise(path):
        v = difference(b, a) / DT
        energy.append(0.5 * np.sum(MASSES * v**2) + np.sum(AMPLITUDES * (1 - np.cos(b))))
        power.append((BASE + GAIN * abs(np.sin(a[1]))) * np.sum(v**2))
    return np.array(energy), np.array(power)


def expected_metrics(seen, q, v):
    longest = max(HORIZONS)
    expected = {}
    one_step = np.array(
        [[difference(next_of(x[: t + 1]), y[t + 1]) ** 2 for t in range(11)] for x, y in zip(seen, q, strict=True)]
    )
    expected["mixed_mse"] = 0.5 * (one_step[..., 0].mean() + one_step[..., 1].mean())
    expected["next_step_after_burn_in"] = one_step[:, CONTEXT:].mean()
    expected["next_step_after_burn_in_median"] = np.median([e[CONTEXT:].mean() for e in one_step])
    expected["floor"] = np.mean(v[:, 0] ** 2) * DT**2 / 11

    rolled, taken = [], []
    for x in seen:
        path = list(x[:CONTEXT])
        for _ in range(longest):
            path.append(next_of(np.array(path)))
        rolled.append(path[CONTEXT:])
        a, b = x[CONTEXT - 1], MASSES * difference(x[CONTEXT - 1], x[CONTEXT - 2]) / DT
        states = []
        for _ in range(longest):
            a, b = step(a, b)
            states.append(a)
        taken.append(states)
    for name, paths in (("rollout_mixed_mse", np.array(rolled)), ("rollout_takeover_mixed_mse", np.array(taken))):
        error = difference(paths, q[:, CONTEXT : CONTEXT + longest]) ** 2
        for h in HORIZONS:
            expected[f"{name}_h{h}"] = 0.5 * (error[:, :h, 0].mean() + error[:, :h, 1].mean())
            expected[f"{name}_h{h}_median"] = np.median([e[:h].mean() for e in error])
            expected[f"{name}_h{h}_final"] = error[:, h - 1].mean()

    for h in HORIZONS:
        residuals, violations = [], []
        for x, path in zip(q, rolled, strict=True):
            energy, power = energies([x[CONTEXT - 1], *path[:h]])
            for i in range(h - 1):
                residuals.append(abs((energy[i + 1] - energy[i]) / DT + power[i]))
                violations.append(energy[i + 1] - energy[i] > 1e-6)
        expected[f"rollout_energy_budget_resid_h{h}"] = np.mean(residuals)
        expected[f"rollout_passivity_violations_h{h}"] = np.mean(violations)

    true = (BASE + GAIN * np.abs(np.sin(q[..., 1])))[..., None] * np.ones(2)
    expected["damping_mae"] = np.abs(0.6 - true).mean()
    expected["damping_r2"] = 1 - np.sum((0.6 - true) ** 2) / (np.sum((true - true.mean()) ** 2) + 1e-12)

    rough = np.concatenate([np.zeros((4, 1, 2)), difference(seen[:, 1:], seen[:, :-1]) / DT], axis=1)
    expected["velocity_mae"] = expected["velocity_fd_mae"] = np.abs(rough - v)[:, 1:].mean()
    expected["damping_stiffness"] = 0.5 * DT * 0.6 / 1.0
    expected["timestep_ratio"] = 1.0
    return expected


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_every_metric(data, noise):
    """With noise, models see noisy positions and are judged against the clean ones."""
    found = evaluate(model(), data, truth=truth(), context=CONTEXT, horizons=HORIZONS, noise=noise)
    seen = data.q if noise == 0.0 else data.with_noise(noise, seed=2).q
    expected = expected_metrics(seen, data.q, data.v)
    assert set(found) == set(expected)
    assert all(type(x) is float for x in found.values())
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-8, abs=1e-12), name


def test_names_are_those_of_the_paper():
    """Table "metric keys", with H = 10, 50, 100."""
    assert error_name(WINDY.manifold) == "theta_wrap_mse"
    assert error_name(Manifold.parse("a:angle", "b:angle")) == "theta_wrap_mse"
    assert error_name(Manifold.parse("x", "y")) == "mse"
    assert error_name(PAIR) == "mixed_mse"


def test_keys_are_absent_where_they_do_not_apply(data):
    """A baseline has no takeover and no damping; a system without a known energy has no budget."""

    keys = set(evaluate(Still(PAIR), data, context=CONTEXT, horizons=(2,)))
    kept = {"mixed_mse", "floor", "next_step_after_burn_in", "next_step_after_burn_in_median"}
    assert keys == kept | {f"rollout_mixed_mse_h2{suffix}" for suffix in ("", "_median", "_final")}
    with_truth = set(evaluate(Still(PAIR), data, truth=truth(), context=CONTEXT, horizons=(2,)))
    assert with_truth - keys == {"rollout_energy_budget_resid_h2", "rollout_passivity_violations_h2"}
    without = set(evaluate(model(), dataclasses.replace(data, v=None), context=CONTEXT, horizons=(2,)))
    assert "velocity_mae" not in without and "damping_r2" not in without and "damping_stiffness" in without


class Oracle(AbstractObserver):
    """Knows the velocity at every sample of one trajectory: what a perfect observer would say."""

    q: jax.Array
    v: jax.Array

    def _look_up(self, q):
        distance = jnp.sum(jnp.abs(self.q - q), axis=-1)
        return self.v.reshape(-1, 1)[jnp.argmin(distance)]

    def velocities(self, q, dt):
        return jax.vmap(self._look_up)(q)

    def start(self, q):
        return None, self._look_up(q)

    def update(self, cache, q, dt):
        return None, self._look_up(q)


def test_a_perfect_model_has_no_error():
    test = simulate(WINDY, 3, length=32, seed=1)
    physics = WINDY.port_hamiltonian
    core = Core(physics, Transition(leapfrog(), ExactDamping(), Timestep(WINDY.dt, 40)))
    oracle = Oracle(jnp.asarray(test.q.reshape(-1, 1)), jnp.asarray(test.v.reshape(-1, 1)))
    perfect = Phast(core, oracle, MassCanonicalizer(), WINDY.manifold, WINDY.dt)
    found = evaluate(perfect, test, truth=physics, context=10, horizons=(10, 20))
    errors = [value for name, value in found.items() if "mse" in name or name.startswith("next_step")]
    assert len(errors) == 15 and max(errors) < 1e-7
    assert found["damping_r2"] == pytest.approx(1.0) and found["damping_mae"] < 1e-12
    assert found["velocity_mae"] < 1e-12 < 1e-3 < found["velocity_fd_mae"]
    assert found["timestep_ratio"] == pytest.approx(1.0)
    assert found["damping_stiffness"] <= 0.5 * WINDY.dt / 40 * 0.8 + 1e-12


def test_damped_truth_violates_no_passivity():
    """Slow and strongly damped, so that finite differences of the true path lose energy at every step too."""
    q = np.exp(-0.3 * DT * np.arange(20))[None, :, None] * np.array([[[0.5, 0.8]], [[-0.3, 0.2]]])

    class Exact(AbstractForecaster):
        manifold: Manifold

        def predict_next(self, q, u=None, *, key=None):
            return q * jnp.exp(-0.3 * DT)

        def init_cache(self, context, past=None, *, horizon=1):
            return context[-1]

        def step(self, cache, u=None):
            moved = cache * jnp.exp(-0.3 * DT)
            return moved, moved

    found = evaluate(Exact(PAIR), Trajectories(q, DT, PAIR), truth=truth(), context=3, horizons=(5, 15))
    assert found["rollout_passivity_violations_h15"] == 0.0
    assert found["rollout_mixed_mse_h15"] < 1e-20
    # Run backwards, the same path gains energy at every step.
    grows = Trajectories(q[:, ::-1].copy(), DT, PAIR)

    class Growing(Exact):
        def predict_next(self, q, u=None, *, key=None):
            return q * jnp.exp(0.3 * DT)

        def step(self, cache, u=None):
            moved = cache * jnp.exp(0.3 * DT)
            return moved, moved

    assert (
        evaluate(Growing(PAIR), grows, truth=truth(), context=3, horizons=(5,))["rollout_passivity_violations_h5"]
        == 1.0
    )


def test_damping_recovery_is_r_squared():
    """As scikit-learn has it; the mean of the truth scores 0, and a constant truth cannot be explained."""
    q = jnp.asarray(np.random.default_rng(0).uniform(-3, 3, (3, 5, 2)))
    true = BASE + GAIN * np.abs(np.sin(np.asarray(q)[..., 1]))

    def score(damping, wanted=None):
        found = damping_recovery(dataclasses.replace(truth(), damping=damping), wanted or truth(), q)
        return {name: float(value) for name, value in found.items()}

    assert score(WindyDamping(BASE, GAIN, (1, 1))) == {"damping_r2": 1.0, "damping_mae": 0.0}
    assert score(ConstantDamping(float(true.mean())))["damping_r2"] == pytest.approx(0.0, abs=1e-9)
    off = score(WindyDamping(BASE + 0.1, GAIN, (1, 1)))
    assert off["damping_mae"] == pytest.approx(0.1)
    assert off["damping_r2"] == pytest.approx(1 - 0.01 / true.var())


def test_the_floor(data):
    expected = np.mean(np.asarray(data.v)[:, 0] ** 2) * DT**2 / (12 - 1)
    assert first_step_floor(data) == pytest.approx(expected)
    # Without velocities, from the first step that was taken, over ±π if need be.
    turned = data.q.copy()
    turned[:, 1:, 1] -= 2 * np.pi
    unseen = Trajectories(turned, DT, PAIR)
    assert first_step_floor(unseen) == pytest.approx(np.mean((data.q[:, 1] - data.q[:, 0]) ** 2) / 11)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_too_short_trajectories_are_refused(data):
    with pytest.raises(InputError, match="12 samples cannot hold a context of 3 and a forecast of 10"):
        evaluate(model(), data, context=3, horizons=(2, 10))


@pytest.mark.parametrize("horizons", [(1,), (1, 3)])
def test_a_horizon_of_one_step_has_no_energy_difference(data, horizons):
    found = evaluate(model(), data, truth=truth(), context=CONTEXT, horizons=horizons)
    assert all(np.isfinite(value) for value in found.values())
    assert "rollout_mixed_mse_h1" in found


@pytest.mark.parametrize(("context", "horizons"), [(0, (2,)), (3, (0,)), (3, (-1,)), (3, ())])
def test_impossible_protocols_are_refused(data, context, horizons):
    with pytest.raises(InputError):
        evaluate(model(), data, context=context, horizons=horizons)

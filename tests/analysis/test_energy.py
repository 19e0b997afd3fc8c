"""Where energy goes, along motion of which the truth is known: conserved, accounted for, never made."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phast.analysis.energy import power_balance
from phast.components.damping import Friction
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine, Quadratic, Some, Sum
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import ModelAware

pytestmark = pytest.mark.usefixtures("float64")

DT, COUNT, LENGTH = 0.05, 3, 80
MANIFOLD = Manifold.parse("theta:angle", "x")


def rig(viscous=0.3, coulomb=0.2, port=((1.0,), (0.5,))):
    """A pendulum and a spring with friction, driven by one input."""
    wells = Sum((Some(Cosine(Positive.starting_at(5.0)), (0,)), Some(Quadratic(Positive.starting_at(8.0)), (1,))))
    rubbing = Friction(Positive.starting_at(viscous), Positive.starting_at(coulomb))
    return PortHamiltonian(wells, ConstantMass((1.0, 2.0)), rubbing, port)


def model_of(system):
    return ModelAware(Core(system, RungeKutta(Timestep(DT, 2))), MANIFOLD, DT, window=12)


@eqx.filter_jit
def _followed(system, q, p, held):
    fine = Core(system, RungeKutta(Timestep(DT, 10)))
    after = jax.vmap(lambda q, p, held: fine.rollout(q, p, LENGTH - 1, held))(q, p, held)
    return [jnp.concatenate([x[:, None], y], axis=1) for x, y in zip((q, p), after, strict=True)]


def motion(system, *, driven, seed=0):
    """Motion in fine steps, sampled unevenly where it is driven."""
    rng = np.random.default_rng(seed)
    q, p = rng.normal(0.0, (1.2, 0.8), (COUNT, 2)), rng.normal(0.0, 1.0, (COUNT, 2))
    u = 2.0 * np.sin(rng.uniform(0, 6, (COUNT, 1, 1)) + 0.3 * np.arange(LENGTH)[:, None]) if driven else None
    stretch = rng.uniform(0.5, 1.5, (COUNT, LENGTH, 1)) if driven else np.ones((COUNT, LENGTH, 1))
    held = Held(None if u is None else jnp.asarray(u[:, :-1]), jnp.asarray(stretch[:, :-1, 0]))
    q, p = map(np.asarray, _followed(system, jnp.asarray(q), jnp.asarray(p), held))
    return Trajectories(q, DT, MANIFOLD, p=p, u=u, stretch=stretch if driven else None)


def true_energy(system, data):
    return np.asarray(jax.vmap(jax.vmap(system.energy))(jnp.asarray(data.q), jnp.asarray(data.p)))


def test_the_true_model_accounts_for_all_energy_of_a_driven_motion():
    system = rig()
    data = motion(system, driven=True)
    found = power_balance(model_of(system), data)
    energy = true_energy(system, data)[:, 11:]
    np.testing.assert_allclose(found.t, data.times[:, 11:])
    np.testing.assert_allclose(found.energy, energy, atol=1e-3)
    work = np.cumsum((data.u[:, :-1] @ np.array([[1.0, 0.5]]) * np.diff(data.q, axis=1)).sum(-1)[:, 11:], axis=1)
    np.testing.assert_allclose(found.supplied[:, 1:], work, atol=1e-3)
    lost = energy[:, :1] + found.supplied - energy  # what became of the rest
    moved = lost[:, -1] + np.abs(np.diff(found.supplied, axis=1)).sum(axis=1)
    assert (moved > 3.0).all()
    assert (np.abs(found.dissipated - lost).max(axis=1) < 3e-4 * moved).all()
    assert (np.abs(found.unexplained).max(axis=1) < 3e-4 * moved).all()


def test_the_parts_add_up_and_begin_at_nothing():
    data = motion(rig(), driven=True, seed=1)
    found = power_balance(model_of(rig(viscous=0.9)), data)
    stored = found.energy - found.energy[:, :1]
    np.testing.assert_allclose(stored, found.supplied - found.dissipated + found.unexplained, atol=1e-12)
    for part in (found.supplied, found.dissipated, found.unexplained):
        np.testing.assert_array_equal(part[:, 0], 0.0)


@settings(max_examples=8)
@given(viscous=st.floats(0.01, 1.0), coulomb=st.floats(0.01, 1.0), seed=st.integers(0, 99))
def test_energy_left_alone_never_rises(viscous, coulomb, seed):
    system = rig(viscous, coulomb, port=None)
    found = power_balance(model_of(system), motion(system, driven=False, seed=seed))
    scale = found.energy.max(axis=1, keepdims=True) - found.energy.min(axis=1, keepdims=True)
    assert (np.diff(found.energy, axis=1) <= 3e-3 * scale).all()
    assert (np.diff(found.dissipated, axis=1) >= 0.0).all() and not found.supplied.any()
    assert (np.abs(found.unexplained) <= 5e-3 * scale).all()


def test_friction_that_the_model_lacks_is_energy_that_went_nowhere():
    data = motion(rig(viscous=0.8, port=None), driven=False)
    lacking = power_balance(model_of(rig(viscous=0.1, port=None)), data)
    told = power_balance(model_of(rig(viscous=0.8, port=None)), data)
    assert (lacking.unexplained[:, -1] < -0.3 * told.dissipated[:, -1]).all()


def test_what_comes_later_changes_nothing_before():
    system = rig()
    data = motion(system, driven=True)
    whole, part = (power_balance(model_of(system), each) for each in (data, data.steps(0, 50)))
    for x, y in zip(whole, part, strict=True):
        np.testing.assert_allclose(x[:, :39], y, atol=1e-9)


def test_too_few_samples_are_refused():
    with pytest.raises(InputError, match=r"12 samples are too few .* looks at 12"):
        power_balance(model_of(rig()), motion(rig(), driven=True).steps(0, 12))

"""Filters: one sample at a time, from a cache of constant size, is the recording at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.estimation.forecaster import AbstractFilter, Core, ExtendedKalmanFilter, Filtered
from phast.estimation.inputs import Held, held_before
from phast.estimation.moving_horizon import MovingHorizonFilter

pytestmark = pytest.mark.usefixtures("float64")

ANGLE, DT, LENGTH = Manifold.parse("theta:angle"), 0.05, 40


def core() -> Core:
    pendulum = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.4))
    return Core(pendulum, RungeKutta(Timestep(DT, 2)))


FILTERS = {
    "moving horizon": lambda: MovingHorizonFilter(core(), core(), ANGLE, DT, window=6, noise=0.01),
    "extended Kalman": lambda: ExtendedKalmanFilter(core(), ANGLE, DT, 0.01, 0.01),
}


def measured(*, jump: float = 0.0) -> tuple[jax.Array, Held]:
    """Noisy angles of a pendulum that is pushed and turns over, wrapped into one turn; ``jump`` is no motion."""
    rng = np.random.default_rng(0)
    u = jnp.asarray(rng.normal(0.0, 2.0, (LENGTH, 1)))
    stretch = jnp.asarray(rng.uniform(0.6, 1.4, LENGTH))
    q, _ = jax.jit(core().rollout, static_argnums=2)(jnp.array([3.0]), jnp.array([3.0]), LENGTH, Held(u, stretch))
    held = Held(jnp.roll(u, -1, axis=0), jnp.roll(stretch, -1))  # row s of a rollout led to its state s
    noisy = q + 0.01 * rng.normal(size=q.shape)
    return ANGLE.wrap(noisy.at[LENGTH // 2 :].add(jump)), held


def one_by_one(chosen: AbstractFilter, q, held) -> tuple[Filtered, object]:
    """All that a stream of samples gives, and the last cache."""
    before = held_before(held)
    cache = chosen.start(q[0], jax.tree.map(lambda x: x[0], before))
    update, found = jax.jit(chosen.update), []
    for t in range(len(q)):
        cache, known = update(cache, q[t], jax.tree.map(lambda x, t=t: x[t], before))
        found.append(known)
    return jax.tree.map(lambda *rows: np.stack(rows), *found), cache


@pytest.mark.parametrize("name", FILTERS)
def test_a_stream_of_samples_is_the_recording(name):
    """With uneven steps, and with a jump that the model cannot explain."""
    chosen, (q, held) = FILTERS[name](), measured(jump=1.0)
    batch = jax.jit(chosen.along)(q, held)
    stream, cache = one_by_one(chosen, q, held)
    for part in Filtered._fields:
        at_once = getattr(batch, part)
        np.testing.assert_allclose(getattr(stream, part), at_once, rtol=1e-9, atol=1e-11, err_msg=part)
    sizes = jax.tree.map(jnp.shape, (chosen.start(q[0], Held(held.u[0], held.stretch[0])), cache))
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_reads_no_sample_of_the_future(name):
    """Other positions, inputs and steps from sample 4 on, before any window is full, change nothing earlier."""
    chosen, (q, held), cut = FILTERS[name](), measured(jump=1.0), 4
    run = jax.jit(chosen.along)
    other = Held(held.u.at[cut:].multiply(-3.0), held.stretch.at[cut:].multiply(1.7))
    here, there = run(q, held), run(q.at[cut + 1 :].add(2.0), other)
    for part in Filtered._fields:
        np.testing.assert_array_equal(getattr(here, part)[: cut + 1], getattr(there, part)[: cut + 1], err_msg=part)


@pytest.mark.parametrize("name", FILTERS)
def test_the_first_sample_is_its_position_at_rest(name):
    chosen, (q, held) = FILTERS[name](), measured()
    first = jax.tree.map(lambda x: x[0], jax.jit(chosen.along)(q, held))
    np.testing.assert_allclose(first.q, q[0], atol=1e-9)
    np.testing.assert_allclose(first.p, 0.0, atol=1e-9)
    np.testing.assert_array_equal(first.innovation, 0.0)

"""Observers by law: streaming equals batch, the future never leaks into the past, full turns change nothing.

A new observer costs one line in OBSERVERS; one that is not there fails ``test_every_class_is_under_test``.
"""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phast.components.damping import ConstantDamping
from phast.components.mass import CartPoleMass
from phast.components.potential import Cosine
from phast.data.manifold import TWO_PI, Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError
from phast.estimation import observers
from phast.estimation.observers import (
    AbstractCanonicalizer,
    AbstractObserver,
    CausalConvolution,
    ConvolutionalObserver,
    FiniteDifference,
    FixedLagSmoother,
    IdentityCanonicalizer,
    MassCanonicalizer,
)

pytestmark = pytest.mark.usefixtures("float64")

DT = 0.05
LENGTH = 12
ANGLE = Manifold.parse("theta:angle")
PAIR = Manifold.parse("x", "theta:angle")
MANIFOLDS = {"angle": ANGLE, "line and angle": PAIR}
OBSERVERS = {
    "finite difference": lambda manifold, key: FiniteDifference(manifold),
    "convolutional": lambda manifold, key: ConvolutionalObserver.create(manifold, key=key),
    "convolutional, other shape": lambda manifold, key: ConvolutionalObserver.create(
        manifold, width=5, taps=2, dilations=(3, 1, 2), key=key
    ),
    "convolutional, told the noise": lambda manifold, key: ConvolutionalObserver.create(
        manifold, width=5, noise=0.3, key=key
    ),
    "fixed-lag smoother": lambda manifold, key: FixedLagSmoother.create(manifold, DT, window=5, noise=0.02),
}
SEEDS = st.integers(0, 2**31 - 1)

every_observer = pytest.mark.parametrize("make", OBSERVERS.values(), ids=OBSERVERS.keys())
every_manifold = pytest.mark.parametrize("manifold", MANIFOLDS.values(), ids=MANIFOLDS.keys())


def make_perturbed(make, manifold, perturbed, trainable_count, seed):
    """An observer as training may leave it: nothing at zero any more."""
    observer = make(manifold, jax.random.key(0))
    return perturbed(observer, np.random.default_rng(seed).normal(0.0, 0.3, trainable_count(observer)))


def walk(manifold, seed):
    """Large steps from near ±π, so that unwrapped angles turn over and their wrapped values jump."""
    rng = np.random.default_rng(seed)
    start = rng.choice([-np.pi, np.pi], manifold.size)
    return start + np.cumsum(rng.uniform(-1.5, 1.5, (LENGTH, manifold.size)), axis=0)


@eqx.filter_jit
def batch(observer, q):
    return observer.velocities(q, DT)


@eqx.filter_jit
def stream(observer, q):
    cache, first = observer.start(q[0])

    def body(cache, sample):
        return observer.update(cache, sample, DT)

    return jnp.concatenate([first[None], jax.lax.scan(body, cache, q[1:])[1]])


def concrete(base):
    members = vars(observers).values()
    return {c for c in members if isinstance(c, type) and issubclass(c, base) and not inspect.isabstract(c)}


def test_every_class_is_under_test():
    made = {type(make(ANGLE, jax.random.key(0))) for make in OBSERVERS.values()}
    assert made == concrete(AbstractObserver)
    assert concrete(AbstractCanonicalizer) == {IdentityCanonicalizer, MassCanonicalizer}


@every_observer
@every_manifold
@given(seed=SEEDS)
def test_streaming_equals_batch(make, manifold, perturbed, trainable_count, seed):
    observer = make_perturbed(make, manifold, perturbed, trainable_count, seed)
    q = jnp.asarray(walk(manifold, seed))
    np.testing.assert_allclose(stream(observer, q), batch(observer, q), rtol=1e-12, atol=1e-12)


@every_observer
@every_manifold
@given(seed=SEEDS, known=st.integers(1, LENGTH - 1))
def test_the_future_does_not_reach_back(make, manifold, perturbed, trainable_count, seed, known):
    observer = make_perturbed(make, manifold, perturbed, trainable_count, seed)
    q = walk(manifold, seed)
    other = np.concatenate([q[:known], walk(manifold, seed + 1)[known:]])
    before, after = batch(observer, jnp.asarray(q)), batch(observer, jnp.asarray(other))
    np.testing.assert_array_equal(before[:known], after[:known])
    assert np.all(np.any(np.asarray(before[known:]) != np.asarray(after[known:]), axis=-1)[:1])


@every_observer
@every_manifold
@given(seed=SEEDS, turns=st.integers(-5, 5).filter(bool))
def test_full_turns_change_nothing(make, manifold, perturbed, trainable_count, seed, turns):
    observer = make_perturbed(make, manifold, perturbed, trainable_count, seed)
    q = walk(manifold, seed)
    turned = q + TWO_PI * turns * np.array(manifold.circles)
    expected = batch(observer, jnp.asarray(q))
    np.testing.assert_allclose(batch(observer, jnp.asarray(turned)), expected, rtol=1e-9, atol=1e-9)
    # One sample that was wrapped by the encoder is no jump either.
    some = np.random.default_rng(seed).integers(-2, 3, (LENGTH, 1)) * np.array(manifold.circles)
    wrapped = jnp.asarray(q + TWO_PI * some)
    np.testing.assert_allclose(batch(observer, wrapped), expected, rtol=1e-9, atol=1e-9)


@given(seed=SEEDS)
def test_finite_difference_is_equation_6(seed):
    q = walk(PAIR, seed)
    expected = np.zeros_like(q)
    for t in range(1, LENGTH):
        step = q[t] - q[t - 1]
        step[1] = (step[1] + np.pi) % TWO_PI - np.pi
        expected[t] = step / DT
    np.testing.assert_allclose(batch(FiniteDifference(PAIR), jnp.asarray(q)), expected, rtol=1e-9, atol=1e-9)


@every_manifold
def test_convolutions_begin_as_the_finite_difference(manifold):
    q = jnp.asarray(walk(manifold, 3))
    observer = ConvolutionalObserver.create(manifold, key=jax.random.key(7))
    np.testing.assert_array_equal(observer.velocities(q, DT), FiniteDifference(manifold).velocities(q, DT))
    # … and their head can leave it at once, since the layers below are not zero.
    gradient = eqx.filter_grad(lambda o: jnp.sum(o.velocities(q, DT) ** 2))(observer)
    assert float(jnp.max(jnp.abs(gradient.head.weight))) > 0.0


@pytest.mark.parametrize("n", [1, 2, 6])
def test_parameters(n, trainable_count):
    manifold = Manifold.parse(*(f"q{i}" for i in range(n)))
    assert trainable_count(ConvolutionalObserver.create(manifold, key=jax.random.key(0))) == 225 * n + 3136


@given(seed=SEEDS, taps=st.integers(1, 4), dilation=st.integers(1, 3))
def test_causal_convolution_is_its_sum(seed, taps, dilation):
    rng = np.random.default_rng(seed)
    layer = CausalConvolution(jnp.asarray(rng.normal(size=(taps, 2, 3))), jnp.asarray(rng.normal(size=3)), dilation)
    x = rng.normal(size=(7, 2))
    expected = np.tile(np.asarray(layer.bias), (7, 1))
    for t in range(7):
        for j in range(taps):
            if t - j * dilation >= 0:
                expected[t] += x[t - j * dilation] @ np.asarray(layer.weight[j])
    np.testing.assert_allclose(layer(jnp.asarray(x)), expected, rtol=1e-12, atol=1e-12)


def test_canonicalizers():
    system = PortHamiltonian(Cosine(1.0), CartPoleMass(1.5, 0.4, 0.7), ConstantDamping(0.0))
    q, v = jnp.array([0.2, 2.0]), jnp.array([1.0, -3.0])
    coupling = 0.4 * 0.7 * np.cos(2.0)
    mass = np.array([[1.9, coupling], [coupling, 0.4 * 0.7**2]])
    np.testing.assert_array_equal(IdentityCanonicalizer()(system, q, v), v)
    np.testing.assert_allclose(MassCanonicalizer()(system, q, v), mass @ np.asarray(v), rtol=1e-12)


# --- the fixed-lag smoother ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_smoother_solves_the_papers_quadratic_problem(count):
    """Against the problem as it is written, for windows that are not yet full and for one that is."""
    window, noise, acceleration = 7, 0.02, 3.0
    observer = FixedLagSmoother.create(Manifold.parse("x"), DT, window=window, noise=noise, acceleration=acceleration)
    q = np.random.default_rng(count).normal(size=(count, 1))
    seen = jnp.asarray(q[-window:, 0])

    def cost(x):
        bends = jnp.sum(jnp.diff(x, n=2) ** 2) / (DT**4 * acceleration**2) if len(x) > 2 else 0.0
        return jnp.sum((x - seen) ** 2) / noise**2 + bends

    hessian, slope = jax.hessian(cost)(seen), jax.grad(cost)(jnp.zeros_like(seen))
    smooth = np.linalg.solve(hessian, -slope)
    found = observer.velocities(jnp.asarray(q), DT)[-1, 0]
    assert float(found) == pytest.approx((smooth[-1] - smooth[-2]) / DT, rel=1e-9)


def test_a_smoother_without_noise_is_the_finite_difference_and_keeps_a_constant_velocity_always():
    q = walk(ANGLE, 3)
    exact = FixedLagSmoother.create(ANGLE, DT, window=6, noise=0.0).velocities(q, DT)
    np.testing.assert_allclose(exact, FiniteDifference(ANGLE).velocities(q, DT), rtol=1e-12)
    even = 0.7 * DT * jnp.arange(12.0)[:, None]
    kept = FixedLagSmoother.create(ANGLE, DT, window=6, noise=0.5).velocities(even, DT)[1:]
    np.testing.assert_allclose(kept, 0.7, rtol=1e-9)
    with pytest.raises(InputError, match="2 samples or more"):
        FixedLagSmoother.create(ANGLE, DT, window=1, noise=0.1)

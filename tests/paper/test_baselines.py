"""What PHAST is compared with: the laws of every sequence model, each one's own equations, and full-state models."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phast.components.damping import WindyDamping
from phast.components.parameter import parameter_count
from phast.data.manifold import Manifold
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.forecaster import autoregressive
from phast.fitting.checkpoint import load, save
from phast.fitting.losses import Batch, FullStateLoss, NextStepLoss
from phast.fitting.training import Settings, train
from phast.paper.baselines import attention
from phast.paper.baselines.attention import TransformerBlock, VolumePreserving, resolve
from phast.paper.baselines.recurrent import S5, DLinOSS, LinOSS, hippo_pairs
from phast.paper.compositions import composition
from phast.paper.metrics import evaluate, evaluate_full_state
from phast.paper.models import FULL_STATE, MODELS

pytestmark = pytest.mark.usefixtures("quick_compile")

BASELINES = [name for name in MODELS if not name.startswith("phast")]
CARTPOLE, WINDY = system("cartpole-windy"), system("pendulum-windy")
SYSTEMS_OF_SIZE = {1: "pendulum-windy", 2: "cartpole-windy", 6: "n-body-3"}
VARIANTS = {name: (name, {}) for name in BASELINES} | {
    "linoss-imex": ("linoss", {"implicit": False}),
    "gru-residual": ("gru", {"residual": True}),
    "vpt-gain": ("vpt", {"gain": 0.3}),
    "s5-sincos": ("s5", {"features": "sincos"}),
    "gru-unwrapped": ("gru", {"features": "unwrapped"}),
    "transformer-sincos": ("transformer", {"features": "sincos"}),
}


@functools.cache
def built(name, width=8):
    model, variation = VARIANTS[name]
    return MODELS[model](CARTPOLE, key=jax.random.key(3), width=width, **variation)


def wandering(length, seed=0, count=None):
    """Positions of a cart and a pole, the angle more than once around."""
    shape = (length, 2) if count is None else (count, length, 2)
    steps = np.random.default_rng(seed).normal(0.05, 0.4, shape)
    return jnp.asarray(np.cumsum(steps, axis=-2), dtype=float)


@eqx.filter_jit
def predict(model, q, key=None):
    return model.predict_next(q, key=key)


@pytest.fixture(params=VARIANTS)
def model(request):
    return built(request.param)


# --- counts ----------------------------------------------------------------------------------------------------------


def expected_count(name, n, d):
    """Section 2 of the notes."""
    ends = 2 * n * d + d + n
    gated = {"gru": 3, "lstm": 4}
    if name in gated:
        c = gated[name]
        return c * (n * d + d**2 + 2 * d) + c * (2 * d**2 + 2 * d) + d * n + n
    states, half = 64, d // 2
    layer = {
        "transformer": 12 * d**2 + 13 * d,
        "s5": 2 * d * states + states + 3 * d,
        "linoss": 2 * d**2 + 4 * d,
        "d-linoss": 4 * half * d + d + 3 * half + 2 * d + 2 * (d**2 + d),
        "vpt": 2 * d**2 + 2 * d,
    }
    return ends + 2 * layer[name]


@pytest.mark.parametrize("name", BASELINES)
def test_parameters(name):
    for n, chosen in SYSTEMS_OF_SIZE.items():
        built = MODELS[name](system(chosen), key=jax.random.key(0))
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(eqx.filter(built, eqx.is_inexact_array)))
        assert parameter_count(built) == expected_count(name, n, 64)


def test_the_printed_counts():
    one = {name: expected_count(name, 1, 64) for name in BASELINES}
    assert one == {
        "gru": 37_889,
        "lstm": 50_497,
        "s5": 17_089,
        "linoss": 17_089,
        "d-linoss": 33_793,
        "transformer": 100_161,
        "vpt": 16_833,
    }
    wide = {"gru": 149_505, "s5": 34_049, "transformer": 396_929}
    for name, count in wide.items():
        assert parameter_count(MODELS[name](WINDY, key=jax.random.key(0), width=128)) == count
    more = parameter_count(MODELS["s5"](WINDY, key=jax.random.key(0), features="sincos"))
    assert more == 17_089 + 64


# --- laws of every sequence model ------------------------------------------------------------------------------------


def test_rollout_from_the_cache_is_rerunning_the_prefix(model, float64):
    """K/V, hidden states and S against predict_next on the growing sequence; past one chunk of the VPT."""
    model = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, model)
    context, horizon = wandering(13), 7
    rolled = eqx.filter_jit(autoregressive)(model, context, horizon)
    grown = jnp.concatenate([context, jnp.zeros((horizon, 2))])  # one shape: what comes later has no influence
    for t in range(13, 20):
        grown = grown.at[t].set(predict(model, grown)[t - 1])
    np.testing.assert_allclose(rolled, grown[13:], rtol=1e-9, atol=1e-9)


def test_predictions_are_causal(model):
    q = wandering(24)
    for t in (0, 5, 17):
        changed = q.at[t + 1 :].add(3.0)
        before, after = (predict(model, x)[: t + 1] for x in (q, changed))
        np.testing.assert_allclose(before, after, rtol=1e-5, atol=1e-6)
    assert not np.allclose(predict(model, q)[-1], predict(model, q.at[10].add(0.5))[-1], atol=1e-7)


def test_whole_turns_of_an_angle_are_not_seen_unless_it_runs_on(model):
    q = wandering(24)
    turned = predict(model, q.at[4:, 1].add(2.0 * np.pi))
    off = np.max(model.manifold.squared_error(predict(model, q), turned))
    assert off > 1e-4 if model.features == "unwrapped" else off < 1e-6


@pytest.mark.parametrize("name", [*BASELINES, "linoss-imex"])
def test_loss_goes_down_and_gradients_are_finite(name):
    data, optimiser = Batch(wandering(20, seed=1, count=8)), optax.adam(1e-2)
    params, static = eqx.partition(built(name), eqx.is_inexact_array)

    def loss(params, key):
        model = eqx.combine(params, static)
        return jnp.mean(jax.vmap(lambda b: NextStepLoss()(model, b, key))(data))

    @jax.jit
    def step(params, state, key):
        value, slope = jax.value_and_grad(loss)(params, key)
        change, state = optimiser.update(slope, state)
        return optax.apply_updates(params, change), state, value, slope

    state, losses = optimiser.init(params), []
    for i in range(12):
        params, state, value, slope = step(params, state, jax.random.key(i))
        losses.append(float(value))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(slope))
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(slope))
    assert min(losses[-3:]) < 0.95 * losses[0]


def test_checkpoints(model, tmp_path):
    again = load(save(model, tmp_path / "model.phast"))
    assert jax.tree.structure(again) == jax.tree.structure(model)
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("name", ["lstm", "transformer"])
def test_evaluate(name):
    data = simulate(CARTPOLE, count=3, length=30)
    found = evaluate(built(name), data, truth=CARTPOLE.port_hamiltonian, context=5, horizons=(2, 20))
    assert {"mixed_mse", "rollout_mixed_mse_h20", "rollout_energy_budget_resid_h20"} <= set(found)
    assert not any(key.startswith(("damping", "rollout_takeover")) for key in found)
    assert all(np.isfinite(value) for value in found.values())


def test_only_what_is_random_depends_on_the_key():
    q = wandering(24)
    for name in BASELINES:
        plain, one, other = (predict(built(name), q, k) for k in (None, jax.random.key(1), jax.random.key(2)))
        if name == "transformer":
            assert not np.allclose(plain, one) and not np.allclose(one, other)
        else:
            np.testing.assert_allclose(plain, one, rtol=1e-5, atol=1e-6)
            assert np.array_equal(one, other)
    batch, loss = Batch(q), NextStepLoss()
    assert loss(built("transformer"), batch, jax.random.key(1)) != loss.selection(built("transformer"), batch)


def test_errors():
    with pytest.raises(InputError, match="features are raw, unwrapped, sincos, not 'fourier'"):
        MODELS["gru"](WINDY, key=jax.random.key(0), features="fourier")
    with pytest.raises(InputError, match="4 heads need a width that they divide, not 10"):
        MODELS["transformer"](WINDY, key=jax.random.key(0), width=10)
    with pytest.raises(InputError, match="an even width, not 7"):
        MODELS["d-linoss"](WINDY, key=jax.random.key(0), width=7)
    with pytest.raises(InputError, match="an even number of states, not 3"):
        S5.create(4, states=3, key=jax.random.key(0))
    for call in (lambda m, q, u: m.predict_next(q, u), lambda m, q, u: autoregressive(m, q, 12, u)):
        with pytest.raises(InputError, match="reads positions only"):
            call(built("gru"), wandering(12), jnp.zeros((12, 1)))
    for name in BASELINES:
        with pytest.raises(InputError, match=f"the sharp preset fits .*, not '{name}'"):
            composition(name)


# --- S5 --------------------------------------------------------------------------------------------------------------


def test_hippo(float64):
    """LegS plus its rank-one part is normal: real parts -1/2, pairs, unitary vectors."""
    n = np.arange(8)
    root = np.sqrt(2 * n + 1)
    legs = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    normal = legs + np.outer(np.sqrt(n + 0.5), np.sqrt(n + 0.5))
    eigenvalues, vectors = hippo_pairs(8)
    assert eigenvalues.shape == (4,) and np.all(eigenvalues.imag > 0)
    np.testing.assert_allclose(eigenvalues.real, -0.5)
    np.testing.assert_allclose(normal @ vectors, vectors * eigenvalues, atol=1e-12)
    both = np.concatenate([vectors, vectors.conj()], axis=1)
    np.testing.assert_allclose(both.conj().T @ both, np.eye(8), atol=1e-12)
    block = S5.create(6, key=jax.random.key(0))
    assert block.decay.shape == block.frequency.shape == (32,)
    np.testing.assert_allclose(block.decay, -0.5)


def test_s5_is_zero_order_hold(float64):
    """One sample of the real system of all P states, by the matrix exponential of (Λ, B)."""
    block = S5.create(3, states=6, key=jax.random.key(1))
    block = eqx.tree_at(lambda b: b.step, block, 0.3)
    eigenvalues, u = np.asarray(block.eigenvalues()), np.array([0.3, -1.0, 0.5])
    into, out = (np.asarray(re) + 1j * np.asarray(im) for re, im in (block.into, block.out))
    big = np.zeros((6, 6), complex)  # d/dt (x, Bu) = (Λx + Bu, 0)
    big[:3, :3], big[:3, 3:] = np.diag(eigenvalues), np.eye(3)
    flow = np.asarray(jax.scipy.linalg.expm(jnp.asarray(0.3 * big)))
    x = np.array([0.1 + 0.2j, -0.4j, 1.0 + 0.0j])
    expected = flow[:3, :3] @ x + flow[:3, 3:] @ (u @ into)
    turn, held = block.discretised()
    np.testing.assert_allclose(turn * x + u @ held, expected, atol=1e-12)
    # Both of each pair count in y: twice the real part.
    cache = (jnp.asarray(x.real), jnp.asarray(x.imag))
    sample = jnp.array([0.2, 0.9, -1.4])
    normed = np.asarray(block.norm(sample))
    after = flow[:3, :3] @ x + flow[:3, 3:] @ (normed @ into)
    y = (after @ out + (after @ out).conj()).real + block.skip * normed
    np.testing.assert_allclose(block.update(cache, sample)[1], sample + jax.nn.gelu(y), atol=1e-12)


@given(seed=st.integers(0, 2**31 - 1), size=st.floats(0.1, 100.0))
def test_s5_stays_stable(seed, size):
    rng = np.random.default_rng(seed)
    block = S5.create(4, states=8, key=jax.random.key(0))
    block = eqx.tree_at(
        lambda b: (b.decay, b.frequency), block, tuple(jnp.asarray(rng.normal(0, size, 4), float) for _ in range(2))
    )
    assert np.all(block.eigenvalues().real <= -1e-4 * (1 - 1e-6))
    assert np.all(np.abs(block.discretised()[0]) <= 1.0)


# --- oscillators -----------------------------------------------------------------------------------------------------


def matrices(block):
    """The 2x2 recurrence of each oscillator, from what one step does to unit states."""
    bank = block.oscillators()
    rest = jnp.zeros_like(bank.dt)
    columns = [jnp.stack(bank.advance(state, rest)) for state in ((rest + 1.0, rest), (rest, rest + 1.0))]
    return np.moveaxis(np.stack(columns, axis=1), -1, 0)


@pytest.mark.parametrize("implicit", [True, False])
def test_linoss_is_its_equations(implicit, float64):
    block = LinOSS.create(4, implicit=implicit, key=jax.random.key(0))
    block = eqx.tree_at(lambda b: (b.stiffness, b.step), block, (jnp.array([0.7, -0.2, 0.1, 2.0]), 0.6))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4)))
    u = np.asarray(block.norm(x))
    a, dt = np.maximum(np.asarray(block.stiffness), 0.0), 0.6
    z, position, expected = np.zeros(4), np.zeros(4), []
    for row in u:
        force = row @ np.asarray(block.into)
        if implicit:
            s = 1 + dt**2 * a
            z, position = (z - dt * a * position + dt * force) / s, (dt * z + position + dt**2 * force) / s
        else:
            z = z + dt * (-a * position + force)
            position = position + dt * z
        expected.append(position @ np.asarray(block.out) + np.asarray(block.skip) * row)
    np.testing.assert_allclose(block(x), x + jax.nn.gelu(jnp.asarray(np.array(expected))), atol=1e-12)


@given(seed=st.integers(0, 2**31 - 1), size=st.floats(0.1, 30.0))
def test_linoss_never_pushes(seed, size):
    noise = jnp.asarray(np.random.default_rng(seed).normal(0, size, 8), dtype=float)
    block = eqx.tree_at(lambda b: b.stiffness, LinOSS.create(8, key=jax.random.key(0)), noise)
    assert np.all(block.oscillators().stiffness >= 0.0)
    assert np.all(np.abs(np.linalg.eigvals(matrices(block).astype(float))) <= 1.0 + 1e-5)


@given(seed=st.integers(0, 2**31 - 1), size=st.floats(0.1, 10.0))
def test_d_linoss_is_stable_whatever_training_does(seed, size):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        block = DLinOSS.create(8, key=jax.random.key(0))
        drawn = tuple(jnp.asarray(rng.normal(0, size, 4)) for _ in range(3))
        block = eqx.tree_at(lambda b: (b.stiffness, b.damping, b.step), block, drawn)
        _, scale, _ = block.oscillators()
        found = np.abs(np.linalg.eigvals(matrices(block)))
        # At an end of A's interval the pair is double: its eigenvalues are only known to the root of the rounding.
        np.testing.assert_allclose(found, np.asarray(scale)[:, None] ** -0.5 * np.ones(2), atol=1e-6, rtol=1e-3)
        assert found.max() <= 1.0 + 1e-6


def test_d_linoss_starts_in_its_ring(float64):
    block = DLinOSS.create(64, key=jax.random.key(0))
    eigenvalues = np.linalg.eigvals(matrices(block))
    assert np.all(np.abs(eigenvalues) >= 0.9 - 1e-9) and np.all(np.abs(eigenvalues) <= 1.0 + 1e-9)
    assert np.ptp(np.abs(np.angle(eigenvalues))) > 2.0
    np.testing.assert_allclose(block.oscillators().stiffness[:32], block.stiffness)  # nothing is clipped at the start


# --- attention -------------------------------------------------------------------------------------------------------


def test_attention_by_rows_is_softmax(float64, monkeypatch):
    """Blocks of rows against one softmax over everything; a future score far above the others does not matter."""
    block = TransformerBlock.create(8, key=jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(11, 8)))
    x = x.at[7].multiply(300.0)
    queries, keys, values = block._heads(x)
    scores = jnp.where(jnp.tril(jnp.ones((11, 11), bool)), jnp.einsum("thk,shk->hts", queries, keys), -jnp.inf)
    expected = block._feed(x, jnp.einsum("hts,shk->thk", jax.nn.softmax(scores), values).reshape(11, 8))
    np.testing.assert_allclose(block(x), expected, atol=1e-12)
    monkeypatch.setattr(attention, "ROWS", 4)
    np.testing.assert_allclose(block(x), expected, atol=1e-12)


def test_a_full_cache_says_so():
    block = TransformerBlock.create(8, key=jax.random.key(0))
    cache = block.start(2)
    for finite in (True, True, False):
        cache, y = block.update(cache, jnp.ones(8))
        assert bool(np.all(np.isfinite(y))) == finite


def resolved(z, skew):
    """(I - ½S_tAᵀ)⁻¹ z_t, one solve each."""
    grown = jnp.cumsum(z[:, :, None] * z[:, None], axis=0)
    before = jnp.concatenate([jnp.zeros_like(grown[:1]), grown[:-1]])
    unit = jnp.eye(z.shape[1])
    return jax.vmap(lambda s, x: jnp.linalg.solve(unit - 0.5 * s @ skew.T, x))(before, z)


@pytest.mark.parametrize("length", [1, 16, 37])
def test_resolvents_and_their_adjoint(float64, length):
    rng = np.random.default_rng(length)
    z, k = jnp.asarray(rng.normal(size=(length, 5))), rng.normal(size=(5, 5))
    skew, weights = jnp.asarray(k - k.T), jnp.asarray(rng.normal(size=(length, 5)))
    np.testing.assert_allclose(resolve(z, skew), resolved(z, skew), atol=1e-10)
    fast, plain = (
        jax.grad(lambda z, a, run=run: jnp.sum(weights * jnp.sin(run(z, a))), (0, 1))(z, skew)
        for run in (resolve, resolved)
    )
    for a, b in zip(fast, plain, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-8)


def test_volume_is_preserved(float64):
    """det ∂z'/∂z = 1, of two layers over all samples and of the last sample alone."""
    layers = [VolumePreserving.create(4, key=key) for key in jax.random.split(jax.random.key(0))]
    layers = [eqx.tree_at(lambda b: b.weights, layer, 50.0 * layer.weights) for layer in layers]
    z = jnp.asarray(np.random.default_rng(0).normal(size=(19, 4)))

    def stack(z):
        for layer in layers:
            z = layer(z)
        return z

    jacobian = jax.jacrev(lambda flat: stack(flat.reshape(19, 4)).ravel())(z.ravel())
    for part in (jacobian, jacobian[-4:, -4:]):
        sign, size = np.linalg.slogdet(np.asarray(part))
        assert sign == 1.0 and abs(size) < 1e-8
    assert np.abs(stack(z) - z).max() > 0.1


def test_a_gain_changes_how_fast_attention_learns_and_not_where_it_starts(float64):
    one, tenth, none = (VolumePreserving.create(4, gain=g, key=jax.random.key(0)) for g in (1.0, 0.1, 0.0))
    np.testing.assert_allclose(one.skew(), tenth.skew(), rtol=1e-12)
    z = jnp.asarray(np.random.default_rng(0).normal(size=(9, 4)))
    np.testing.assert_allclose(none(z), none._feed(z), atol=1e-12)  # each sample for itself

    def learned(block):
        return jax.grad(lambda w: jnp.sum(eqx.tree_at(lambda b: b.weights, block, w)(z) ** 2))(block.weights)

    np.testing.assert_allclose(learned(tenth), 0.1 * learned(one), rtol=1e-9)


# --- full state ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swings():
    return simulate(WINDY, count=8, length=25, seed=3)


@pytest.mark.parametrize("name, count", [("phast-partial", 10_376), ("phast-unknown", 10_378), ("dhnn", 107_124)])
def test_full_state_models(name, count, swings, tmp_path):
    model = FULL_STATE[name](WINDY, key=jax.random.key(0))
    assert parameter_count(model) == count
    data = Batch(jnp.asarray(swings.q, float), jnp.asarray(swings.p, float))
    settings = Settings(epochs=4, batch_size=4, validate_every=4)
    loss = FullStateLoss(WINDY.manifold, WINDY.dt)
    fitted, history = train(model, data, data, loss=loss, settings=settings, key=jax.random.key(0))
    assert history.loss[-1] < history.loss[0]
    found = evaluate_full_state(fitted, swings, WINDY.port_hamiltonian, horizons=(5, 20))
    keys = {
        "theta_wrap_mse",
        *(f"rollout_theta_wrap_mse_h{h}{end}" for h in (5, 20) for end in ("", "_median", "_final")),
    }
    assert set(found) == (keys if name == "dhnn" else keys | {"damping_r2", "damping_mae"})
    assert all(np.isfinite(value) for value in found.values())
    again = load(save(fitted, tmp_path / "model.phast"))
    assert evaluate_full_state(again, swings, WINDY.port_hamiltonian, horizons=(5, 20)) == found


def test_full_state_errors_are_those_of_the_states(swings):
    """A pendulum that knows its own truth: small errors, exact damping; and arithmetic by hand for one that rests."""
    model = FULL_STATE["phast-partial"](WINDY, key=jax.random.key(0))
    exact = eqx.tree_at(
        lambda m: (m.system.potential, m.system.damping),
        model,
        (WINDY.port_hamiltonian.potential, WINDY.port_hamiltonian.damping),
    )
    assert isinstance(exact.system.damping, WindyDamping)
    found = evaluate_full_state(exact, swings, WINDY.port_hamiltonian, horizons=(20,))
    assert found["damping_r2"] == pytest.approx(1.0) and found["damping_mae"] == pytest.approx(0.0, abs=1e-6)
    assert found["theta_wrap_mse"] < 1e-5 and found["rollout_theta_wrap_mse_h20_median"] < 1e-2

    still = jax.tree.map(
        lambda x: 0.0 * x if eqx.is_inexact_array(x) else x, FULL_STATE["dhnn"](WINDY, key=jax.random.key(0))
    )
    found = evaluate_full_state(still, swings, None, horizons=(5,))
    wrapped = lambda x: (x + np.pi) % (2 * np.pi) - np.pi  # noqa: E731
    assert found["theta_wrap_mse"] == pytest.approx(np.mean(wrapped(np.diff(swings.q, axis=1)) ** 2), rel=1e-4)
    ahead = wrapped(swings.q[:, 1:6] - swings.q[:, :1]) ** 2
    assert found["rollout_theta_wrap_mse_h5"] == pytest.approx(np.mean(ahead), rel=1e-4)
    assert found["rollout_theta_wrap_mse_h5_final"] == pytest.approx(np.mean(ahead[:, -1]), rel=1e-4)


def test_full_state_refusals(swings):
    model = FULL_STATE["dhnn"](WINDY, key=jax.random.key(0))
    one = Batch(jnp.asarray(swings.q[0], float), jnp.asarray(swings.p[0], float))
    with pytest.raises(InputError, match="a DhnnStep has no energy"):
        FullStateLoss(WINDY.manifold, WINDY.dt, energy=1.0)(model, one, jax.random.key(0))
    with pytest.raises(InputError, match="takes no inputs"):
        model(jnp.zeros(1), jnp.zeros(1), jnp.zeros(1))
    with pytest.raises(InputError, match="momenta"):
        evaluate_full_state(model, swings.__class__(swings.q, swings.dt, swings.manifold), None)
    with pytest.raises(InputError, match="cannot hold a forecast of 100"):
        evaluate_full_state(model, swings, None)


def test_dhnn_is_runge_kutta_of_its_field(float64):
    """Fourth order in the step, and blind to whole turns."""
    model = FULL_STATE["dhnn"](WINDY, key=jax.random.key(0))
    q, p = jnp.array([0.4]), jnp.array([-1.3])

    def end(steps):
        smaller = eqx.tree_at(lambda m: m.dt, model, 4.0 / steps)
        return np.concatenate(smaller.rollout(q, p, steps), axis=1)[-1]

    exact = end(512)
    coarse, fine = (np.abs(end(steps) - exact).max() for steps in (8, 16))
    assert 3.0 < np.log2(coarse / fine) < 5.0
    turned = model(q + 2.0 * np.pi, p)
    np.testing.assert_allclose(turned[0] - 2.0 * np.pi, model(q, p)[0], atol=1e-12)
    assert isinstance(model.manifold, Manifold)

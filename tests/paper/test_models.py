"""Named models: every parameter count by an arithmetic of its own, honest starting points, and switches."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phast.components.damping import AbstractDamping, ConstantDamping, Friction, HouseholderDamping, WindyDamping
from phast.components.parameter import Positive, parameter_count, value_of
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.systems import SYSTEMS, black_box, system
from phast.errors import InputError
from phast.estimation.observers import IdentityCanonicalizer, MassCanonicalizer
from phast.fitting.networks import known, unknown
from phast.paper.models import MODELS, forgotten, full_state, model_builder, phast_partial, phast_unknown
from phast.paper.tables import published

pytestmark = pytest.mark.usefixtures("quick_compile")

THIRTEEN = [name for name, entry in SYSTEMS.items() if entry.benchmark]
PENDULUM, WINDY, LINES, RAW, OTHER = "pendulum", "windy", "lines", "raw angles", "learned timestep"

# Section 2 of the notes as a table: degrees of freedom, kind of row, scalars of the template, of the damping law.
ROWS = {
    "pendulum-conservative": (1, PENDULUM, 1, 1),
    "pendulum-damped": (1, PENDULUM, 1, 1),
    "pendulum-windy": (1, WINDY, 1, 2),
    "cartpole-windy": (2, WINDY, 1, 2),
    "oscillator-conservative": (2, LINES, 0, 1),
    "oscillator-damped": (2, LINES, 0, 1),
    "double-pendulum-conservative": (2, RAW, 1, 1),
    "double-pendulum-damped": (2, RAW, 1, 1),
    "rlc": (1, OTHER, 1, 1),
    "lennard-jones-3": (6, OTHER, 2, 1),
    "heat-exchange": (2, OTHER, 4, 1),
    "n-body-3": (6, OTHER, 1, 1),
    "predator-prey": (1, OTHER, 1, 1),
}
FEATURES = {"pendulum-conservative": 8, "pendulum-damped": 8, "pendulum-windy": 8, "cartpole-windy": 9}


@functools.cache
def built(model, name):
    return model_builder(model)(system(name), key=jax.random.key(0))


def expected_count(model, name):
    n, kind, template, law = ROWS[name]
    observer = 225 * n + 3136
    timestep = 1 if kind == OTHER else 0

    def network(features):
        return 64 * features + 8449

    def householder(features):
        return (features * 64 + 64) + (64 * 2 * n + 2 * n) + (features * 64 + 64) + (64 * 2 + 2)

    features = FEATURES.get(name, n)
    if model == "phast-known":
        return observer + template + law + timestep
    if model == "phast-partial":
        damping = householder(features) if kind == WINDY else law
        return observer + template + network(features) + 1 + damping + timestep
    features = 16 if kind == RAW else features
    mass = n + min(4, n) * (n + 1)
    damping = {WINDY: 1 + householder(features), LINES: 0, RAW: 0, PENDULUM: 1, OTHER: 1}[kind]
    return observer + network(features) + mass + damping + timestep


def test_the_table_is_the_thirteen():
    assert set(ROWS) == set(THIRTEEN) and len(THIRTEEN) == 13


@pytest.mark.parametrize("name", THIRTEEN)
def test_parameters(name, trainable_count):
    for model in ("phast-known", "phast-partial", "phast-unknown"):
        count = parameter_count(built(model, name))
        assert count == trainable_count(built(model, name)) == expected_count(model, name), model
        printed = published()[name][model].get("parameters")
        assert printed is None or printed == count, model


def test_the_paper_prints_most_counts():
    regimes = ("phast-known", "phast-partial", "phast-unknown")
    assert sum("parameters" in published()[name][model] for name in THIRTEEN for model in regimes) == 33


def test_full_state_counts():
    """Appendix G.1: the core alone, with a learned timestep."""
    partial, unknown = (built(model, "pendulum-windy") for model in ("phast-partial", "phast-unknown"))
    assert parameter_count(full_state(partial)) == 10_376
    assert parameter_count(full_state(unknown)) == 10_378
    assert parameter_count(full_state(partial, learned_timestep=False)) == 10_375
    (step,) = full_state(partial).transition.timestep.pieces()
    assert float(step) == pytest.approx(0.05)


# --- nothing of the answer -------------------------------------------------------------------------------------------


def is_positive(node):
    return isinstance(node, Positive)


def learned_coefficients(module):
    leaves = jax.tree.leaves(module, is_leaf=is_positive)
    return [float(v) for leaf in leaves if is_positive(leaf) for v in np.ravel(leaf())]


def given_numbers(module):
    return [leaf for leaf in jax.tree.leaves(module) if isinstance(leaf, float)]


@pytest.mark.parametrize("name", SYSTEMS)
def test_damping_starts_from_nowhere_near_the_answer(name):
    entry = system(name)
    true = getattr(entry.dynamics, "damping", ConstantDamping(0.0))
    answer = given_numbers(true)
    for model in MODELS:
        if not model.startswith("phast"):
            continue
        damping = built(model, name).core.system.damping
        starts = learned_coefficients(damping)
        for start in starts:
            assert all(abs(start - number) > 1e-3 for number in answer), (model, start)
        # What is left as given in the law: the base of PARTIAL's D(q), which the paper hands over; else nothing.
        kept = set(given_numbers(damping)) & set(answer) - {0.0}
        if isinstance(damping, Friction):
            kept -= {damping.smoothing}
        windy_partial = model == "phast-partial" and isinstance(true, WindyDamping)
        assert kept <= ({0.3} if windy_partial else set()), model
        # The field itself is far from the truth too.
        q = jnp.linspace(0.3, 2.8, 7)[:, None] * jnp.ones(entry.manifold.size)

        def diagonals(law, q=q):
            return np.asarray(jax.vmap(lambda x: law.operator(x, jnp.zeros_like(x)).diagonal_part())(q))

        if not isinstance(damping, HouseholderDamping) and starts:
            assert np.abs(diagonals(damping) - diagonals(true)).min() > 1e-3


coefficients = st.one_of(st.floats(0.0, 10.0), st.floats(0.01, 10.0).map(Positive.starting_at))


@given(first=coefficients, second=coefficients)
def test_forgotten_keeps_nothing(first, second):
    laws = [ConstantDamping(first), WindyDamping(first, second, (0,)), Friction(first, second, first)]
    for law in laws:
        start = forgotten(law)
        assert type(start) is type(law)
        fields = [value for value in vars(start).values() if is_positive(value)]
        assert len(fields) == {ConstantDamping: 1, WindyDamping: 2, Friction: 3}[type(law)]
        for value in fields:
            np.testing.assert_allclose(value(), math.log(2.0), rtol=1e-6)
    assert forgotten(laws[1]).angles == (0,)


def test_forgotten_keeps_the_shape_and_refuses_what_it_does_not_know():
    assert value_of(forgotten(ConstantDamping((0.1, 0.2))).coefficients).shape == (2,)
    assert forgotten(Friction(0.1, joints=((-1.0, 1.0),))).joints == ((-1.0, 1.0),)

    class Own(AbstractDamping):
        def operator(self, q, v):
            raise NotImplementedError

    with pytest.raises(InputError, match="no uninformed start is defined for Own"):
        forgotten(Own())


def test_known_takes_the_truth_and_learns_the_damping():
    model, truth = built("phast-known", "cartpole-windy-rail"), system("cartpole-windy-rail").port_hamiltonian
    assert model.core.system.mass is truth.mass
    assert model.core.system.potential is truth.potential
    assert isinstance(model.canonicalizer, MassCanonicalizer)
    assert isinstance(built("phast-unknown", "pendulum-windy").canonicalizer, IdentityCanonicalizer)


# --- switches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [name for name in MODELS if name.startswith("phast")])
def test_a_learned_timestep_is_one_parameter_and_substeps_are_none(model):
    base = parameter_count(built(model, "pendulum-damped"))
    for variation, more in (({"learned_timestep": True}, 1), ({"substeps": 3}, 0)):
        changed = model_builder(model)(system("pendulum-damped"), key=jax.random.key(0), **variation)
        assert parameter_count(changed) == base + more
        pieces = changed.core.transition.timestep.pieces()
        assert len(pieces) == variation.get("substeps", 1)
        assert sum(map(float, pieces)) == pytest.approx(0.05)
    fixed = model_builder(model)(system("rlc"), key=jax.random.key(0), learned_timestep=False)
    assert parameter_count(fixed) == parameter_count(built(model, "rlc")) - 1


@eqx.filter_jit
def eigenvalues(damping, q):
    return jax.vmap(lambda x: jnp.linalg.eigvalsh(damping.operator(x, jnp.zeros_like(x)).dense()))(q)


@pytest.mark.parametrize("name", ["pendulum-windy", "cartpole-windy"])
@given(seed=st.integers(0, 2**31 - 1), size=st.floats(0.1, 30.0))
def test_partial_damping_is_bounded(perturbed, trainable_count, name, seed, size):
    """Eq. 11: 0.3 ≤ λ(D) ≤ 0.3 + 0.5, whatever training does to the networks."""
    rng = np.random.default_rng(seed)
    damping = built("phast-partial", name).core.system.damping
    damping = perturbed(damping, rng.normal(0.0, size, trainable_count(damping)).astype(np.float32))
    found = np.asarray(eigenvalues(damping, jnp.asarray(rng.uniform(-4, 4, (20, damping.manifold.size)), float)))
    assert found.min() >= 0.3 - 1e-5
    assert found.max() <= 0.8 + 1e-5


def test_bounds_can_be_changed_and_lifted():
    windy = system("pendulum-windy")
    q = jnp.linspace(-3.0, 3.0, 11)[:, None]

    def largest(model):
        network = model.core.system.damping.strength_network
        pushed = eqx.tree_at(
            lambda m: m.core.system.damping.strength_network.biases[-1], model, network.biases[-1] + 50
        )
        return float(eigenvalues(pushed.core.system.damping, q).max())

    key = jax.random.key(0)
    assert largest(phast_partial(windy, key=key)) == pytest.approx(0.8, rel=1e-3)
    assert largest(phast_partial(windy, key=key, bound=2.0)) == pytest.approx(2.3, rel=1e-3)
    assert largest(phast_partial(windy, key=key, bound=None)) > 50
    assert largest(phast_unknown(windy, key=key)) > 50
    learned = phast_partial(windy, key=key, learned_base=True)
    assert parameter_count(learned) == parameter_count(built("phast-partial", "pendulum-windy")) + 1


# --- errors ----------------------------------------------------------------------------------------------------------


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="unknown model 'phast-partail': did you mean 'phast-partial'"):
        model_builder("phast-partail")
    with pytest.raises(InputError, match="`phast paper models` lists all"):
        model_builder("zzz")
    assert model_builder("phast-known") is MODELS["phast-known"]


@pytest.mark.parametrize("dt", [0.0, -0.1, math.nan, math.inf])
def test_dt_must_be_positive(dt):
    with pytest.raises(InputError, match="dt must be a positive number"):
        known(
            manifold=Manifold.parse("x"),
            dt=dt,
            potential=Cosine(1.0),
            damping=ConstantDamping(0.1),
            key=jax.random.key(0),
        )


def test_a_black_box_has_no_physics_to_give():
    box = black_box(lambda q, p: (p, -q), Manifold.parse("x"), lambda rng, count: None, 0.1)
    for model in ("phast-known", "phast-partial", "phast-unknown"):
        with pytest.raises(InputError, match=r"use models\.unknown"):
            model_builder(model)(box, key=jax.random.key(0))
    assert parameter_count(unknown(manifold=box.manifold, dt=box.dt, key=jax.random.key(0))) > 0

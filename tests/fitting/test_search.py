"""The search for a law: terms that are right by construction, selections that are right on simulated motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phast
from phast.components.mass import LinkageMass, RelativeMass
from phast.components.parameter import parameter_count
from phast.components.potential import Quadratic
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.derivatives import Samples
from phast.fitting.law import law_of, partial_correlations
from phast.fitting.library import Candidate, candidates, families
from phast.fitting.matching import acceleration
from phast.fitting.preprocess import Preprocessed
from phast.fitting.search import _Search
from phast.fitting.selection import Equations, Selection
from phast.fitting.structure import Structure

pytestmark = pytest.mark.usefixtures("float64")

ONES = np.ones((20, 3))


def samples(n: int, seed: int = 0) -> Samples:
    return Samples(*np.random.default_rng(seed).normal(size=(3, 20, n)))


def searched(name: str, noise: float = 0.0) -> Selection:
    """What accelerations tell of a simulated system."""
    data = simulate(system(name), 8, length=120, seed=3)
    data = Trajectories(data.q, data.dt, data.manifold)
    data = data.with_noise(noise, seed=4) if noise else data
    return _Search(Structure(), Preprocessed(data), lambda *_: None, np.inf).selected()


# --- the library -----------------------------------------------------------------------------------------------------

FAMILIES = {
    "links": (("a:angle", "b:angle", "c:angle"), "links"),
    "joints": (("a:angle", "b:angle", "c:angle"), "joints"),
    "cartpole": (("x", "a:angle", "b:angle"), "cartpole"),
    "unequal": (("x", "y", "z"), "unequal"),
}


@pytest.mark.parametrize(("coordinates", "name"), FAMILIES.values(), ids=FAMILIES.keys())
def test_the_law_of_a_selection_moves_as_its_equations_say(coordinates, name):
    """Every kind of mass and of term: the library's formulas against those of the components, by differentiation."""
    manifold, seen = Manifold.parse(*coordinates), samples(3)
    (family,) = (each for each in families(manifold, False) if each.name == name)
    library = candidates(manifold, np.full(3, 1.0))
    kept = [term for term in library if len(library) < 40 or hash(term) % 3]
    values = np.random.default_rng(1).uniform(0.5, 1.5, len(kept))
    mass = np.array([2.0, 1.5] if name == "unequal" else [1.7, 1.2, 0.4, 0.2, 0.5])
    equations = Equations(seen, np.zeros((20, 3)), ONES, family, kept, 0.3)
    slopes, target = equations.linearised(np.concatenate([values, mass]))
    wanted = seen.a + (slopes @ np.concatenate([values, mass]) - target).reshape(20, 3)
    found = law_of(Selection(family, tuple(kept), values, mass, 0.0, 0.0), 3, 0.3, None)
    got = jax.vmap(lambda q, v: acceleration(found.system, q, v))(jnp.asarray(seen.q), jnp.asarray(seen.v))
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)
    assert len(found.owners) == parameter_count(found.system)


def test_pairs_of_points_are_the_law_of_their_powers():
    manifold, seen = Manifold.parse("x1", "y1", "x2", "y2"), samples(4)
    pairs = tuple(term for term in candidates(manifold, np.ones(4)) if term.kind == "pair")
    assert [term.power for term in pairs] == [1, 2, 6, 12]
    family, values = families(manifold, False)[0], np.array([1.0, -0.5, 0.2, 1e-3])
    equations = Equations(seen, np.zeros((20, 4)), np.ones((20, 4)), family, list(pairs), 0.3)
    slopes, target = equations.linearised(values)
    found = law_of(Selection(family, pairs, values, np.zeros(0), 0.0, 0.0), 4, 0.3, None)
    got = jax.vmap(lambda q, v: acceleration(found.system, q, v))(jnp.asarray(seen.q), jnp.asarray(seen.v))
    np.testing.assert_allclose(got, seen.a + (slopes @ values - target).reshape(20, 4), rtol=1e-8)


def test_the_library_grows_with_pairs_of_coordinates():
    count = [len(candidates(Manifold.parse(*(f"x{i}" for i in range(n))), np.ones(n))) for n in (1, 3, 9)]
    assert count[0] < 10 and count[2] <= 9 * 10 * 5 + 9


def test_partial_correlations_give_the_matrix_back():
    matrix = np.array([[2.0, 0.7, -0.3], [0.7, 1.0, 0.4], [-0.3, 0.4, 3.0]])
    mass = LinkageMass(2.0, (1.0, 3.0), tuple(partial_correlations(matrix)), (True,) * 3)
    np.testing.assert_allclose(mass.operator(jnp.zeros(3)).dense(), matrix, rtol=1e-9)
    turned = np.tril(np.ones((3, 3)))
    np.testing.assert_allclose(RelativeMass(mass).operator(jnp.zeros(3)).dense(), turned.T @ matrix @ turned, rtol=1e-9)


# --- selections ------------------------------------------------------------------------------------------------------

LAWS = {
    "cartpole-windy": ("cartpole", [("cosine", 1), ("facing", 2), ("viscous", 2)]),
    "heat-exchange": ("unit", [("quadratic", 3), ("viscous", 2)]),
    "double-pendulum-windy": ("links", [("cosine", 2), ("facing", 2), ("viscous", 2)]),
}


@pytest.mark.parametrize("name", LAWS)
def test_accelerations_without_noise_select_the_terms_that_are_there(name):
    found, (family, wanted) = searched(name), LAWS[name]
    kinds = [term.kind for term in found.kept]
    assert found.family.name == family
    assert sorted((kind, kinds.count(kind)) for kind in set(kinds)) == wanted


def test_a_pendulum_is_found_under_noise():
    found = searched("pendulum-damped", 0.01)
    assert {term.kind for term in found.kept} == {"cosine", "viscous"}
    assert dict(zip((t.kind for t in found.kept), found.coefficients, strict=True))["cosine"] == pytest.approx(
        9.81, rel=0.05
    )


def spring(noise: float = 0.0) -> Trajectories:
    """m = 1, k = 4 about 0.5, b = 0.2, in closed form."""
    rng, t = np.random.default_rng(0), 0.1 * np.arange(80)
    size, phase = rng.uniform(0.5, 2.0, (6, 1)), rng.uniform(0.0, 6.0, (6, 1))
    q = 0.5 + size * np.exp(-0.1 * t) * np.cos(np.sqrt(3.99) * t + phase)
    return Trajectories((q + noise * rng.normal(size=q.shape))[..., None], 0.1, Manifold.parse("x"))


def test_nothing_named_finds_the_law_to_rounding_and_prints_it():
    """The whole way, in one fit (its programs compile for some seconds)."""
    fitted = phast.fit(spring())
    law = fitted.model.learned_system()
    assert isinstance(law, PortHamiltonian) and isinstance(law.potential, Quadratic)
    np.testing.assert_allclose(law.potential.stiffness(), 4.0, rtol=1e-9)
    np.testing.assert_allclose(law.potential.centre(), 0.5, rtol=1e-9)
    assert parameter_count(law) == 3
    told = fitted.identify().equation()
    assert told.splitlines()[0] == "T = ½ 1 x'²" and "(x - (0.5" in told and "F(x') = (0.2" in told
    assert r"\dot{x}" in fitted.identify().equation("latex")


def test_a_search_without_time_says_what_was_not_tried():
    data = simulate(system("heat-exchange"), 2, length=60, seed=3)
    asked = Structure(), Preprocessed(Trajectories(data.q, data.dt, data.manifold))
    late = _Search(*asked, lambda *_: None, -np.inf)
    found = late.selected()
    law, model = late.pruned(found)
    assert model is None and law.owners
    assert late.skipped == ["the mass 'unequal'", "removing terms that are not significant"]


def test_auto_is_alone():
    assert Structure().is_open and Structure(potential="auto").is_open
    assert not Structure(regime="unknown").is_open and not Structure(mass=2.0).is_open
    with pytest.raises(InputError, match="'auto' finds the whole law"):
        Structure(potential="auto", damping="viscous")
    with pytest.raises(InputError, match="'auto' goes with no other term"):
        Structure(potential="auto+cosine")


def test_a_candidate_of_a_difference_pulls_two_ways():
    force = Candidate("quadratic", (1.0, -1.0)).force(np.array([[0.3, 1.0]]), np.zeros((1, 2)), 0.1)
    np.testing.assert_allclose(force, [[-0.7, 0.7]])

"""The tools that ours are compared with: each is judged on small data by what it must get right, in float64."""

import dataclasses
import importlib.util
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import wrapped

from phast.cli.main import main
from phast.components.damping import ConstantDamping, WindyDamping
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.integrators import ExactDamping, Timestep, Transition, leapfrog
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.errors import InputError
from phast.estimation.derivatives import Samples, Smoother
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware
from phast.paper import peers
from phast.paper.baselines.dhnn import DHNN
from phast.paper.baselines.neural import descend, windows
from phast.paper.baselines.regression import FourierDamping, least_squares, sparse
from phast.paper.flow import (
    Flow,
    Library,
    Start,
    choose_start,
    derive,
    end_weights,
    forecast_score,
    good_derivatives,
    regress,
    trajectory_errors,
)
from phast.paper.metrics import damping_diagonal
from phast.paper.peers import Dhnn, LeastSquares, NeuralOde, Sindy, compare_tools, measure
from phast.paper.protocol import Split
from phast.paper.tables import Tools

WINDY = system("pendulum-windy")
TWO_ANGLES = system("double-pendulum-damped")
CART = Manifold.parse("x", "theta:angle")
NARROW = Smoother(7, 6)

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")


@pytest.fixture(scope="module")
def swings() -> Split:
    data = simulate(WINDY, 60, length=80, seed=3)
    return Split(data.subset(slice(0, 40)), data.subset(slice(40, 41)), data.subset(slice(40, None)))


def persistence(test: Trajectories, horizon: int) -> np.ndarray:
    """The errors of saying that nothing moves."""
    still = np.repeat(test.q[:, 9:10], horizon, axis=1)
    return trajectory_errors(test.manifold, still, test.q[:, 10 : 10 + horizon])


# --- derivatives and starts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width, degree", [(2, 1), (5, 4), (10, 3)])
def test_the_end_of_a_polynomial_is_exact(width, degree):
    t = 0.05 * np.arange(1 - width, 1)
    coefficients = np.arange(1.0, degree + 2)
    value, slope = end_weights(width, degree, 0.05)
    path = np.polynomial.polynomial.polyval(t, coefficients)
    assert value @ path == pytest.approx(coefficients[0], abs=1e-9)
    assert slope @ path == pytest.approx(coefficients[1], abs=1e-8)


def test_a_clean_start_is_the_last_sample_and_a_high_order_slope(swings):
    start = choose_start(swings.train, NARROW)
    q, v = start.state(swings.test.q[:, :10], WINDY.manifold)
    rough = np.abs(np.diff(swings.test.q[:, 8:10], axis=1)[:, 0] / WINDY.dt - swings.test.v[:, 9])
    np.testing.assert_allclose(q, swings.test.q[:, 9], atol=1e-9)
    assert np.median(np.abs(v - swings.test.v[:, 9])) < 1e-2 * np.median(rough)


def test_noise_asks_for_a_longer_start(swings):
    noisy = choose_start(swings.train.with_noise(0.05, seed=1), Smoother(19, 6))
    assert len(noisy.velocity) > 5 and len(noisy.position) > 1
    assert np.linalg.norm(noisy.velocity) < np.linalg.norm(choose_start(swings.train, NARROW).velocity)


def test_a_start_does_not_see_turns_of_an_angle(swings):
    start, contexts = Start(*end_weights(5, 4, WINDY.dt)), swings.test.q[:, :10]
    turned = contexts + 2 * np.pi * (np.arange(10) > 7)[:, None]
    for plain, round_ in zip(start.state(contexts, WINDY.manifold), start.state(turned, WINDY.manifold), strict=True):
        np.testing.assert_allclose(plain, round_, atol=1e-9)


def test_a_context_shorter_than_the_start_is_refused(swings):
    with pytest.raises(InputError, match="too short: this start needs 5"):
        Start(*end_weights(5, 4, 0.05)).state(swings.test.q[:, :4], WINDY.manifold)


def test_forced_data_are_refused(swings):
    forced = dataclasses.replace(swings.train, u=np.zeros_like(swings.train.q))
    with pytest.raises(InputError, match="knows no inputs"):
        good_derivatives(forced)


def test_noise_changes_the_smoother_and_bias_is_feared_more_than_noise(swings):
    assert good_derivatives(swings.train).smoother == NARROW
    noisy = swings.train.with_noise(0.02, seed=1)
    chosen = good_derivatives(noisy).smoother
    assert NARROW.window < chosen.window < 31
    library = Library.plain(WINDY.manifold)
    scores = {
        s: forecast_score(Flow.over(regress(library, found.samples), found.start, noisy), swings.test)
        for s in (chosen, Smoother(31, 4))
        for found in [derive(noisy, s)]
    }
    assert scores[chosen] < scores[Smoother(31, 4)]


def test_a_forecast_that_runs_away_is_an_infinite_error():
    line = Manifold.parse("x")
    errors = trajectory_errors(line, np.array([[[1.0]], [[np.nan]]]), np.zeros((2, 1, 1)))
    np.testing.assert_array_equal(errors, [1.0, np.inf])
    assert peers._errors(line, np.array([[[np.nan]]]), np.zeros((1, 1, 1)), 1) == {
        "mse_h1": None,
        "mse_h1_median": None,
        "diverged": 1.0,
    }


def test_libraries_count_their_terms():
    for manifold in (WINDY.manifold, TWO_ANGLES.manifold, CART):
        for library in Library.candidates(manifold):
            assert library(*jnp.ones((2, manifold.size))).shape == (library.size,)
    with_x, without = Library.candidates(CART)[:2]
    assert (with_x.rest, without.rest) == ([0, 2, 3], [2, 3])


# --- the tools -------------------------------------------------------------------------------------------------------


def test_least_squares_recovers_the_windy_damping(swings):
    tool = LeastSquares(harmonics=(4,))
    fitted = tool.fit(WINDY, swings.train, tool.choose(WINDY, swings.train), 0)
    angles = jnp.linspace(-3.0, 3.0, 25)[:, None]
    found = jax.vmap(fitted.damping)(angles)
    truth = jax.vmap(lambda q: damping_diagonal(WINDY.port_hamiltonian, q))(angles)
    assert float(jnp.mean(jnp.abs(found - truth))) < 0.03  # four harmonics of a kink
    errors = trajectory_errors(WINDY.manifold, fitted.rollout(swings.test.q[:, :10], 60), swings.test.q[:, 10:70])
    assert np.median(errors) < 1e-5 * np.median(persistence(swings.test, 60))


def test_least_squares_finds_constants_through_a_mass_matrix():
    data = simulate(TWO_ANGLES, 12, length=60, seed=1)
    law = FourierDamping.like(TWO_ANGLES.port_hamiltonian.damping, 2, harmonics=4)
    field = least_squares(TWO_ANGLES.port_hamiltonian, law, derive(data, NARROW).samples)
    np.testing.assert_allclose(field.system.damping.coefficients, [[0.2], [0.2]], atol=1e-3)
    assert float(field.system.potential.scale()) == pytest.approx(1.0, abs=1e-4)


def test_a_series_is_shared_where_the_law_is_and_unknown_laws_are_refused():
    shared = FourierDamping.like(WindyDamping(0.3, 0.5, (1, 1)), 2, harmonics=3)
    own = FourierDamping.like(WindyDamping(0.3, (0.0, 0.5), (1, 1)), 2, harmonics=3)
    assert (shared.coefficients.shape, own.coefficients.shape) == ((1, 7), (2, 7))
    assert FourierDamping.like(ConstantDamping(0.1), 2, harmonics=3).coefficients.shape == (2, 1)
    with pytest.raises(InputError, match="no series for Friction"):
        FourierDamping.like(system("robot-arm").port_hamiltonian.damping, 2, harmonics=3)


def test_the_dhnn_has_the_papers_size(trainable_count):
    assert trainable_count(DHNN.create(1, key=jax.random.key(0))) == 107_124


def test_a_dhnn_is_a_curl_and_a_gradient():
    """With plain coordinates for a latent space, a quadratic H alone turns and a quadratic D alone pulls."""
    network = DHNN.create(32, key=jax.random.key(0))
    eye, none = jnp.eye(64), jnp.zeros(64)
    plain = eqx.tree_at(lambda d: (d.encoder.weights, d.decoder.weights), network, ((eye,), (eye,)))
    plain = eqx.tree_at(lambda d: (d.encoder.biases, d.decoder.biases), plain, ((none,), (none,)))
    x = jax.random.normal(jax.random.key(1), (64,))
    bowl = lambda sign: lambda z: sign * 0.5 * jnp.sum(z**2, keepdims=True)  # noqa: E731
    turning = eqx.tree_at(lambda d: (d.energy, d.dissipation), plain, (bowl(1.0), bowl(0.0)))
    np.testing.assert_allclose(turning(x), jnp.concatenate([x[32:], -x[:32]]), atol=1e-12)
    pulling = eqx.tree_at(lambda d: (d.energy, d.dissipation), plain, (bowl(0.0), bowl(-1.0)))
    np.testing.assert_allclose(pulling(x), -x, atol=1e-12)


def test_training_a_dhnn_brings_its_loss_down_and_beats_saying_that_nothing_moves(swings, monkeypatch):
    history = []
    monkeypatch.setattr(peers, "descend", lambda *a, **k: history.append(descend(*a, **k)) or history[-1])
    tool = Dhnn(harmonics=1, steps=300, batch=64)
    fitted = tool.fit(WINDY, swings.train, derive(swings.train, NARROW), 0)
    ((field, losses),) = history
    assert np.mean(losses[-10:]) < 0.05 * np.mean(losses[:10])
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(eqx.filter(field, eqx.is_inexact_array)))
    errors = trajectory_errors(WINDY.manifold, fitted.rollout(swings.test.q[:, :10], 30), swings.test.q[:, 10:40])
    assert np.median(errors) < 0.1 * np.median(persistence(swings.test, 30)) and fitted.damping is None


def test_a_neural_ode_beats_saying_that_nothing_moves(swings):
    tool = NeuralOde(width=32, steps=300, refinements=30, window=5)
    fitted = tool.fit(WINDY, swings.train, derive(swings.train, NARROW), 0)
    errors = trajectory_errors(WINDY.manifold, fitted.rollout(swings.test.q[:, :10], 30), swings.test.q[:, 10:40])
    assert np.median(errors) < 0.1 * np.median(persistence(swings.test, 30))


def test_windows_follow_their_samples(swings):
    samples = derive(swings.train, NARROW).samples
    q, v, future = windows(swings.train, samples, 3, length=5)
    np.testing.assert_allclose(q[0], swings.train.q[0, 3], atol=1e-9)
    np.testing.assert_allclose(future[0], swings.train.q[0, 4:9], atol=1e-12)
    assert len(q) == len(v) == len(future)
    np.testing.assert_allclose(future[:, 0], q + WINDY.dt * v, atol=0.1)  # row by row, across trajectories


def test_sindy_recovers_the_pendulum():
    pytest.importorskip("pysindy")
    rng = np.random.default_rng(0)
    q, v = rng.uniform(-3, 3, (2000, 1)), rng.normal(0, 3, (2000, 1))
    field = sparse(Library(WINDY.manifold, 2), 0.05, Samples(q, v, -9.81 * np.sin(q) - 0.5 * v))
    weights = np.asarray(field.weights[0])
    names = {1: -0.5, 3: -9.81}  # v, and the first sine: three monomials for each of (1, sin, cos, …)
    np.testing.assert_allclose([weights[i] for i in names], list(names.values()), rtol=1e-6)
    assert np.count_nonzero(weights) == 2


@pytest.mark.parametrize(
    "manifold, lines", [(WINDY.manifold, True), (TWO_ANGLES.manifold, True), (CART, True), (CART, False)]
)
def test_the_field_that_is_followed_is_the_one_that_sindy_found(manifold, lines):
    """Random targets keep every term, so any difference between the two orders of terms would show."""
    pytest.importorskip("pysindy")
    rng, library = np.random.default_rng(0), Library(manifold, 2 if sum(manifold.circles) < 2 else 1, lines)
    samples = Samples(*rng.normal(size=(3, 400, manifold.size)))
    field, plain = sparse(library, 0.0, samples), regress(library, samples)
    np.testing.assert_allclose(field.weights, plain.weights, rtol=1e-2, atol=1e-3)  # a faint ridge apart
    assert np.count_nonzero(plain.weights) == plain.weights.size


def test_sindy_forecasts_and_tells_the_friction(swings):
    pytest.importorskip("pysindy")
    tool = Sindy(thresholds=(0.0, 0.01))
    fitted = tool.fit(WINDY, swings.train, tool.choose(WINDY, swings.train), 0)
    errors = trajectory_errors(WINDY.manifold, fitted.rollout(swings.test.q[:, :10], 60), swings.test.q[:, 10:70])
    assert np.median(errors) < 1e-3 * np.median(persistence(swings.test, 60))
    found = float(fitted.damping(jnp.array([np.pi / 2]))[0])
    assert found == pytest.approx(0.8, abs=0.1)


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(swings, monkeypatch):
    """The benchmark on a few short trajectories, by its quickest tool."""
    monkeypatch.setattr(peers, "benchmark_split", lambda system: swings)
    monkeypatch.setattr(peers, "HORIZON", 60)
    monkeypatch.setitem(peers.PEERS, "least-squares", LeastSquares(harmonics=(4,)))


def test_records_are_written_once_and_read_back(small, tmp_path, monkeypatch):
    told = []
    first = compare_tools(tmp_path, [WINDY], ["least-squares"], [0.0, 0.01], tell=told.append)
    assert [record["noise"] for record in first] == [0.0, 0.01] and len(told) == 2
    assert "least-squares on pendulum-windy, noise 0.01: median error" in told[1]
    clean, noisy = (record["metrics"] for record in first)
    assert clean["mse_h60_median"] < noisy["mse_h60_median"] and clean["damping_r2"] > 0.9
    assert set(first[0]["seconds"]) == {"choose", "train", "rollout"}
    path = tmp_path / "peers/pendulum-windy/least-squares/seed-0-noise-0.01.json"
    assert json.loads(path.read_text()) == first[1]
    monkeypatch.setattr(peers, "measure", lambda *a, **k: pytest.fail("a finished fit is not repeated"))
    assert (
        compare_tools(tmp_path, [WINDY], ["least-squares"], [0.0, 0.01], tell=told.append) == first and len(told) == 2
    )


def test_ours_is_judged_by_the_same_function(swings, monkeypatch):
    """As if the fit had found the truth: what is left is the integrator's error."""
    step = Transition(leapfrog(), ExactDamping(), Timestep(WINDY.dt, 8))
    model = ModelAware(Core(WINDY.port_hamiltonian, step), WINDY.manifold, WINDY.dt)
    monkeypatch.setattr(peers, "fit", lambda data, composed, *, method, seed: wrapped(model))
    record = measure("phast-known", WINDY, swings, horizon=60)
    assert record["metrics"]["mse_h60_median"] < 1e-8
    assert record["metrics"]["damping_r2"] == pytest.approx(1.0) and record["metrics"]["damping_mae"] < 1e-12


def test_a_constant_damping_has_no_r2(swings):
    truth = TWO_ANGLES.port_hamiltonian
    scores = peers._recovery(lambda q: jnp.full(2, 0.3), truth, np.zeros((2, 3, 2)))
    assert scores == {"damping_mae": pytest.approx(0.1)}


def test_what_is_not_installed_is_skipped_in_one_line(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = f"paper bench peers --model sindy --system pendulum-windy --noise 0 --results {tmp_path}"
    monkeypatch.setattr("sys.argv", ["phast", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (
        capsys.readouterr().err
        == "sindy: skipped, since pysindy is not installed: pip install 'phast-physics[peers]'\n"
    )


def test_the_command_prints_a_table_and_writes_json(small, tmp_path, monkeypatch, capsys):
    words = f"paper bench peers --model least-squares --system pendulum-windy --noise 0 --results {tmp_path}"
    monkeypatch.setattr("sys.argv", ["phast", *words.split(), "--json", str(tmp_path / "all.json")])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr()
    assert "phast paper bench peers" in shown.out and "R²_D" in shown.out and "least-squares" in shown.out
    assert json.loads((tmp_path / "all.json").read_text())[0]["model"] == "least-squares"


@pytest.mark.parametrize(
    "words, line",
    [
        ("paper bench peers --model best", "unknown peer 'best'"),
        ("paper bench peers --noise loud", "--noise 'loud': give numbers"),
        ("paper bench train peers", "peers is a bench of its own"),
        ("paper bench --system pendulum-windy", "peers is a bench of its own"),
    ],
)
def test_wrong_words_are_one_line(words, line, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["phast", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and line in capsys.readouterr().err


def test_the_table_has_a_row_per_tool_and_says_what_ran_away():
    def record(model, noise, **metrics):
        seconds = {"choose": 2.0, "train": 1.5, "rollout": 0.25}
        return {"system": WINDY.name, "model": model, "noise": noise, "metrics": metrics, "seconds": seconds}

    records = [
        record("a", 0.0, mse_h100=1e-4, mse_h100_median=2e-8, damping_r2=0.5),
        record("b", 0.0, mse_h100=None, mse_h100_median=1.0, diverged=0.1),
    ]
    sheet = Tools("peers", "tools").sheet(records)
    assert sheet.heading[2:6] == ["tool", "mean", "median", "R²_D"]
    assert sheet.lines[0] == [WINDY.name, "0", "a", "1.00e-04", "2.00e-08", "0.5", "", "1.5", "2", "0.25"]
    assert sheet.lines[1][3:7] == ["diverged", "1", "", ""]

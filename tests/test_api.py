"""What a user calls: learn, forecast, filter, damping, from arrays, lists and tables; and what a user gets wrong."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from doubles import Still
from hypothesis import given
from hypothesis import strategies as st
from phast.old_api import damping, filter_states, learn

import phast
from phast.api import forecast, hold_out, steps_in
from phast.components.damping import ConstantDamping
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, as_trajectories
from phast.errors import InputError
from phast.estimation.forecaster import Phast, autoregressive
from phast.fitting.networks import known, partial
from phast.fitting.training import Settings

pytestmark = pytest.mark.usefixtures("quick_compile")

DT = 0.05
QUICK = Settings(epochs=1, batch_size=8)
ANGLE = Manifold.parse("theta:angle")


def swinging(count, length, seed=0):
    """Small damped swings in closed form: (count, length, 1)."""
    rng = np.random.default_rng(seed)
    t = DT * np.arange(length)
    size, phase = rng.uniform(0.1, 0.5, (count, 1)), rng.uniform(0.0, 6.0, (count, 1))
    return (size * np.exp(-0.25 * t) * np.cos(3.12 * t + phase))[..., None]


ARRAY = swinging(10, 12)
KNOWN = {"regime": "known", "potential": Cosine(9.81), "damping": ConstantDamping(Positive.uninformed())}


def learned(data, **options):
    return learn(
        data, **({"dt": DT, "coordinates": ["theta:angle"], "settings": QUICK, "preset": "paper"} | KNOWN | options)
    )


def bits(model):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(model) if isinstance(x, jax.Array)]


@pytest.fixture(scope="module")
def model():
    """Not trained: what is tested with it does not depend on that."""
    return known(manifold=ANGLE, dt=DT, key=jax.random.key(0), **{k: KNOWN[k] for k in ("potential", "damping")})


@pytest.fixture(scope="module")
def pair():
    """Two coordinates, the second an angle."""
    return known(
        manifold=Manifold.parse("x", "theta:angle"),
        dt=DT,
        potential=Cosine((1.0, 9.81)),
        damping=ConstantDamping((0.1, 0.4)),
        key=jax.random.key(0),
    )


# --- learning --------------------------------------------------------------------------------------------------------


def test_arrays_lists_and_trajectories_are_the_same_data():
    expected = learned(ARRAY)
    assert isinstance(expected, Phast) and expected.dt == DT and expected.manifold == ANGLE
    assert bits(learned(list(ARRAY))) == bits(expected)
    assert bits(learned([part[:, 0] for part in ARRAY])) == bits(expected)
    assert bits(learned(as_trajectories(ARRAY, dt=DT, coordinates=["theta:angle"]))) == bits(expected)
    assert bits(learned(ARRAY, seed=1)) != bits(expected)
    future = forecast(expected, ARRAY[0, :6], 5)
    assert future.shape == (5, 1) and np.isfinite(future).all()
    found = damping(expected, [0.0, 1.0])
    assert found.shape == (2, 1) and 0.6 < found[0, 0] < 0.8  # hardly moved from softplus(0)


def test_one_long_recording_is_cut_into_windows():
    frame = pd.DataFrame({"time": DT * np.arange(200), "theta": swinging(1, 200)[0, :, 0], "note": "x"})
    from_table = learned(frame)
    assert bits(from_table) == bits(learned(frame["theta"].to_numpy()))
    assert bits(from_table) == bits(learned(frame[["theta"]].to_numpy()))


@pytest.mark.parametrize(
    ("options", "model_has"),
    [
        ({"regime": "partial", "potential": Cosine(9.81), "damping": None, "bound": 0.5, "base": 0.3}, "bound"),
        ({"regime": "unknown", "potential": None, "damping": None}, "strength_network"),
    ],
    ids=["partial", "unknown"],
)
def test_the_other_regimes(options, model_has):
    fitted = learned(ARRAY, **options)
    assert hasattr(fitted.learned_system().damping, model_has)
    assert forecast(fitted, ARRAY[:2, :6], 4, mode="takeover").shape == (2, 4, 1)
    found = damping(fitted, np.linspace(-3, 3, 5))
    assert found.shape == (5, 1) and (found > 0).all()
    assert options["regime"] == "unknown" or (found <= 0.8 + 1e-6).all()


def test_epochs_are_reported_and_runs_resume(tmp_path):
    seen = []
    first = learned(ARRAY, checkpoint=tmp_path / "run", on_epoch=lambda h: seen.append(h.loss[-1]))
    assert len(seen) == 1
    again = learned(ARRAY, checkpoint=tmp_path / "run", on_epoch=lambda h: pytest.fail("trained again"))
    assert bits(first) == bits(again)


@given(count=st.integers(1, 12), length=st.integers(1, 700))
def test_held_out_data_are_apart(count, length):
    """Every sample is in training or in validation or, at the end of a recording, in neither; never in both."""
    data = as_trajectories(np.arange(count * length, dtype=float).reshape(count, length, 1), dt=DT)
    try:
        train, validation = hold_out(data)
    except InputError as error:
        assert count < 5 and count * length < 200
        assert "give at least 200 samples" in str(error)
        return
    used, kept = set(train.q.ravel()), set(validation.q.ravel())
    assert not used & kept and kept
    assert len(used) + len(kept) == train.q.size + validation.q.size
    assert len(used) + len(kept) >= 0.5 * count * length
    assert len(validation) == (len(train) + len(validation)) // 5
    assert count < 5 or train.length == length
    if count == 1 and length >= 2000:
        assert train.length == 200


# --- forecasting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["autoregressive", "takeover"])
def test_a_batch_is_its_members(pair, mode):
    context = np.random.default_rng(0).normal(size=(3, 6, 2)).cumsum(axis=1) * 0.1
    together = forecast(pair, context, 7, mode=mode)
    assert together.shape == (3, 7, 2) and isinstance(together, np.ndarray)
    for one, expected in zip(context, together, strict=True):
        np.testing.assert_allclose(forecast(pair, one, 7, mode=mode), expected, rtol=1e-5, atol=1e-6)


def test_forecast_is_the_models_own_rollout(model):
    q = jnp.asarray(ARRAY[0, :6], dtype=float)
    np.testing.assert_allclose(forecast(model, q, 5), autoregressive(model, q, 5), rtol=1e-5)
    np.testing.assert_allclose(forecast(model, q[:, 0], 5), autoregressive(model, q, 5), rtol=1e-5)
    np.testing.assert_allclose(forecast(model, q, 5, mode="takeover"), model.takeover(q, 5), rtol=1e-5)


def test_known_inputs_reach_the_forecast(pair):
    context = np.zeros((2, 4, 2))
    u = np.ones((2, 5, 2))
    pushed = forecast(pair, context, 5, u=u)
    assert (pushed > 0).all() and np.abs(forecast(pair, context, 5)).max() == 0.0
    np.testing.assert_allclose(forecast(pair, context[0], 5, u=u[0]), pushed[0], rtol=1e-5)
    np.testing.assert_allclose(forecast(pair, context, 5, u=0 * u), 0.0)


def test_filtering(pair):
    q = np.random.default_rng(0).normal(size=(3, 8, 2)).cumsum(axis=1) * 0.05
    together = filter_states(pair, q, measurement_noise=0.01)
    assert together.q.shape == together.p.shape == together.innovation.shape == (3, 8, 2)
    assert together.covariance.shape == (3, 8, 4, 4)
    assert all(isinstance(part, np.ndarray) for part in together)
    for part, whole in zip(filter_states(pair, q[1], measurement_noise=0.01), together, strict=True):
        np.testing.assert_allclose(part, whole[1], rtol=1e-3, atol=1e-4)


def test_damping_of_configurations(model, pair):
    np.testing.assert_allclose(damping(pair, np.zeros((4, 2))), np.tile([0.1, 0.4], (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(damping(pair, [0.0, 1.0]), [[0.1, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(damping(model, 0.3), np.log(2.0) * np.ones((1, 1)), rtol=1e-6)
    bounded = partial(manifold=ANGLE, dt=DT, potential=Cosine(1.0), base=0.3, bound=0.5, key=jax.random.key(0))
    found = damping(bounded, np.linspace(-3, 3, 9))
    assert found.shape == (9, 1) and (found >= 0.3).all() and (found <= 0.8 + 1e-6).all()


# --- mistakes --------------------------------------------------------------------------------------------------------

NAN = np.where(np.arange(60).reshape(10, 6, 1) == 20, np.nan, 0.1)

LEARNING_MISTAKES = {
    "no potential (known)": (lambda: learned(ARRAY, potential=None), "potential="),
    "no damping (known)": (lambda: learned(ARRAY, damping=None), "damping="),
    "no potential (partial)": (lambda: learned(ARRAY, regime="partial", potential=None), "potential="),
    "no dt": (lambda: learned(ARRAY, dt=None), "dt"),
    "zero dt": (lambda: learned(ARRAY, dt=0.0), "dt must be a positive number"),
    "negative dt": (lambda: learned(ARRAY, dt=-0.1), "dt must be a positive number"),
    "too many names": (lambda: learned(ARRAY, coordinates=["a", "b"]), "coordinate"),
    "unknown kind": (lambda: learned(ARRAY, coordinates=["a:circle"]), "circle"),
    "missing column": (lambda: learned(pd.DataFrame({"x": [0.0]})), "no column 'theta'"),
    "words": (lambda: learned(np.array([["a"]] * 300)), "must hold numbers"),
    "not a number": (lambda: learned(NAN), "trajectory 3, step 2, coordinate 'theta'"),
    "infinite": (lambda: learned(np.where(np.isnan(NAN), np.inf, NAN)), "trajectory 3, step 2"),
    "four axes": (lambda: learned(ARRAY[None]), "shape"),
    "ragged": (lambda: learned([ARRAY[0], ARRAY[1, :5]]), "cut them to equal length"),
    "too little": (lambda: learned(ARRAY[0]), "give at least 200 samples"),
    "single samples": (lambda: learned(ARRAY[:, :1]), "longer|at least"),
    "empty": (lambda: learned(np.zeros((0, 5, 1))), "no samples"),
}


@pytest.mark.parametrize(("call", "message"), LEARNING_MISTAKES.values(), ids=LEARNING_MISTAKES.keys())
def test_mistakes_in_learning(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def uneven(data):
    """The same samples, by a clock that is said to be uneven."""
    stretch = np.linspace(0.5, 1.5, data.shape[1])[None, :, None] * np.ones((len(data), 1, 1))
    return Trajectories(data, DT, ANGLE, stretch=stretch)


PRESET_MISTAKES = {
    "words for the paper's": (lambda: learned(ARRAY, potential="cosine"), "words .* go with preset='sharp'"),
    "a port for the paper's": (lambda: learned(ARRAY, port="identity"), "port and context go with preset='sharp'"),
    "a context for the paper's": (lambda: learned(ARRAY, context=5), "port and context go with preset='sharp'"),
    "an uneven clock for the paper's": (lambda: learned(uneven(ARRAY)), "even steps only: resample the recording"),
    "settings for the sharp": (lambda: learned(ARRAY, preset="sharp"), "belong to preset='paper'"),
    "one sample of context": (lambda: sharp(context=1), "a context of 1 sample.*: give 2 to 12"),
    "more context than there is": (lambda: sharp(context="1 s"), "a context of 20 sample.*: give 2 to 12"),
    "words for a context": (lambda: sharp(context="some"), "'some' is no duration"),
}


def sharp(**options):
    return learn(ARRAY, dt=DT, coordinates=["theta:angle"], **KNOWN, **options)


@pytest.mark.parametrize(("call", "message"), PRESET_MISTAKES.values(), ids=PRESET_MISTAKES.keys())
def test_mistakes_between_presets(call, message, float64):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


Q = np.zeros((6, 1))
RECORDED = phast.read(swinging(1, 30)[0], positions="theta:angle", dt=DT)
FORECAST_MISTAKES = {
    "one sample": (lambda m: forecast(m, Q[:1], 5), "a context of 1 sample"),
    "no sample": (lambda m: forecast(m, Q[:0], 5), "a context of 0 sample"),
    "not a number": (lambda m: forecast(m, np.where(np.arange(6)[:, None] == 4, np.nan, 0.0), 5), "theta .* sample 4"),
    "infinite": (lambda m: forecast(m, np.full((2, 6, 1), np.inf), 5), "sample 0 of trajectory 0"),
    "wrong coordinates": (lambda m: forecast(m, np.zeros((6, 2)), 5), r"1 coordinate\(s\) \(theta\).*\(6, 2\)"),
    "four axes": (lambda m: forecast(m, np.zeros((1, 1, 6, 1)), 5), "shape"),
    "a number": (lambda m: forecast(m, 0.5, 5), "shape"),
    "words": (lambda m: forecast(m, [["a"], ["b"]], 5), "number"),
    "ragged": (lambda m: forecast(m, [[0.0], [0.0, 1.0]], 5), "shape|number|length"),
    "no horizon": (lambda m: forecast(m, Q, 0), "'0' is no whole number of steps"),
    "negative horizon": (lambda m: forecast(m, Q, -3), "'-3' is no whole number of steps"),
    "half a step": (lambda m: forecast(m, Q, "2.5"), "'2.5' is no whole number of steps"),
    "an endless horizon": (lambda m: forecast(m, Q, "1e20 s"), "from one to 1e"),
    "words for a horizon": (lambda m: forecast(m, Q, "soon"), "'soon' is no duration"),
    "a unit of length": (lambda m: forecast(m, Q, "2 m"), "'2 m' is no duration"),
    "inputs that the system has no port for": (lambda m: forecast(m, Q, 5, u=np.zeros((5, 2))), r"shape \(5, 1\)"),
    "a recording for the paper's observer": (lambda m: forecast(m, RECORDED, 5), "a recording is forecast by a sharp"),
    "too few inputs": (lambda m: forecast(m, Q, 5, u=np.zeros((4, 1))), "u"),
    "inputs for one of two": (lambda m: forecast(m, np.zeros((2, 6, 1)), 5, u=np.zeros((5, 1))), "u"),
    "inputs that are not numbers": (lambda m: forecast(m, Q, 5, u=np.full((5, 1), np.nan)), "u"),
    "filter, one sample": (lambda m: filter_states(m, Q[:1]), "a context of 1 sample|sample"),
    "filter, not a number": (lambda m: filter_states(m, Q * np.nan), "not a finite number"),
    "filter, no noise": (lambda m: filter_states(m, Q, measurement_noise=0.0), "noise"),
    "damping, wrong coordinates": (lambda m: damping(m, np.zeros((3, 2))), "coordinate"),
}


@pytest.mark.parametrize(("call", "message"), FORECAST_MISTAKES.values(), ids=FORECAST_MISTAKES.keys())
def test_mistakes_in_forecasting(model, call, message):
    with pytest.raises(InputError, match=message) as error:
        call(model)
    assert "\n" not in str(error.value)


def test_damping_of_half_a_configuration(pair):
    with pytest.raises(InputError, match="coordinate"):
        damping(pair, np.zeros(3))


@given(
    count=st.integers(1, 10**6),
    dt=st.floats(1e-9, 1e4),
    unit=st.sampled_from(
        [("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("min", 60.0), ("h", 3600)]
    ),
    space=st.sampled_from(["", " ", "  "]),
)
def test_a_duration_is_a_number_of_steps_in_any_unit(count, dt, unit, space):
    name, seconds = unit
    assert steps_in(f"{count * dt / seconds!r}{space}{name}", dt) == count
    assert steps_in(count, dt) == steps_in(f"{space}{count}{space}", dt) == count


@given(st.floats(0.01, 1e3), st.floats(0.0, 100.0))
def test_a_longer_time_is_never_fewer_steps(dt, longer):
    duration = 3.0 * dt
    assert steps_in(f"{duration} s", dt) == 3 <= steps_in(f"{duration + longer} s", dt)


@given(st.one_of(st.text(max_size=6), st.floats(), st.integers()))
def test_any_duration_is_steps_or_one_clear_line(duration):
    try:
        found = steps_in(duration if isinstance(duration, int | str) else repr(duration), DT)
    except InputError as error:
        assert "\n" not in str(error).replace(str(duration), "") and "steps" in str(error)
    else:
        assert isinstance(found, int) and found >= 1


def test_a_model_without_a_clock_counts_steps():
    assert forecast(Still(ANGLE), Q, 3).shape == (3, 1)
    with pytest.raises(InputError, match="a Still counts no time: give the horizon in steps, not '1 s'"):
        forecast(Still(ANGLE), Q, "1 s")
    with pytest.raises(InputError, match="'0' is no whole number of steps"):
        forecast(Still(ANGLE), Q, 0)


def test_a_time_is_as_many_steps(model):
    q = ARRAY[0, :6]
    np.testing.assert_array_equal(forecast(model, q, "250 ms"), forecast(model, q, 5))


def test_only_models_with_a_state_can_take_over():
    np.testing.assert_array_equal(forecast(Still(ANGLE), Q + 2.0, 3), np.full((3, 1), 2.0))
    with pytest.raises(InputError, match="Still has no physical state to take over"):
        forecast(Still(ANGLE), Q, 3, mode="takeover")


# --- precision and names ---------------------------------------------------------------------------------------------


def test_double_precision_on_request_and_an_unknown_regime():
    script = textwrap.dedent(
        """
        import jax, numpy as np, phast
        phast.enable_float64()
        model = phast.known(manifold=phast.Manifold.parse("theta:angle"), dt=0.05, potential=phast.Cosine(9.81),
                            damping=phast.ConstantDamping(phast.Positive.uninformed()), key=jax.random.key(0))
        assert {x.dtype.name for x in jax.tree.leaves(model) if isinstance(x, jax.Array)} == {"float64"}
        q = 0.3 * np.cos(0.15 * np.arange(6))[:, None]
        future = phast.forecast(model, q, 3)
        assert future.dtype == np.float64 and (future != future.astype(np.float32)).all(), future
        assert phast.damping(model, 0.0).dtype == phast.filter_states(model, q).p.dtype == np.float64
        try:  # here, where no type checker refuses it first
            phast.learn(np.zeros((10, 5, 1)), dt=0.05, regime="guess")
        except phast.InputError as error:
            assert "unknown regime 'guess': choose known, partial or unknown" in str(error)
            print("ok")
        """
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "ok\n", done.stderr


def test_every_public_name_is_there():
    for name in phast.__all__:
        assert getattr(phast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = phast.nothing

"""What a user calls: fit, and ask what was fitted, from arrays, lists and tables; and what a user gets wrong."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from doubles import Still, wrapped
from hypothesis import given
from hypothesis import strategies as st

import phast
from phast.components.damping import ConstantDamping
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories, as_trajectories
from phast.errors import InputError
from phast.estimation.forecaster import Phast, autoregressive
from phast.fitting import checkpoint
from phast.fitting.gradient import hold_out
from phast.fitting.networks import known, partial

DT = 0.05
QUICK = phast.Settings(epochs=1, batch_size=8)
ANGLE = Manifold.parse("theta:angle")


def swinging(count, length, seed=0):
    """Small damped swings in closed form: (count, length, 1)."""
    rng = np.random.default_rng(seed)
    t = DT * np.arange(length)
    size, phase = rng.uniform(0.1, 0.5, (count, 1)), rng.uniform(0.0, 6.0, (count, 1))
    return (size * np.exp(-0.25 * t) * np.cos(3.12 * t + phase))[..., None]


ARRAY = swinging(10, 12)
KNOWN = {"regime": "known", "potential": Cosine(9.81), "damping": ConstantDamping(Positive.uninformed())}
AS_ARRAY = {"dt": DT, "positions": "theta:angle"}


def trained(data, *, seed=0, progress=None, structure=None, given=AS_ARRAY, **options):
    """By one epoch of the paper's training."""
    method = phast.Gradient(**({"settings": QUICK} | options))
    structure = phast.Structure(**(KNOWN | (structure or {})))
    return phast.fit(data, structure, method=method, seed=seed, progress=progress, **given)


def bits(fitted):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(fitted.model) if isinstance(x, jax.Array)]


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


# --- fitting ---------------------------------------------------------------------------------------------------------


def test_arrays_lists_and_trajectories_are_the_same_data():
    expected = trained(ARRAY)
    assert isinstance(expected.model, Phast) and expected.model.manifold == ANGLE
    assert expected.model.dt == pytest.approx(DT)
    assert bits(trained(list(ARRAY))) == bits(expected)
    assert bits(trained([part[:, 0] for part in ARRAY])) == bits(expected)
    same = as_trajectories(ARRAY, dt=DT, coordinates=["theta:angle"])
    assert bits(trained(same, given={})) == bits(expected)
    assert bits(trained(phast.read(ARRAY, **AS_ARRAY), given={})) == bits(expected)
    assert bits(trained(ARRAY, seed=1)) != bits(expected)
    future = expected.forecast(5, ARRAY[0, :6])
    assert future.q.shape == (5, 1) and np.isfinite(future.q).all()
    found = expected.damping([0.0, 1.0])
    assert found.shape == (2, 1) and 0.6 < found[0, 0] < 0.8  # hardly moved from softplus(0)


def test_one_long_recording_is_cut_into_windows():
    frame = pd.DataFrame({"theta": swinging(1, 200)[0, :, 0], "note": "x"})
    from_table = trained(frame)
    assert bits(from_table) == bits(trained(frame["theta"].to_numpy()))
    assert bits(from_table) == bits(trained(frame[["theta"]].to_numpy()))


@pytest.mark.parametrize(
    ("structure", "options", "model_has"),
    [
        ({"regime": "partial", "damping": None}, {"bound": 0.5, "base": 0.3}, "bound"),
        ({"regime": "unknown", "potential": None, "damping": None}, {}, "strength_network"),
    ],
    ids=["partial", "unknown"],
)
def test_the_other_regimes(structure, options, model_has):
    fitted = trained(ARRAY, structure=structure, **options)
    assert hasattr(fitted.model.learned_system().damping, model_has)
    assert fitted.forecast(4, ARRAY[:2, :6], mode="takeover").q.shape == (2, 4, 1)
    found = fitted.damping(np.linspace(-3, 3, 5))
    assert found.shape == (5, 1) and (found > 0).all()
    assert structure["regime"] == "unknown" or (found <= 0.8 + 1e-6).all()


def test_epochs_are_reported_and_runs_resume(tmp_path):
    seen = []
    first = trained(ARRAY, checkpoint=tmp_path / "run", progress=seen.append)
    assert [(each.done, each.total) for each in seen] == [(1, 1)] and np.isfinite(seen[0].loss)
    again = trained(ARRAY, checkpoint=tmp_path / "run", progress=lambda p: pytest.fail("trained again"))
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
    together = wrapped(pair).forecast(7, context, mode=mode).q
    assert together.shape == (3, 7, 2) and isinstance(together, np.ndarray)
    for one, expected in zip(context, together, strict=True):
        np.testing.assert_allclose(wrapped(pair).forecast(7, one, mode=mode).q, expected, rtol=1e-5, atol=1e-6)


def test_a_forecast_is_the_models_own_rollout(model):
    q, fitted = jnp.asarray(ARRAY[0, :6], dtype=float), wrapped(model)
    np.testing.assert_allclose(fitted.forecast(5, q).q, autoregressive(model, q, 5), rtol=1e-5)
    np.testing.assert_allclose(fitted.forecast(5, q[:, 0]).q, autoregressive(model, q, 5), rtol=1e-5)
    np.testing.assert_allclose(fitted.forecast(5, q, mode="takeover").q, model.takeover(q, 5), rtol=1e-5)


def test_known_inputs_reach_the_forecast(pair):
    context, before = np.zeros((2, 4, 2)), np.zeros((2, 3, 2))
    u, driven = np.ones((2, 5, 2)), wrapped(pair, ("push", "torque"))
    pushed = driven.forecast(5, context, past=before, inputs=u).q
    assert (pushed > 0).all() and np.abs(wrapped(pair).forecast(5, context).q).max() == 0.0
    one = driven.forecast(5, context[0], past=before[0], inputs=u[0]).q
    np.testing.assert_allclose(one, pushed[0], rtol=1e-5)
    for same in (1.0, [1.0, 1.0], u[0]):
        np.testing.assert_allclose(driven.forecast(5, context, past=before, inputs=same).q, pushed, rtol=1e-5)
    np.testing.assert_allclose(driven.forecast(5, context, past=before, hold=True).q, 0.0)


def test_inputs_that_are_not_told_are_no_zeros(pair):
    """A driven model whose inputs are not given would forecast wrong numbers."""
    driven, context, before = wrapped(pair, ("push", "torque")), np.zeros((4, 2)), np.zeros((3, 2))
    with pytest.raises(InputError, match=r"needs the inputs to come: give them with inputs=…"):
        driven.forecast(5, context, past=before)
    undriven = Trajectories(np.zeros((1, 12, 2)), DT, pair.manifold)
    for call in (
        lambda: driven.forecast(5, context, inputs=1.0),
        lambda: driven.forecast(5, undriven, inputs=1.0),
        lambda: driven.filter(context),
        lambda: driven.filter(undriven),
    ):
        with pytest.raises(InputError, match="driven by push, torque: name the columns with inputs=…"):
            call()


def test_filtering(pair):
    q = np.random.default_rng(0).normal(size=(3, 8, 2)).cumsum(axis=1) * 0.05
    together = wrapped(pair).filter(q, noise=0.01).pieces
    assert len(together) == 3
    for piece in together:
        assert piece.q.shape == piece.p.shape == piece.innovation.shape == (8, 2)
        assert piece.covariance.shape == (8, 4, 4)
    (alone,) = wrapped(pair).filter(q[1], noise=0.01).pieces
    for name in ("q", "p", "covariance", "innovation"):
        one, same = getattr(alone, name), getattr(together[1], name)
        assert isinstance(one, np.ndarray)
        np.testing.assert_allclose(one, same, rtol=1e-3, atol=1e-4)


def test_damping_of_configurations(model, pair):
    np.testing.assert_allclose(wrapped(pair).damping(np.zeros((4, 2))), np.tile([0.1, 0.4], (4, 1)), rtol=1e-6)
    np.testing.assert_allclose(wrapped(pair).damping([0.0, 1.0]), [[0.1, 0.4]], rtol=1e-6)
    np.testing.assert_allclose(wrapped(model).damping(0.3), np.log(2.0) * np.ones((1, 1)), rtol=1e-6)
    bounded = partial(manifold=ANGLE, dt=DT, potential=Cosine(1.0), base=0.3, bound=0.5, key=jax.random.key(0))
    found = wrapped(bounded).damping(np.linspace(-3, 3, 9))
    assert found.shape == (9, 1) and (found >= 0.3).all() and (found <= 0.8 + 1e-6).all()


# --- mistakes --------------------------------------------------------------------------------------------------------

NAN = np.where(np.arange(100).reshape(10, 10, 1) == 32, np.nan, 0.1)


def as_given(**options):
    return AS_ARRAY | options


FITTING_MISTAKES = {
    "no potential (known)": (lambda: trained(ARRAY, structure={"potential": None}), "needs a potential"),
    "no damping (known)": (lambda: trained(ARRAY, structure={"damping": None}), "needs a damping"),
    "no potential (partial)": (
        lambda: trained(ARRAY, structure={"regime": "partial", "potential": None}),
        "needs a potential",
    ),
    "no dt": (lambda: trained(ARRAY, given=as_given(dt=None)), "dt"),
    "zero dt": (lambda: trained(ARRAY, given=as_given(dt=0.0)), "dt must be a positive number"),
    "negative dt": (lambda: trained(ARRAY, given=as_given(dt=-0.1)), "dt must be a positive number"),
    "dt of what has one": (lambda: trained(RECORDED, given={"dt": DT}), "leave dt and positions out"),
    "too many names": (lambda: trained(ARRAY, given=as_given(positions=["a", "b"])), "1 column, but 2 position"),
    "unknown kind": (lambda: trained(ARRAY, given=as_given(positions="a:circle")), "circle"),
    "missing column": (lambda: trained(pd.DataFrame({"x": [0.0]})), "no column 'theta'"),
    "words": (lambda: trained(np.array([["a"]] * 300)), "must hold numbers"),
    "not a number": (lambda: trained(NAN), "column 'theta' is blank in row 2 of trajectory 3"),
    "infinite": (lambda: trained(np.where(np.isnan(NAN), np.inf, NAN)), "row 2 of trajectory 3"),
    "four axes": (lambda: trained(ARRAY[None]), "shape"),
    "ragged": (lambda: trained([ARRAY[0], np.zeros((12, 2))]), "1, 2 columns: give all the same"),
    "too little": (lambda: trained(ARRAY[0]), "give at least 200 samples"),
    "single samples": (lambda: trained(ARRAY[:, :1]), "samples without a gap are needed"),
    "empty": (lambda: trained(np.zeros((0, 5, 1))), "no"),
}


@pytest.mark.parametrize(("call", "message"), FITTING_MISTAKES.values(), ids=FITTING_MISTAKES.keys())
def test_mistakes_in_fitting(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def uneven(data):
    """The same samples, by a clock that is said to be uneven."""
    stretch = np.linspace(0.5, 1.5, data.shape[1])[None, :, None] * np.ones((len(data), 1, 1))
    return Trajectories(data, DT, ANGLE, stretch=stretch)


def to_second_order(**options):
    return phast.fit(ARRAY, phast.Structure(**KNOWN), method=phast.SecondOrder(**options), **AS_ARRAY)


METHOD_MISTAKES = {
    "words for networks": (lambda: trained(ARRAY, structure={"damping": "viscous"}), "words are fitted to second"),
    "a port for networks": (lambda: trained(ARRAY, structure={"port": "identity"}), "a port and pairs go with"),
    "a system for networks": (
        lambda: phast.fit(ARRAY, wrapped(known_pendulum()).model.core.system, method=phast.Gradient(), **AS_ARRAY),
        "a composed system is fitted to second order",
    ),
    "an uneven clock for networks": (lambda: trained(uneven(ARRAY), given={}), "needs even steps: resample"),
    "a bound of what is known": (lambda: trained(ARRAY, bound=0.5), "regime 'known' has none"),
    "one sample of context": (lambda: to_second_order(context=1), "a context of 1 sample.*: give 2 to 12"),
    "more context than there is": (lambda: to_second_order(context="1 s"), "a context of 20 sample.*: give 2 to 12"),
    "words for a context": (lambda: to_second_order(context="some"), "'some' is no duration"),
}


def known_pendulum():
    return known(manifold=ANGLE, dt=DT, potential=Cosine(9.81), damping=KNOWN["damping"], key=jax.random.key(0))


@pytest.mark.parametrize(("call", "message"), METHOD_MISTAKES.values(), ids=METHOD_MISTAKES.keys())
def test_mistakes_between_methods(call, message):
    with pytest.raises(InputError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", [{"port": "identity"}, {"context": 5}, {"noise": 0.1}, {"passive": True}])
def test_options_of_the_other_method_do_not_exist(option):
    with pytest.raises(TypeError):
        phast.Gradient(**option)


@pytest.mark.parametrize("option", [{"settings": QUICK}, {"bound": 0.5}, {"base": 0.1}, {"checkpoint": "x"}])
def test_options_of_training_do_not_exist_beside_it(option):
    with pytest.raises(TypeError):
        phast.SecondOrder(**option)


Q = np.zeros((6, 1))
RECORDED = phast.read(swinging(1, 30)[0], positions="theta:angle", dt=DT)
OFTEN = phast.read(swinging(1, 30)[0], positions="theta:angle", dt=0.5 * DT)


def driven(m):
    return wrapped(m, ("u",))


FORECAST_MISTAKES = {
    "one sample": (lambda m: wrapped(m).forecast(5, Q[:1]), "a context of 1 sample"),
    "no sample": (lambda m: wrapped(m).forecast(5, Q[:0]), "a context of 0 sample"),
    "not a number": (
        lambda m: wrapped(m).forecast(5, np.where(np.arange(6)[:, None] == 4, np.nan, 0.0)),
        "theta .* sample 4",
    ),
    "infinite": (lambda m: wrapped(m).forecast(5, np.full((2, 6, 1), np.inf)), "sample 0 of context 0"),
    "wrong coordinates": (
        lambda m: wrapped(m).forecast(5, np.zeros((6, 2))),
        r"1 coordinate \(theta\).*\(6, 2\)",
    ),
    "four axes": (lambda m: wrapped(m).forecast(5, np.zeros((1, 1, 6, 1))), "shape"),
    "a number": (lambda m: wrapped(m).forecast(5, 0.5), "shape"),
    "words": (lambda m: wrapped(m).forecast(5, [["a"], ["b"]]), "number"),
    "ragged": (lambda m: wrapped(m).forecast(5, [[0.0], [0.0, 1.0]]), "shape|number|length"),
    "no horizon": (lambda m: wrapped(m).forecast(0, Q), "'0' is no whole number of steps"),
    "negative horizon": (lambda m: wrapped(m).forecast(-3, Q), "'-3' is no whole number of steps"),
    "half a step": (lambda m: wrapped(m).forecast("2.5", Q), "'2.5' is no whole number of steps"),
    "an endless horizon": (lambda m: wrapped(m).forecast("1e20 s", Q), "from one to 1e"),
    "words for a horizon": (lambda m: wrapped(m).forecast("soon", Q), "'soon' is no duration"),
    "a unit of length": (lambda m: wrapped(m).forecast("2 m", Q), "'2 m' is no duration"),
    "nothing to go on from": (lambda m: wrapped(m).forecast(5), "a model from a file holds no recording"),
    "inputs of what has none": (lambda m: wrapped(m).forecast(5, Q, inputs=1.0), "was fitted without inputs"),
    "too many inputs": (lambda m: driven(m).forecast(5, Q, past=Q[1:], inputs=np.zeros((5, 2))), r"\(5, 1\)"),
    "too few inputs": (lambda m: driven(m).forecast(5, Q, past=Q[1:], inputs=np.zeros((4, 1))), r"\(5, 1\)"),
    "inputs that are not numbers": (
        lambda m: driven(m).forecast(5, Q, past=Q[1:], inputs=np.full((5, 1), np.nan)),
        "finite",
    ),
    "inputs and held ones": (lambda m: driven(m).forecast(5, Q, past=Q[1:], inputs=1.0, hold=True), "give one of them"),
    "a recording by another clock": (lambda m: wrapped(m).forecast(5, OFTEN), "trained at 0.05: make the steps even"),
    "the past of a recording": (lambda m: wrapped(m).forecast(5, RECORDED, past=Q), "leave past=… out"),
    "filter, one sample": (lambda m: wrapped(m).filter(Q[:1]), "a context of 1 sample|sample"),
    "filter, not a number": (lambda m: wrapped(m).filter(Q * np.nan), "not a finite number"),
    "filter, no noise": (lambda m: wrapped(m).filter(Q, noise=0.0), "noise"),
    "estimate": (lambda m: wrapped(m).estimate(Q), "a trained Phast gives no covariance: fit with method=SecondOrder"),
    "adapt": (lambda m: wrapped(m).adapt(Q, ["damping"]), "a trained Phast cannot be adapted"),
    "adapt and forecast": (lambda m: wrapped(m).forecast(5, Q, adapt=["damping"]), "a Phast cannot be adapted"),
    "identify": (lambda m: wrapped(m).identify(), "a trained Phast carries no evidence of its fit"),
    "damping, wrong coordinates": (lambda m: wrapped(m).damping(np.zeros((3, 2))), "coordinate"),
}


@pytest.mark.parametrize(("call", "message"), FORECAST_MISTAKES.values(), ids=FORECAST_MISTAKES.keys())
def test_mistakes_in_forecasting(model, call, message):
    with pytest.raises(InputError, match=message) as error:
        call(model)
    assert "\n" not in str(error.value)


def test_damping_of_half_a_configuration(pair):
    with pytest.raises(InputError, match="coordinate"):
        wrapped(pair).damping(np.zeros(3))


def test_a_time_is_as_many_steps(model):
    q, fitted = ARRAY[0, :6], wrapped(model)
    np.testing.assert_array_equal(fitted.forecast("250 ms", q).q, fitted.forecast(5, q).q)


def test_a_trained_model_forecasts_recordings_too(model):
    fitted = wrapped(model)
    expected = fitted.forecast(5, RECORDED.pieces[0].q[-10:]).q
    np.testing.assert_allclose(fitted.forecast(5, RECORDED).q, expected, atol=1e-6)
    np.testing.assert_allclose(fitted.forecast(5, RECORDED).t, DT * np.arange(30, 35))


def test_what_has_no_physics_is_no_fitted_model(tmp_path):
    checkpoint.save(Still(ANGLE), tmp_path / "still.phast")
    with pytest.raises(InputError, match="holds a Still, which is no fitted model of a system"):
        phast.load(tmp_path / "still.phast", classes=[Still])


# --- precision and names ---------------------------------------------------------------------------------------------


def test_double_precision_on_request_and_words_at_the_door(tmp_path):
    script = textwrap.dedent(
        """
        import sys, jax, numpy as np, phast
        from phast.fitting.checkpoint import save
        with jax.enable_x64(True):
            model = phast.known(manifold=phast.Manifold.parse("theta:angle"), dt=0.05, potential=phast.Cosine(9.81),
                                damping=phast.ConstantDamping(phast.Positive.uninformed()), key=jax.random.key(0))
            save(model, sys.argv[1])
        fitted = phast.load(sys.argv[1])  # in a process that computes in single precision
        leaves = jax.tree.leaves(fitted.model)
        assert {x.dtype.name for x in leaves if isinstance(x, jax.Array)} == {"float64"}
        q = 0.3 * np.cos(0.15 * np.arange(6))[:, None]
        future = fitted.forecast(3, q).q
        assert future.dtype == np.float64 and (future != future.astype(np.float32)).all(), future
        assert fitted.damping(0.0).dtype == fitted.filter(q).pieces[0].p.dtype == np.float64
        assert not jax.config.jax_enable_x64

        def refused(call):
            try:  # here, where no type checker refuses it first
                call()
            except phast.InputError as error:
                return str(error)

        assert "unknown regime 'guess': choose known, partial or unknown" in refused(
            lambda: phast.Structure(regime="guess"))
        assert "unknown forecast mode 'both': choose autoregressive or takeover" in refused(
            lambda: fitted.forecast(3, q, mode="both"))
        assert "unknown start 'now': choose end, start or everywhere" in refused(
            lambda: fitted.forecast(3, q, start="now"))
        print("ok")
        """
    )
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, str(tmp_path / "double.phast")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert done.stdout == "ok\n", done.stderr


def test_every_public_name_is_there():
    for name in phast.__all__:
        assert getattr(phast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = phast.nothing

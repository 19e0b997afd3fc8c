"""The one fit: the same whatever comes in; options that can be compared; results that show themselves."""

import dataclasses
import logging

import equinox as eqx
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import phast
from phast.errors import InputError
from phast.fitting import preprocess
from phast.fitting.preprocess import Preprocessed
from phast.fitting.structure import compose

KNOWN = phast.Structure(potential="cosine", damping="viscous", regime="known")
FAST = phast.SecondOrder(window=10)


@pytest.fixture(scope="module", autouse=True)
def quickly():
    """XLA without its expensive passes, also while fixtures of this module compile."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(scope="module")
def swings():
    """Three damped pendulums in radians (trajectories, samples, 1), by a small explicit step; noise of 1 mrad."""
    q, p = np.array([0.6, -0.9, 0.3]), np.zeros(3)
    path = []
    for _ in range(40):
        path.append(q)
        for _ in range(50):
            p = p - 0.001 * (9.81 * np.sin(q) + 0.2 * p)
            q = q + 0.001 * p
    return np.stack(path, axis=1)[..., None] + np.random.default_rng(0).normal(0.0, 1e-3, (3, 40, 1))


@pytest.fixture(scope="module")
def calls():
    """How often the data were differentiated and their noise measured, by the fit of ``fitted``."""
    return {"differentiate": 0, "choose_smoother": 0, "noise_scale": 0}


@pytest.fixture(scope="module")
def fitted(swings, calls):
    with pytest.MonkeyPatch.context() as patch:
        for name in calls:
            patch.setattr(preprocess, name, counted(calls, name, getattr(preprocess, name)))
        return phast.fit(swings, KNOWN, method=FAST, dt=0.05, positions="theta:angle")


def counted(calls, name, function):
    def call(*arguments):
        calls[name] += 1
        return function(*arguments)

    return call


def numbers(fitted):
    return [np.asarray(x) for x in jax.tree.leaves(eqx.filter(fitted.model, eqx.is_array))]


def same(one, other):
    return all(np.array_equal(x, y) for x, y in zip(numbers(one), numbers(other), strict=True))


def test_data_are_differentiated_once(fitted, calls):
    assert calls == {"differentiate": 1, "choose_smoother": 1, "noise_scale": 1}


def test_an_array_and_a_recording_give_the_same_fit(fitted, swings):
    recording = phast.read(swings, dt=0.05, positions="theta:angle")
    assert same(phast.fit(recording, KNOWN, method=FAST), fitted)


def test_a_composed_system_is_fitted_as_the_words_for_it_are(fitted, swings, caplog):
    """Whoever watches has a model in hand before its spread is judged, and the log says what he is told."""
    told = []
    caplog.set_level(logging.INFO, "phast")
    with jax.enable_x64(True):
        system = compose(KNOWN, Preprocessed(fitted.recording.trajectories()))
    composed = phast.fit(swings, system, method=FAST, dt=0.05, positions="theta:angle", progress=told.append)
    assert same(composed, fitted) and composed.model.evidence.inflation == fitted.model.evidence.inflation
    early = next(each.model for each in told if each.stage.startswith("judging"))
    assert isinstance(early, phast.Fitted) and early.model.evidence is not None
    assert [str(each) for each in told] == caplog.messages and told[-1].done == told[-1].total


# --- options ---------------------------------------------------------------------------------------------------------

OPTIONS = {
    "structure": phast.Structure(potential="cosine", port=np.eye(2)),
    "components": phast.Structure(potential=phast.Cosine(9.81), regime="known", damping="none"),
    "second order": phast.SecondOrder(context="0.5 s", noise=0.1),
    "noise of each coordinate": phast.SecondOrder(noise=(0.1, 0.2)),
    "gradient": phast.Gradient(settings=phast.Settings(epochs=3), bound=0.5),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_are_values(options):
    """They are cloned, compared, hashed and shown, as scikit-learn's are."""
    clone = dataclasses.replace(options)
    assert clone == options and hash(clone) == hash(options) and clone is not options
    assert repr(options).startswith(type(options).__name__ + "(")
    assert [other == options for other in OPTIONS.values()].count(True) == 1


WRONG = {
    "potential": (lambda: phast.Structure(potential="cos"), "did you mean 'cosine'"),
    "mass": (lambda: phast.Structure(mass="heavy"), "'heavy' is not a number"),
    "port": (lambda: phast.Structure(port="a,b"), "not a number"),
    "window": (lambda: phast.SecondOrder(window=1), "at least 2 samples"),
    "noise": (lambda: phast.SecondOrder(noise=0.0), "positive number"),
    "context": (lambda: phast.SecondOrder(context="soon"), "no duration"),
    "a step for a recording": (lambda: phast.fit(phast.read(np.eye(9)[:, :1], dt=0.1), dt=0.1), "leave dt"),
}


@pytest.mark.parametrize("call, said", WRONG.values(), ids=WRONG)
def test_wrong_options_are_refused_where_they_are_said(call, said):
    with pytest.raises(InputError, match=said):
        call()


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_show_themselves(fitted):
    assert len(repr(fitted.recording).splitlines()) == 3
    for result in (fitted, fitted.forecast(5), fitted.filter(), fitted.identify()):
        assert isinstance(result.to_frame(), pd.DataFrame) and "<table" in result._repr_html_()
        assert repr(result) and result.plot().axes
    plt.close("all")


def test_a_fit_has_a_score_and_survives_a_file(fitted, tmp_path):
    assert 0.9 < fitted.score(fitted.recording, "0.5 s") <= 1.0
    again = phast.load(fitted.save(tmp_path / "swing.phast"))
    assert same(again, fitted) and again.recording is None
    np.testing.assert_array_equal(again.forecast(5, fitted.recording).q, fitted.forecast(5).q)

"""Streams of states: the recording as a whole, one measurement at a time."""

import jax
import numpy as np
import pandas as pd
import pytest
from doubles import wrapped

import phast
from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep, Transition, leapfrog
from phast.errors import InputError
from phast.estimation.forecaster import Core, Phast
from phast.estimation.moving_horizon import ModelAware
from phast.estimation.observers import FiniteDifference, MassCanonicalizer

pytestmark = pytest.mark.usefixtures("float64", "quick_compile")

ANGLE, DT, LENGTH = Manifold.parse("theta:angle"), 0.05, 40
DEGREES = phast.Units(ANGLE, ("deg",))


def system(port=None) -> PortHamiltonian:
    return PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(0.4), port)


def fitted(*, driven: bool = False) -> phast.Fitted:
    """A second-order model of a pendulum that was recorded in degrees."""
    model = ModelAware(Core(system(((1.0,),) if driven else None), RungeKutta(Timestep(DT, 2))), ANGLE, DT, 6, 0.01)
    return phast.Fitted(model, DEGREES, ("torque",) if driven else ())


def trained() -> phast.Fitted:
    core = Core(system(), Transition(leapfrog(), phast.ExactDamping(), Timestep(DT)))
    return wrapped(Phast(core, FiniteDifference(ANGLE), MassCanonicalizer(), ANGLE, DT))


def recorded(*, driven: bool = False, uneven: bool = False, gap: bool = False, unit: str = "deg"):
    """Times, wrapped noisy angles and torques of a pendulum that turns over, as they stand in a file."""
    rng = np.random.default_rng(0)
    steps = DT * (rng.uniform(0.6, 1.4, LENGTH) if uneven else np.ones(LENGTH))
    steps[20] += 20 * DT * gap
    t = 3.0 + np.cumsum(steps)
    theta = 6.0 * (t - 3.0) + 0.5 * np.sin(3.0 * t) + 0.01 * rng.normal(size=LENGTH)
    wrapped_angle = np.angle(np.exp(1j * theta)) * (180.0 / np.pi if unit == "deg" else 1.0)
    return t, wrapped_angle[:, None], rng.normal(0.0, 2.0, (LENGTH, 1)) if driven else None


def recording(t, q, u, kind="theta:angle:deg") -> phast.Recording:
    columns = {"t": t, "theta": q[:, 0]} | ({} if u is None else {"torque": u[:, 0]})
    return phast.read(pd.DataFrame(columns), positions=kind, inputs=() if u is None else "torque")


def streamed(model: phast.Fitted, t, q, u) -> list:
    stream = model.stream()
    acted = [None] * len(t) if u is None else [None, *u[:-1]]
    return [stream.update(y, v, t=when) for when, y, v in zip(t, q, acted, strict=True)]


def assert_same(states, pieces):
    """Streamed states are those of the pieces of a recording, one after the other."""
    for name in ("t", "q", "p", "innovation"):
        whole = np.concatenate([getattr(piece, name) for piece in pieces])
        np.testing.assert_allclose([getattr(s, name) for s in states], whole, rtol=1e-8, atol=1e-8, err_msg=name)
    deviation = np.concatenate([np.sqrt(np.diagonal(piece.covariance, axis1=1, axis2=2)) for piece in pieces])
    np.testing.assert_allclose([s.deviation for s in states], deviation, rtol=1e-6)


@pytest.mark.parametrize(("driven", "uneven"), [(False, False), (True, True)], ids=["free, even", "driven, uneven"])
def test_a_stream_is_the_filter_along_the_recording(driven, uneven):
    """In degrees, wrapped, through several turns."""
    model, (t, q, u) = fitted(driven=driven), recorded(driven=driven, uneven=uneven)
    states = streamed(model, t, q, u)
    assert_same(states, model.filter(recording(t, q, u)).pieces)
    assert [s.restarted for s in states] == [True] + [False] * (LENGTH - 1)
    assert states[-1].q[0] > 360.0  # unwrapped, as in a recording


def test_a_stream_starts_again_after_a_gap():
    model, (t, q, u) = fitted(), recorded(gap=True)
    states, pieces = streamed(model, t, q, u), model.filter(recording(t, q, u)).pieces
    assert [len(piece.t) for piece in pieces] == [20, 20]
    assert [i for i, s in enumerate(states) if s.restarted] == [0, 20]
    assert_same(states, pieces)


def test_a_trained_model_streams_too():
    model, (t, q, u) = trained(), recorded(unit="rad")
    assert_same(streamed(model, t, q, u), model.filter(recording(t, q, u, "theta:angle")).pieces)


def test_without_times_steps_are_those_of_the_model():
    model, (t, q, u) = fitted(), recorded()
    stream = model.stream()
    free = [stream.update(y) for y in q]
    np.testing.assert_allclose([s.t for s in free], t - t[0], atol=1e-12)
    np.testing.assert_allclose([s.p for s in free], [s.p for s in streamed(model, t, q, u)], rtol=1e-12)


def test_no_sample_waits_for_a_compiler(caplog):
    stream, (t, q, _) = fitted().stream(), recorded(gap=True, uneven=True)
    with jax.log_compiles(True):
        for when, y in zip(t, q, strict=True):
            stream.update(y, t=when)
        assert not caplog.records
        jax.jit(lambda x: x + 1.0)(1.0)
    assert caplog.records


REFUSED = {
    "two positions": (lambda s: s.update([1.0, 2.0]), "position has 2 numbers"),
    "no position": (lambda s: s.update(np.zeros(0)), "position has 0 numbers"),
    "a word": (lambda s: s.update("north"), "no number"),
    "not a number": (lambda s: s.update(np.nan), "not finite"),
    "no input": (lambda s: s.update(1.0), "inputs have 0 numbers"),
    "two inputs": (lambda s: s.update(1.0, [0.0, 1.0]), "inputs have 2 numbers"),
    "time goes back": (lambda s: s.update(1.0, 0.0, t=-1.0), "time goes from 0 to -1"),
    "time stands still": (lambda s: s.update(1.0, 0.0, t=0.0), "time goes from 0 to 0"),
    "no time": (lambda s: s.update(1.0, 0.0, t=np.nan), "time goes from 0 to nan"),
}


@pytest.fixture(scope="module")
def stream():
    with jax.enable_x64(True):
        return fitted(driven=True).stream()


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_no_sample_is_refused_and_changes_nothing(stream, why):
    wrong, said = REFUSED[why]
    answers = []
    for broken in (False, True):
        stream.restart()
        stream.update(10.0, t=0.0)
        if broken:
            with pytest.raises(InputError, match=said):
                wrong(stream)
        answers.append(stream.update(12.0, 0.3, t=DT).p)
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize("factor", [0.1, 8.0])
def test_another_sampling_rate_is_refused(factor):
    stream = fitted().stream()
    with pytest.raises(InputError, match="resample it"):
        for i in range(30):
            stream.update(float(i), t=factor * DT * i)


def test_a_trained_model_needs_even_steps():
    stream = trained().stream()
    stream.update(0.0, t=0.0)
    with pytest.raises(InputError, match="make the steps even"):
        stream.update(0.1, t=1.2 * DT)


def test_noises_and_inputs_are_checked_before_the_first_sample():
    with pytest.raises(InputError, match="positive"):
        fitted().stream(noise=0.0)
    with pytest.raises(InputError, match="process noise"):
        fitted().stream(process_noise=0.1)
    with pytest.raises(InputError, match="2 inputs"):
        fitted().stream(inputs=("a", "b"))

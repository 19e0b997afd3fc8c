"""Forecasts of recordings: where they begin, what acts on them, what is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from doubles import wrapped

from phast.analysis.forecasts import Asked, foresee
from phast.api.forecast import Forecast
from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.data.reading import read
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.inputs import Held
from phast.estimation.moving_horizon import Evidence, ModelAware

DT, ANGLE = 0.05, Manifold.parse("theta:angle")


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def model():
    """The truth itself, as sure of its one coefficient as a fit would be."""
    system = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(Positive.starting_at(0.3)))
    evidence = Evidence(np.array([[1e4]]), np.array([[1e-4]]), 1e-3, 100)
    return ModelAware(Core(system, RungeKutta(Timestep(DT, 4))), ANGLE, DT, 10, (1e-3,), evidence)


def motion(model, t, u=None, start=(1.0, 0.0)):
    """Positions at the times t under inputs held between them."""
    u = np.zeros((len(t), 1)) if u is None else u

    @jax.jit
    def follow(start, steps, u):
        def one(x, held):
            fine = Core(model.core.system, RungeKutta(Timestep(1.0, 16)))
            x = jnp.concatenate(fine(x[:1], x[1:], Held(held[1], held[0])))
            return x, x[0]

        return jax.lax.scan(one, start, (steps, u))[1]

    return np.concatenate([start[:1], follow(jnp.array(start), np.diff(t), u[:-1])])


def recording(model, *, uneven=False, driven=False, count=60, runs=2):
    rng = np.random.default_rng(0)
    frames = []
    for run in range(runs):
        steps = DT * (rng.uniform(0.7, 1.4, count - 1) if uneven else np.ones(count - 1))
        t = np.concatenate([[0.0], np.cumsum(steps)])
        u = rng.normal(0.0, 2.0, (count, 1)) if driven else None
        frame = {"run": run, "t": t, "theta": motion(model, t, u, start=(1.0 + 0.2 * run, 0.0))}
        frames.append(pd.DataFrame(frame | ({"u1": u[:, 0]} if driven else {})))
    inputs = ("u1",) if driven else ()
    return read(pd.concat(frames), positions="theta:angle", trajectory="run", inputs=inputs)


def test_within_a_recording_the_truth_foretells_what_was_measured(model):
    for uneven, driven in ((False, False), (True, True)):
        data = recording(model, uneven=uneven, driven=driven)
        for origin, count in (("start", 2), ("everywhere", 8)):
            seen = foresee(model, data, Asked(origin, None, 20))
            numbers = seen.summary()
            assert numbers["trajectories"] == count == len(seen.labels) and numbers["steps_compared"] == 20
            assert numbers["rms"] < 1e-5 < 0.1 < numbers["rms_persistence"]
            assert numbers["within_one_deviation"] == 1.0
            lines = repr(Forecast.of(seen, data.units, single=False)).splitlines()
            assert [line.split()[0] for line in lines] == [str(count), "mean", "rms", "measured"]


def test_from_the_end_there_is_nothing_to_compare_with(model):
    data = recording(model)
    seen = foresee(model, data, Asked("end", None, 15))
    assert seen.summary()["steps_compared"] == 0
    np.testing.assert_allclose(seen.contexts[0].after, DT * np.arange(60, 75))
    whole = wrapped(model).forecast(15, data)
    np.testing.assert_array_equal(seen.q, whole.q)
    assert repr(whole) == "2 forecasts of theta [rad], 15 steps"
    assert (np.diff(seen.deviation[:, :, 0].mean(axis=0)) > -1e-3).all()


def test_a_driven_system_asks_for_what_comes(model):
    data = recording(model, driven=True)
    with pytest.raises(InputError, match="--future FILE"):
        foresee(model, data, Asked("end", None, 5))
    held = foresee(model, data, Asked("end", None, 5, hold=True))
    last = np.tile(data.pieces[0].u[-1], (5, 1))
    given = foresee(model, data, Asked("end", None, 5, coming=np.stack([last, last])))
    np.testing.assert_allclose(held.q[0], given.q[0], atol=1e-12)
    fitted = wrapped(model, ("u1",))
    np.testing.assert_allclose(fitted.forecast(5, data, inputs=last).q[0], held.q[0], atol=1e-12)
    with pytest.raises(InputError, match=r"inputs have shape \(3, 1\): .* an array \(5, 1\)"):
        fitted.forecast(5, data, inputs=last[:3])
    for start in ("start", "everywhere"):
        with pytest.raises(InputError, match="uses the measured inputs"):
            fitted.forecast(5, data, inputs=last, start=start)


def test_what_does_not_fit_is_said(model):
    data = recording(model)
    with pytest.raises(InputError, match="shorter than the context of 80"):
        foresee(model, data, Asked("start", 80, 5))
    with pytest.raises(InputError, match="lower --horizon"):
        foresee(model, data, Asked("everywhere", None, 100))
    with pytest.raises(InputError, match="ends 50 samples after the context"):
        foresee(model, recording(model, uneven=True), Asked("start", None, 51))
    other = read(pd.DataFrame({"t": DT * np.arange(20), "x": np.sin(np.arange(20.0))}))
    with pytest.raises(
        InputError, match=r"has the coordinates x, .* name the model's with positions=… \(--positions\), or rename"
    ):
        foresee(model, other, Asked())


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".npz"])
def test_forecasts_and_states_are_files_that_can_be_read_again(model, tmp_path, suffix):
    data = recording(model)
    seen = foresee(model, data, Asked("end", None, 9))
    future = wrapped(model).forecast(9, data)
    future.save(tmp_path / f"next{suffix}")
    again = read(tmp_path / f"next{suffix}", positions="theta:angle")
    np.testing.assert_allclose(again.pieces[0].t, seen.contexts[0].after, atol=1e-9)
    with pytest.raises(InputError, match=r"\.csv, \.parquet or \.npz"):
        future.save(tmp_path / "next.txt")
    wrapped(model).filter(data).save(tmp_path / f"states{suffix}")
    np.testing.assert_allclose(again.pieces[0].q, seen.q[0], atol=1e-12)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"next{suffix}", f"states{suffix}"]

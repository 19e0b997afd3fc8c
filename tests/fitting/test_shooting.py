"""Shooting over windows: what is left out is counted, and a coefficient that is stuck at zero is raised."""

import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

from phast.analysis.identifiability import report
from phast.components.damping import ConstantDamping, Friction
from phast.components.mass import ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import Cosine
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import Evidence, ModelAware
from phast.fitting.checkpoint import load, save
from phast.fitting.coefficients import _NEAR_ZERO
from phast.fitting.shooting import Identified, shoot

DAMPED, NOISE = system("pendulum-damped"), 0.01
STEP = RungeKutta(Timestep(DAMPED.dt, 2))

pytestmark = pytest.mark.usefixtures("float64")


def cut(length: int) -> Trajectories:
    """Noisy swings in windows of this length."""
    data = simulate(DAMPED, 20, length=80, seed=1)
    return Trajectories(data.q, data.dt, data.manifold).with_noise(NOISE, seed=0).windows(length, length)


def fitted(windows: Trajectories, drag: Positive) -> Identified:
    start = PortHamiltonian(Cosine(Positive.starting_at(9.8, unit=10.0)), ConstantMass(1.0), Friction(drag))
    return shoot(Core(start, STEP), windows, noise=NOISE, smooth=False)


def test_windows_that_no_state_explains_are_counted():
    """Three of the forty are no motion of any pendulum."""
    windows = cut(20).subset(slice(0, 40))
    q = windows.q.copy()
    q[[3, 17, 31]] = np.random.default_rng(0).uniform(-3.0, 3.0, (3, 20, 1))
    found = fitted(Trajectories(q, windows.dt, windows.manifold), Positive.starting_at(0.4))
    assert (found.evidence.windows, found.evidence.windows_left_out) == (40, 3)
    assert found.evidence.count == 37 * 20 and found.evidence.rms == pytest.approx(NOISE, rel=0.1)
    assert report(found).remarks == [
        "3 of 40 windows were left out of the fit: no state near the first guess explains them"
    ]


def test_friction_that_starts_at_its_bound_is_found_all_the_same():
    """The trained number has next to no slope there, and the data ask for 0.5."""
    found = fitted(cut(40), Positive(jnp.array(_NEAR_ZERO), 0.3))
    drag = report(found).coefficients[1]
    assert drag.identifiable and abs(drag.value - 0.5) < 4 * drag.deviation < 0.1
    assert found.evidence.windows_left_out < found.evidence.windows // 4


def test_evidence_of_older_files_counts_no_windows(tmp_path):
    evidence = Evidence(np.eye(1), np.eye(1), NOISE, 800, windows=40, windows_left_out=3)
    physics = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(Positive.starting_at(0.5)))
    path = save(ModelAware(Core(physics, STEP), DAMPED.manifold, DAMPED.dt, evidence=evidence), tmp_path / "now.phast")
    again = load(path).evidence
    assert (again.windows, again.windows_left_out) == (40, 3)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(entries["header.json"])
    for name in ("windows", "windows_left_out"):
        del header["model"]["fields"]["evidence"]["fields"][name]
    with zipfile.ZipFile(tmp_path / "before.phast", "w") as archive:
        for name, content in (entries | {"header.json": json.dumps(header)}).items():
            archive.writestr(name, content)
    before = load(tmp_path / "before.phast").evidence
    assert (before.windows, before.windows_left_out, before.count) == (0, 0, 800)

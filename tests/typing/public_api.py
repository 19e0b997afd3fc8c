"""Correct uses of the public names, and the types that a type checker must give them; checked by `make lint`."""

from pathlib import Path
from typing import assert_type

import numpy as np
import pandas as pd

import phast
from phast.data.manifold import Manifold
from phast.dynamics.systems import System

recording = phast.read("swing.csv", time="t", positions="q:angle:deg", inputs="u1")
assert_type(recording, phast.Recording)
assert_type(recording.dt, float)
assert_type(recording.manifold, Manifold)
assert_type(recording.between(0.0, 20.0), phast.Recording)
assert_type(phast.read(np.zeros((100, 1)), dt=0.01), phast.Recording)

assert_type(phast.system("pendulum-windy"), System)
simulated = phast.simulate(phast.system("pendulum-windy"), 200)
assert_type(simulated, phast.Trajectories)
assert_type(len(simulated), int)

composed = phast.PortHamiltonian(phast.Cosine(9.81), phast.ConstantMass(1.0), phast.ConstantDamping(0.3))
assert_type(composed, phast.PortHamiltonian)
assert_type(composed.separable, bool)

fitted = phast.fit(
    recording, phast.Structure(potential="cosine", damping="viscous"), method=phast.SecondOrder(context="0.5 s")
)
assert_type(fitted, phast.Fitted)
assert_type(phast.fit(np.zeros((100, 1)), composed, dt=0.01), phast.Fitted)
assert_type(phast.fit(recording, method=phast.Gradient(bound="validated")), phast.Fitted)
assert_type(phast.load("swing.phast"), phast.Fitted)

future = fitted.forecast("2 s")
assert_type(future, phast.Forecast)
assert_type(fitted.forecast(30, recording, start="everywhere"), phast.Forecast)
assert_type(fitted.filter(recording, noise=0.01), phast.States)
assert_type(fitted.stream(), phast.StateStream)
assert_type(fitted.stream().update([0.1], t=0.0).p, np.ndarray)
assert_type(fitted.identify(), phast.Identification)
assert_type(fitted.score(recording), float)
assert_type(fitted.save("swing.phast"), Path)
assert_type(fitted.report("swing.html"), Path)
for table in (future.to_frame(), fitted.to_frame(), fitted.filter().to_frame(), fitted.identify().to_frame()):
    assert_type(table, pd.DataFrame)

controlled = fitted.control({"q": 45.0}, bandwidth=6.0, limits=[2.0], start={"q": 0.0})
assert_type(controlled, phast.Controlled)
assert_type(controlled.outcome.settled, float)
assert_type(controlled.export("rig.c"), Path)

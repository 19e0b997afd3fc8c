"""Correct uses of the public names, and the types that a type checker must give them; checked by `make lint`."""

from typing import assert_type

import numpy as np

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

"""A recording, a structure and a method in; a fitted model out.

In: trajectories, what to look for (:mod:`~phast.fitting.structure`) and how (second order, or gradient descent).
Out: a forecaster with the evidence of its fit, and how far its forecasts may be off.
The two methods share preprocessing, coefficients and checkpoints.
"""

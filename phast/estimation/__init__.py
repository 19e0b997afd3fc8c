"""Positions in; states with their covariance out, and what follows from a state.

In: positions q_0 … q_t and known inputs.
Out: velocities (finite differences, a convolutional observer), states (the moving horizon, a filter), forecasts.
Momenta are never measured: everything here infers them.
"""

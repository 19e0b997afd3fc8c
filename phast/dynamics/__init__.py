"""Components in; vector fields, time steps and simulated ground truth out.

In: a potential, a mass, a damping and a port.
Out: x' = (J - R)∇H + Gu, the integrators that keep its structure, and the systems that can be simulated.
A simulator and a learned model are the same class with other components.
"""

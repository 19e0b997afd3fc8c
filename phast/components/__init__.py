"""The parts of a port-Hamiltonian system: V(q), M(q), D(q, v) and the coefficients in them.

In: given numbers, or coefficients to be learned.
Out: modules with one contract each: a potential has an energy, a mass and a damping are linear operators.
A class here is an interface or a leaf.
"""

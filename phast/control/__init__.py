"""Models and targets in; controllers and closed loops out.

In: a port-Hamiltonian system, given or learned, a target, and noisy positions one sample at a time.
Out: the input to apply, and what the true plant does under it.
Momenta stay unmeasured: a controller reads positions alone, unless it is told the true state for comparison.
"""

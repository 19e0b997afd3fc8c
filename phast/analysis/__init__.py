"""A fitted model in; its physics and its forecasts out.

In: a model, the evidence of its fit, and a recording to look at.
Out: coefficients with uncertainties, what is not identifiable, where the energy went, forecasts with their errors.
"""

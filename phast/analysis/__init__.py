"""A fitted model in; what it says out.

In: a model, the evidence of its fit, and a recording to look at.
Out: coefficients with uncertainties, what no data can tell, where the energy went, forecasts beside measurements.
"""

"""Results in; text, figures and pages out.

In: coefficients, forecasts, energies.
Out: tables for a terminal, figures by matplotlib, one HTML page that needs no network.
"""

"""What a user calls: fit a recording, and ask the fitted model.

In: a recording, a structure, a method.
Out: :class:`~phast.api.fitted.Fitted`, whose methods forecast, identify, filter, report and save; their results are
small frozen objects that print, plot and become frames. Everything here is in the units of the user's files.
"""

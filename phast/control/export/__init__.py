"""Models as code that runs without Python.

In: a fitted model, and a controller where one is wanted.
Out: one C99 file with its header, or the time step as ONNX. For C a JAX function is traced and each of its equations
written: ``program`` holds statements, ``lowering`` walks through jaxprs, the rules for primitives are in
``elementwise``, ``arrays``, ``indexing``, ``control_flow`` and ``linear_algebra``; ``c_model`` puts a model together.
"""

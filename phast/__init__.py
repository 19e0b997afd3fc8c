"""PHAST: port-Hamiltonian models of physical systems, learned from positions alone.

The public names are listed in ``__init__.pyi``, which type checkers read as it stands. A name is imported when it is
first used, so that ``import phast`` takes milliseconds.
"""

import sys

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str):
    if name not in __all__:  # with its name, so that a traceback suggests the nearest one
        raise AttributeError(f"module 'phast' has no attribute '{name}'", name=name, obj=sys.modules[__name__])
    return _load(name)

"""The study: everything that exists only to reproduce the paper and to judge it.

In: named systems, models, presets and seeds.
Out: records in ``results/``, and from them the paper's tables and figures, beside other tools.
Nothing in ``phast`` imports this package; its commands are ``phast paper …``. A module loads when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

"""Progress of a fit, for a callback and the logger ``phast``."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from phast.estimation.forecaster import AbstractIdentifiable

_log = logging.getLogger("phast")


@dataclasses.dataclass(frozen=True)
class Progress:
    """Where a fit stands: ``done`` of ``total`` steps, and what comes next.

    ``model`` can be used already, where there is one (a :class:`phast.Fitted` in the callback of
    :func:`phast.fit`): what is left judges its forecasts. ``loss`` is that of the last epoch of a training.
    """

    stage: str
    done: int
    total: int
    model: Any = None
    loss: float | None = None

    def __str__(self) -> str:
        loss = "" if self.loss is None else f", loss {self.loss:.3e}"
        return f"{self.stage} ({self.done}/{self.total}{loss})"


Callback = Callable[[Progress], None]


def logged(callback: Callback | None, wrap: Callable[[AbstractIdentifiable], Any]) -> Callback:
    """``callback`` that also writes to the log, and gets models wrapped by ``wrap``."""

    def tell(progress: Progress) -> None:
        _log.info("%s", progress)
        if callback is not None:
            usable = None if progress.model is None else wrap(progress.model)
            callback(dataclasses.replace(progress, model=usable))

    return tell

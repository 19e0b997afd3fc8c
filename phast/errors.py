"""What can go wrong: bad input, which a user can correct, and fits and forecasts that fail."""

import enum


class InputError(ValueError):
    """Bad input: the message is one line that says what is wrong and what to do. The command line exits with 2."""


class Reason(enum.Enum):
    """Why a fit or a forecast failed, and what to try."""

    DIVERGED = "the fit diverged: check the units and dt, or give a potential and a damping law"
    UNEXPLAINED = "no window of the data follows from the model: check the units and dt, or choose another structure"
    TRAINING_DIVERGED = "training diverged: lower the learning rate"
    UNSTABLE = "the forecast left the range of floating point numbers: the model is unstable here"


class FitError(ArithmeticError):
    """A fit or a forecast that failed on valid input, for a ``reason``. The command line exits with 1."""

    def __init__(self, reason: Reason, detail: str = ""):
        super().__init__(detail or reason.value)
        self.reason = reason


def counted(count: int, noun: str) -> str:
    """``1 forecast``, ``2 forecasts``: for messages."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"

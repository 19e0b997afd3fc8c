"""The names of the simulators, which a command checks before anything heavy is loaded."""

import difflib

from phast.errors import InputError

SYSTEM_NAMES = (
    "pendulum-conservative",
    "pendulum-damped",
    "pendulum-windy",
    "cartpole-windy",
    "oscillator-conservative",
    "oscillator-damped",
    "double-pendulum-conservative",
    "double-pendulum-damped",
    "rlc",
    "lennard-jones-3",
    "heat-exchange",
    "n-body-3",
    "predator-prey",
    "cartpole-windy-rail",
    "double-pendulum-windy",
    "spring-mass",
    "pendulum-unknown-mass",
    "robot-arm",
)


def check_system(name: str) -> str:
    """Refuse a name that is no simulator's."""
    if name in SYSTEM_NAMES:
        return name
    near = difflib.get_close_matches(name, SYSTEM_NAMES, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise InputError(f"unknown system '{name}': {hint}`phast systems` lists all")

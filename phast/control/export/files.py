"""Exported files, each whole or not at all."""

import os
from pathlib import Path

from phast.control.export.c_model import ModelWriter
from phast.control.export.names import name_in_c
from phast.control.shaping import EnergyCasimir
from phast.data.files import check_target, write_atomically
from phast.data.units import Units
from phast.errors import InputError
from phast.estimation.forecaster import AbstractFilter, AbstractIdentifiable, Core, ExtendedKalmanFilter
from phast.estimation.moving_horizon import ModelAware


def core_of(model: AbstractIdentifiable) -> Core:
    """The time step of a model."""
    core = getattr(model, "core", None)
    if not isinstance(core, Core):
        raise InputError(f"a {type(model).__name__} has no time step of states (q, p) to export")
    return core


def filter_of(model: AbstractIdentifiable) -> AbstractFilter:
    """What estimates its states, one sample at a time."""
    if isinstance(model, ModelAware):
        return model.state_filter()
    return ExtendedKalmanFilter(core_of(model), model.manifold, model.dt)


def write_c(
    model: AbstractIdentifiable,
    units: Units,
    inputs: tuple[str, ...],
    path: str | os.PathLike,
    *,
    name: str | None = None,
    single: bool = False,
    controller: EnergyCasimir | None = None,
    limits: tuple[float, ...] | None = None,
) -> tuple[Path, Path]:
    """Write the C file and, beside it, its header, and return both paths.

    ``name`` begins every name in C; it is that of the file if left out. The header is called ``name``.h.
    """
    check_target(path, (".c",))
    path = Path(path)
    writer = ModelWriter(core_of(model), units, inputs, model.dt, name_in_c(path, name), single=single)
    writer.add_step()
    writer.add_filter(filter_of(model))
    if controller is not None:
        writer.add_controller(controller, limits)
    header = path.with_suffix(".h")
    found = writer.texts(header.name)
    write_atomically(header, found.header.encode())
    return write_atomically(path, found.source.encode()), header

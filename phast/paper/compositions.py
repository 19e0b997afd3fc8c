"""What each named model of the study takes as given and what it learns, for a second-order fit of a simulated
system."""

from collections.abc import Callable

from phast.components.damping import (
    WindyDamping,
)
from phast.components.mass import AbstractMass
from phast.components.parameter import parameter_count
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.dynamics.systems import LotkaVolterra, System
from phast.errors import InputError
from phast.fitting.free_fields import consumer_resource, partial_system, unknown_system
from phast.fitting.preprocess import WINDOW
from phast.fitting.second_order import SecondOrder
from phast.paper.models import forgotten, row_of, true_damping


def _known(system: System, data: Trajectories) -> AbstractEnergetic:
    """The template's scalars and every damping coefficient, with the true M(q)."""
    if isinstance(system.dynamics, LotkaVolterra):
        return consumer_resource(data, "known")
    return PortHamiltonian(row_of(system).template(system), _mass(system), forgotten(true_damping(system)))


def _partial(system: System, data: Trajectories) -> AbstractEnergetic:
    """A spline residual beside the template; a free D(q) on windy systems, the law's coefficients elsewhere."""
    if isinstance(system.dynamics, LotkaVolterra):
        return consumer_resource(data, "partial")
    law = true_damping(system)
    free = isinstance(law, WindyDamping)
    template, law = row_of(system).template(system), None if free else forgotten(law)
    return partial_system(data, template, _mass(system), law, pairs=system.pairs)


def _unknown(system: System, data: Trajectories) -> AbstractEnergetic:
    if isinstance(system.dynamics, LotkaVolterra):
        return consumer_resource(data)
    return unknown_system(data, _mass(system), pairs=system.pairs)


def _mass(system: System) -> AbstractMass:
    """The system's own M(q), or the one to learn where that is the question."""
    mass = row_of(system).mass(system)
    if parameter_count(mass) or not isinstance(system.dynamics, PortHamiltonian):
        return mass
    return system.dynamics.mass


SHARP = SecondOrder(window=WINDOW)  # that of the records, whatever the motion

COMPOSITIONS: dict[str, Callable[[System, Trajectories], AbstractEnergetic]] = {
    "phast-known": _known,
    "phast-partial": _partial,
    "phast-unknown": _unknown,
}


def composition(model_name: str) -> Callable[[System, Trajectories], AbstractEnergetic]:
    """How the sharp preset composes the model of this name."""
    if model_name not in COMPOSITIONS:
        raise InputError(f"the sharp preset fits {', '.join(COMPOSITIONS)}, not '{model_name}'")
    return COMPOSITIONS[model_name]

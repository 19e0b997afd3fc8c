"""Free fields over the range of the data: splines and series that stand for an unknown V(q) or D(q).

As free as networks, but linear in local coefficients, so that a least-squares fit finds the best of them and says how
sure it is.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import (
    AbstractDamping,
    ConstantDamping,
    ProportionalDamping,
    PSDDamping,
    SplineDamping,
    SumDamping,
)
from phast.components.mass import AbstractMass, ConstantMass
from phast.components.parameter import Positive
from phast.components.potential import (
    AbstractPotential,
    Logarithmic,
    PairPotential,
    Prey,
    Scaled,
    SeriesPotential,
    SplinePotential,
    Sum,
    series_degree,
)
from phast.components.spline import Grid
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import ConsumerResource, PortHamiltonian
from phast.errors import InputError

_ALONG = {1: (32, 64), 2: (24, 40)}  # nodes of potential and damping along each coordinate
_ACROSS = (12, 6)  # and over each pair of them, where there are two
_PAIR_NODES = 64  # along each distance between points
_TERMS = 300  # at most, in the series that stands for a potential of more coordinates


def partial_system(
    data: Trajectories,
    template: AbstractPotential,
    mass: AbstractMass,
    damping: AbstractDamping | None = None,
    *,
    pairs: bool = False,
) -> PortHamiltonian:
    """PARTIAL: the template plus a free residual; a free D(q) unless a damping law is given."""
    potential = Sum((template, *free_potential(data, pairs)))
    return PortHamiltonian(potential, mass, free_damping(data) if damping is None else damping)


def unknown_system(
    data: Trajectories,
    mass: AbstractMass = ConstantMass(1.0),  # noqa: B008 (immutable)
    damping: AbstractDamping | None = None,
    *,
    pairs: bool = False,
) -> PortHamiltonian:
    """UNKNOWN: V and D are free. M is the anchor of the scale that V, M and D share, and not learned."""
    return PortHamiltonian(Sum(free_potential(data, pairs)), mass, free_damping(data) if damping is None else damping)


def consumer_resource(data: Trajectories, regime: str = "unknown") -> ConsumerResource:
    """Positive numbers on which something unseen lives.

    KNOWN: Lotka and Volterra's equations with a carrying capacity, four coefficients to be found; PARTIAL: beside their
    V a residual of splines over ln q; UNKNOWN: V and D(q) are such splines.
    """
    if not (data.q > 0.0).all():
        raise InputError("what is consumed is counted in positive numbers, but some of these are not: leave them out")
    logs = dataclasses.replace(data, q=np.log(data.q), p=None, v=None)
    law = Prey(Positive.uninformed(), Positive.uninformed(), floor=0.1 * float(data.q.min()))
    free = tuple(Logarithmic(part) for part in free_potential(logs, False))
    potential = {"known": (law,), "partial": (law, *free), "unknown": free}[regime]
    damping = free_damping(logs) if regime == "unknown" else ConstantDamping(Positive.uninformed())
    return ConsumerResource(Sum(potential), ProportionalDamping(damping), Positive.uninformed())


def free_potential(data: Trajectories, pairs: bool, *, unit: float = 1.0) -> tuple[AbstractPotential, ...]:
    """Cubic splines along each coordinate and over a pair; a series of products where there are more.

    With ``pairs`` the coordinates are points in the plane, and a spline of every distance takes their place. ``unit``
    is the energy that coefficients are counted in.
    """
    parts = _free_parts(data, pairs)
    return parts if unit == 1.0 else tuple(Scaled(part, unit) for part in parts)


def _free_parts(data: Trajectories, pairs: bool) -> tuple[AbstractPotential, ...]:
    n, q = data.manifold.size, jnp.asarray(data.q.reshape(-1, data.manifold.size))
    if pairs:
        if n < 4 or n % 2 or any(data.manifold.circles):
            raise InputError(f"pairs of points in the plane need coordinates x1, y1, x2, y2, …, not {n} of them")
        return (PairPotential.flat(q, _PAIR_NODES),)
    if n not in _ALONG:
        return (SeriesPotential.flat(data.manifold, q, series_degree(data.manifold.circles, _TERMS)),)
    return tuple(SplinePotential.flat(grid) for grid in _grids(data.manifold, q, _ALONG[n][0], _ACROSS[0]))


def free_damping(data: Trajectories, *, unit: float = 1.0) -> AbstractDamping:
    """Hats along each coordinate and over a pair; a constant matrix where there are more."""
    n, q = data.manifold.size, jnp.asarray(data.q.reshape(-1, data.manifold.size))
    if n not in _ALONG:
        return PSDDamping.uninformed(n, unit)
    parts = tuple(SplineDamping.uninformed(grid, unit) for grid in _grids(data.manifold, q, _ALONG[n][1], _ACROSS[1]))
    return parts[0] if n == 1 else SumDamping(parts)


def _grids(manifold: Manifold, q: Float[Array, "samples n"], along: int, across: int) -> list[Grid]:
    if manifold.size == 1:
        return [Grid.over(manifold, q, along)]
    lines = [Grid.over(manifold, q, along, (i,)) for i in range(manifold.size)]
    return [*lines, Grid.over(manifold, q, across)]

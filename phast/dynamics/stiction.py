"""Coulomb friction that holds, resolved exactly within a time step.

A joint with the velocity w = B v feels the impulse -λ, with |λ| at most its limit c times the step. Of all these
impulses friction gives those that leave the least kinetic energy: a joint that they can stop is stopped, all others are
slowed by c. So a step is

1. the friction of half a step; a joint is *stuck* where it did not take all that there was,
2. the conservative core, in which stuck joints whose load over the step is below the limit are held: an inertia without
   end resists their motion, and takes up no energy since they are at rest,
3. the friction that is left of the step.

Kinetic energy falls in 1 and 3, and 2 is as good as the core. With a core that keeps H, energy never rises.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from phast.components.damping import AbstractDamping, ConstantDamping, Stiction, SumDamping
from phast.components.lowrank import AbstractOperator, Dense, DiagonalPlusLowRank
from phast.components.mass import AbstractConstantMass, AbstractMass
from phast.components.parameter import value_of
from phast.dynamics.hamiltonian import PortHamiltonian

_SWEEPS = 30  # of Gauss and Seidel's method, over a few joints
_GREAT = {jnp.dtype("float64"): 1e10, jnp.dtype("float32"): 1e4}  # inertia of what is held, times its own
_ENDLESS = 1e30  # the same where nothing else feels it
_NONE = 1e-14  # of the friction that there is


class Joints(NamedTuple):
    """What holds: B, one row each, and the limits c."""

    rows: Float[Array, "m n"]
    limits: Float[Array, " m"]
    own: bool  # whether each coordinate is a joint


def parted(damping: AbstractDamping) -> tuple[AbstractDamping, tuple[Stiction, ...]]:
    """A damping without what holds, and what holds."""
    if isinstance(damping, Stiction):
        return ConstantDamping(0.0), (damping,)
    if not isinstance(damping, SumDamping):
        return damping, ()
    parts = [parted(part) for part in damping.parts]
    holding = tuple(each for _, found in parts for each in found)
    others = tuple(part for part, found in parts if not (found and isinstance(part, ConstantDamping)))
    if not holding:
        return damping, ()
    return SumDamping(others) if others else ConstantDamping(0.0), holding


def joints_of(holding: tuple[Stiction, ...], n: int) -> Joints:
    """All joints that hold."""
    rows = [jnp.eye(n) if each.joints is None else jnp.asarray(each.joints, dtype=float) for each in holding]
    limits = [jnp.broadcast_to(value_of(each.limit), (len(b),)) for each, b in zip(holding, rows, strict=True)]
    own = len(holding) == 1 and holding[0].joints is None
    return Joints(jnp.concatenate(rows), jnp.concatenate(limits), own)


def least_energy(
    system: PortHamiltonian, joints: Joints, q: Float[Array, " n"], p: Float[Array, " n"], most: Float[Array, " m"]
) -> tuple[Float[Array, " n"], Float[Array, " m"]]:
    """p - Bᵀλ with the least kinetic energy for |λ| ≤ ``most``, and λ.

    Coordinate by coordinate, from λ = 0: each step lowers the energy, whether or not the last one is reached.
    """
    mass = system.mass.operator(q)
    if joints.own and _is_diagonal(mass):  # nothing that one joint feels of another
        stopped = jnp.clip(p, -most, most)
        return p - stopped, stopped
    carried = jax.vmap(mass.solve)(joints.rows)  # M⁻¹ Bᵀ, a column in each row
    effect = joints.rows @ carried.T
    own, speeds = jnp.diag(effect), joints.rows @ mass.solve(p)

    def sweep(_, found):
        for i in range(len(most)):
            wanted = found[i] + (speeds[i] - effect[i] @ found) / own[i]
            found = found.at[i].set(jnp.clip(wanted, -most[i], most[i]))
        return found

    found = jax.lax.fori_loop(0, _SWEEPS, sweep, jnp.zeros_like(most))
    return p - joints.rows.T @ found, found


def _is_diagonal(operator: AbstractOperator) -> bool:
    return isinstance(operator, DiagonalPlusLowRank) and operator.factor is None


def held_joints(
    system: PortHamiltonian, joints: Joints, q, p, force, dt, stuck: Bool[Array, " m"]
) -> Bool[Array, " m"]:
    """The stuck joints whose load over the step is within the limit."""
    load = force - system.gradient(q, p)[0]
    most = jnp.where(stuck, dt * joints.limits, 0.0)
    needed = least_energy(system, joints, q, p + dt * load, most)[1]
    return stuck & (jnp.abs(needed) < most)


def sticking_step(step_damping, core, system: PortHamiltonian, holding: tuple[Stiction, ...], q, p, force, dt):
    """One step of Strang splitting with friction that holds: ``step_damping(p, q, h)`` is that of the other damping."""
    joints = joints_of(holding, q.shape[0])
    p = step_damping(q, p, 0.5 * dt)
    half = 0.5 * dt * joints.limits
    p, used = least_energy(system, joints, q, p, half)
    stuck = jnp.abs(used) < half * (1.0 - _NONE)
    held = held_joints(system, joints, q, p, force, dt, stuck)
    q, p = _held_step(core, system, joints, q, p, force, dt, held)
    p, _ = least_energy(system, joints, q, p, dt * joints.limits - jnp.abs(used))
    return q, step_damping(q, p, 0.5 * dt)


def _held_step(core, system: PortHamiltonian, joints: Joints, q, p, force, dt, held: Bool[Array, " m"]):
    """The core's step in which some joints do not move."""
    kind = _HeldConstant if isinstance(system.mass, AbstractConstantMass) else _Held
    inner = dataclasses.replace(system, mass=kind(system.mass, joints, held))
    moved, momentum = core.step(inner, q, p, force, dt)
    v = inner.velocity(moved, momentum)
    step, v = (_without(joints.rows, held, x) for x in (moved - q, v))
    return q + step, system.momentum(q + step, v)


def _without(rows: Float[Array, "m n"], held: Bool[Array, " m"], x: Float[Array, " n"]) -> Float[Array, " n"]:
    """x without its part along the rows that are held."""
    kept = jnp.where(held[:, None], rows, 0.0)
    along = kept @ kept.T + jnp.diag(jnp.where(held, 0.0, 1.0))
    return x - kept.T @ jnp.linalg.solve(along, kept @ x)


def _resisting(mass: AbstractMass, joints: Joints, held: Bool[Array, " m"], q: Float[Array, " n"]) -> AbstractOperator:
    """M(q) + κ Bᵀ diag(held) B."""
    own = mass.operator(q)
    if joints.own and _is_diagonal(own):
        return DiagonalPlusLowRank(jnp.where(held, _ENDLESS, own.diagonal_part()))
    great = _GREAT[jnp.dtype(q.dtype)] * jnp.max(own.diagonal_part())
    return Dense(own.dense() + great * (joints.rows.T * held) @ joints.rows)


class _Held(AbstractMass):
    inner: AbstractMass
    joints: Joints
    held: Bool[Array, " m"]

    def operator(self, q):
        return _resisting(self.inner, self.joints, self.held, q)


class _HeldConstant(AbstractConstantMass):
    inner: AbstractConstantMass
    joints: Joints
    held: Bool[Array, " m"]

    def operator(self, q):
        return _resisting(self.inner, self.joints, self.held, q)

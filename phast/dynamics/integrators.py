"""Time steps that keep the structure: Strang splitting of a conservative core between two half-steps of damping.

    Φ_dt = Φ_D^{dt/2} ∘ Φ_H^{dt} ∘ Φ_D^{dt/2}                                                     (Eq. 12, Algorithm 1)

Three choices compose a :class:`Transition`. The *core* Φ_H: an explicit splitting (a palindromic list of kick and drift
coefficients: leapfrog, or fourth order by triple jump), implicit midpoint for M(q), or Cayley–Neumann. The *damping
half-step* Φ_D: explicit as in the paper, implicit, or exact; the last two never raise the energy at any step size, and
the last is of second order also for friction. Friction that holds
(:class:`~phast.components.damping.Stiction`) is resolved in the step itself (:mod:`phast.dynamics.stiction`).
The *timestep*: given or learned, shared or one per substep. A constant input force G u joins the kicks of the core.

:class:`RungeKutta` is the other kind of transition: it keeps no structure, but at small steps it is the most accurate.
"""

import dataclasses
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

from phast.components.damping import Stiction, depends_on_velocity
from phast.components.lowrank import (
    AbstractOperator,
    DiagonalPlusLowRank,
    add_scaled,
    cholesky,
    exponential_of_negative,
    solve_lower,
)
from phast.components.parameter import Coefficient, value_of
from phast.components.potential import gradient
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.stiction import parted, sticking_step

State = tuple[Float[Array, " n"], Float[Array, " n"]]
Scalar = Float[Array, ""] | float


# --- conservative cores ----------------------------------------------------------------------------------------------


class AbstractCore(eqx.Module):
    """One step of q' = ∂H/∂p, p' = -∂H/∂q + f with a constant force f."""

    order: eqx.AbstractVar[int]
    needs_separable: eqx.AbstractVar[bool]

    @abstractmethod
    def step(self, system: PortHamiltonian, q, p, force: Float[Array, " n"] | float, dt: Scalar) -> State: ...


class Splitting(AbstractCore):
    """Kicks and drifts in turn: kick b_0, drift a_0, kick b_1, … with coefficients that read the same both ways."""

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]
    order: int
    needs_separable: bool = True

    def __check_init__(self):
        if len(self.kicks) != len(self.drifts) + 1:
            raise ValueError("a kick-drift-kick splitting has one kick more than it has drifts")

    def step(self, system, q, p, force, dt):
        mass = system.mass.operator(q)
        p = self._kick(system, q, p, force, self.kicks[0] * dt)
        for drift, kick in zip(self.drifts, self.kicks[1:], strict=True):
            q = q + drift * dt * mass.solve(p)
            p = self._kick(system, q, p, force, kick * dt)
        return q, p

    def _kick(self, system, q, p, force, h):
        return p + h * (force - gradient(system.potential, q))


def leapfrog() -> Splitting:
    """Störmer–Verlet, second order: the paper's core."""
    return Splitting(kicks=(0.5, 0.5), drifts=(1.0,), order=2)


def fourth_order() -> Splitting:
    """Yoshida's triple jump: three leapfrogs of lengths γ, 1 - 2γ, γ with γ = 1/(2 - 2^{1/3})."""
    outer = 1.0 / (2.0 - 2.0 ** (1.0 / 3.0))
    inner = 1.0 - 2.0 * outer
    between = 0.5 * (outer + inner)
    return Splitting(kicks=(0.5 * outer, between, between, 0.5 * outer), drifts=(outer, inner, outer), order=4)


class ImplicitMidpoint(AbstractCore):
    """x⁺ = x + dt·f((x + x⁺)/2): symplectic for any H, so also for M(q). Newton's method, implicitly differentiated."""

    tolerance: float = 1e-5
    max_iterations: int = 20
    order: int = 2
    needs_separable: bool = False

    def step(self, system, q, p, force, dt):
        x = jnp.concatenate([q, p])
        field = _conservative_field(system, force, q.shape[0])
        tolerance = max(self.tolerance**2, 1e-13) if x.dtype == jnp.float64 else self.tolerance

        def residual(increment, _):
            return increment - dt * field(x + 0.5 * increment)

        solution = optx.root_find(
            residual,
            optx.Newton(rtol=tolerance, atol=tolerance),
            dt * field(x),
            max_steps=self.max_iterations,
            throw=False,
        )
        return _split(x + solution.value)


class CayleyNeumann(AbstractCore):
    """The midpoint rule linearised at x: x⁺ = x + (I - ½dt A)⁻¹ dt f(x) with A = Df(x).

    For quadratic H that is the Cayley transform of ½dt A. The inverse is a Neumann series of ``terms`` Hessian-vector
    products, so nothing of size n × n is formed.
    """

    terms: int = 6
    order: int = 2
    needs_separable: bool = False

    def step(self, system, q, p, force, dt):
        x = jnp.concatenate([q, p])
        field = _conservative_field(system, force, q.shape[0])
        rate, jacobian_product = jax.linearize(field, x)
        term = total = dt * rate
        for _ in range(self.terms):
            term = 0.5 * dt * jacobian_product(term)
            total = total + term
        return _split(x + total)


class DiscreteGradient(AbstractCore):
    """x⁺ = x + dt J ∇̄H(x, x⁺) with Gonzalez' discrete gradient, for which ∇̄H·(x⁺ - x) = H(x⁺) - H(x).

    So H is kept to rounding, for any M(q) and any step size, where leapfrog keeps it to its order only; with
    :class:`ExactDamping` the discrete energy of an unforced rollout never rises. Newton's method solves for x⁺, to a
    tolerance relative to the increment. Where it does not get there (a step far too large for the forces),
    :meth:`_no_higher` takes away the energy in excess.
    """

    tolerance: float = 1e-6
    max_iterations: int = 30
    order: int = 2
    needs_separable: bool = False

    def step(self, system, q, p, force, dt):
        n = q.shape[0]
        x = jnp.concatenate([q, p])
        tolerance = max(self.tolerance**2, 1e-13) if x.dtype == jnp.float64 else self.tolerance
        start = dt * _conservative_field(system, force, n)(x)
        size = jnp.max(jnp.abs(start)) + jnp.finfo(x.dtype).tiny

        def residual(scaled, _):
            increment = size * scaled
            middle, missing = self._change(system, force, x, increment)
            mean = middle + missing / (jnp.dot(increment, increment) + jnp.finfo(x.dtype).tiny) * increment
            return scaled - dt / size * jnp.concatenate([mean[n:], -mean[:n]])

        newton = optx.Newton(rtol=tolerance, atol=tolerance)
        solution = optx.root_find(residual, newton, start / size, max_steps=self.max_iterations, throw=False)
        return self._no_higher(system, force, x, size * solution.value)

    def _change(self, system, force, x, increment) -> tuple[Float[Array, " twice_n"], Float[Array, ""]]:
        """∇H half-way, and what ∇H·increment misses there of H(x + increment) - H(x), accurate also near rest.

        With g = ∇H along the increment d, H(x + d) - H(x) = ∫ g(s)·d ds. Lobatto's five points give what is missing
        from the second differences of g about the middle, in which nothing of the size of H cancels. The difference of
        energies then corrects this quadrature, by no more than these second differences allow. They exceed its error,
        so that the correction is whole in a large step; near rest, where rounding exceeds H itself, it vanishes with
        them.
        """

        def energy(x):
            q, p = _split(x)
            return system.energy(q, p) - jnp.sum(force * q)

        def slope(s):
            dh_dq, v = system.gradient(*_split(x + s * increment))
            return jnp.concatenate([dh_dq - force, v])

        first, before, middle, after, last = jax.vmap(slope)(jnp.asarray(_LOBATTO, x.dtype))
        outer, inner = first - 2.0 * middle + last, before - 2.0 * middle + after
        missing = jnp.dot(outer / 20.0 + 49.0 / 180.0 * inner, increment)
        allowed = jnp.sum(jnp.abs(outer) + jnp.abs(inner)) * jnp.sum(jnp.abs(increment))
        direct = energy(x + increment) - energy(x) - jnp.dot(middle, increment)
        return middle, missing + jnp.clip(direct - missing, -allowed, allowed)

    def _no_higher(self, system, force, x, increment) -> State:
        """x + increment, slowed down until it has no more energy than x; where even rest has more, x turned round."""
        middle, missing = self._change(system, force, x, increment)
        excess = jnp.dot(middle, increment) + missing
        q, p = _split(x + increment)
        kinetic = 0.5 * jnp.dot(p, system.velocity(q, p))
        left = 1.0 - excess / jnp.where(kinetic > 0.0, kinetic, 1.0)
        slowed = p * jnp.where(excess > 0.0, jnp.sqrt(jnp.maximum(left, 0.0)), 1.0)
        reachable = (excess <= kinetic) & jnp.all(jnp.isfinite(increment))  # False also where either is not a number
        old_q, old_p = _split(x)
        return jnp.where(reachable, q, old_q), jnp.where(reachable, slowed, -old_p)


_LOBATTO = (0.0, 0.5 - 0.5 * (3.0 / 7.0) ** 0.5, 0.5, 0.5 + 0.5 * (3.0 / 7.0) ** 0.5, 1.0)


def _conservative_field(system: PortHamiltonian, force, n: int):
    def field(x):
        dh_dq, v = system.gradient(x[:n], x[n:])
        return jnp.concatenate([v, force - dh_dq])

    return field


def _split(x: Float[Array, " twice_n"]) -> State:
    n = x.shape[0] // 2
    return x[:n], x[n:]


# --- damping half-steps ----------------------------------------------------------------------------------------------


class AbstractDampingStep(eqx.Module):
    """p' = -D v over a time h with q held still."""

    @abstractmethod
    def step(self, system: PortHamiltonian, q, p, h: Scalar) -> Float[Array, " n"]: ...


class ExplicitDamping(AbstractDampingStep):
    """p⁺ = p - h D v, as in Algorithm 1. Raises the energy where h λ_max(D)/λ_min(M) > 2 (appendix A.2)."""

    def step(self, system, q, p, h):
        return p - h * system.dissipation(q, system.velocity(q, p))


class ImplicitDamping(AbstractDampingStep):
    """p⁺ = M (M + h D)⁻¹ p: backward Euler, one Woodbury solve. First order in h, never raises the energy."""

    def step(self, system, q, p, h):
        mass = system.mass.operator(q)
        damping = system.damping.operator(q, mass.solve(p))
        return mass.matvec(add_scaled(mass, h, damping).solve(p))


class ExactDamping(AbstractDampingStep):
    """p⁺ = exp(-h D M⁻¹) p: exact where D does not depend on v, and never raises the energy.

    Friction is taken at the velocity half-way, p_½ = exp(-½h D(v) M⁻¹) p: of second order, without a solve, and still
    a contraction, however stiff. So what slides comes to rest and stays there, where an explicit step would chatter.
    """

    def step(self, system, q, p, h):
        mass = system.mass.operator(q)
        damping = system.damping.operator(q, mass.solve(p))
        if depends_on_velocity(system.damping):
            damping = system.damping.operator(q, mass.solve(_decayed(mass, damping, p, 0.5 * h)))
        return _decayed(mass, damping, p, h)


def _decayed(mass: AbstractOperator, damping: AbstractOperator, p: Float[Array, " n"], h: Scalar) -> Float[Array, " n"]:
    """exp(-h D M⁻¹) p, elementwise where M and D are diagonal.

    Otherwise, with M = L Lᵀ, through the symmetric L⁻¹ D L⁻ᵀ and its eigenvalues, for small n: a contraction whatever
    h is.
    """
    if _is_diagonal(mass) and _is_diagonal(damping):
        return p * jnp.exp(-h * damping.diagonal / mass.diagonal)
    if p.shape[0] == 1:
        return p * jnp.exp(-h * damping.diagonal_part() / mass.diagonal_part())
    lower = cholesky(mass.dense())
    rate = solve_lower(lower, solve_lower(lower, damping.dense()).T)
    decay = exponential_of_negative(h * 0.5 * (rate + rate.T))
    return lower @ (decay @ solve_lower(lower, p))


def _is_diagonal(operator) -> bool:
    return isinstance(operator, DiagonalPlusLowRank) and operator.factor is None


# --- the transition --------------------------------------------------------------------------------------------------


class Timestep(eqx.Module):
    """How far one observed step reaches, in ``substeps`` pieces.

    A float is given and a learned scalar is shared, both cut into equal pieces; a learned vector of length
    ``substeps`` holds one duration per substep.
    """

    duration: Coefficient
    substeps: int = 1

    def __check_init__(self):
        shape = jnp.shape(value_of(self.duration))
        if shape not in ((), (self.substeps,)):
            raise ValueError(f"durations of shape {shape} for {self.substeps} substeps: give one, or one per substep")

    def pieces(self) -> list[Scalar]:
        duration = self.duration if isinstance(self.duration, float) else value_of(self.duration)
        if jnp.ndim(duration) == 1:
            return [duration[i] for i in range(self.substeps)]
        return [duration / self.substeps] * self.substeps


class AbstractTransition(eqx.Module):
    """Φ_dt: one observed step of a port-Hamiltonian system under an input that is held over it."""

    timestep: eqx.AbstractVar[Timestep]

    @abstractmethod
    def __call__(
        self, system: PortHamiltonian, q, p, u: Float[Array, " inputs"] | None = None, stretch: Scalar = 1.0
    ) -> State:
        """The state after ``stretch`` times the timestep: samples need not be evenly spaced."""


class RungeKutta(AbstractTransition):
    """The classical fourth-order method on the whole vector field, damping and input included.

    It keeps no structure, and stiff damping makes it explode; at small steps nothing forecasts better per evaluation.
    """

    timestep: Timestep

    def __call__(self, system, q, p, u=None, stretch=1.0):
        n = q.shape[0]

        def field(x):
            return jnp.concatenate(system.vector_field(x[:n], x[n:], u))

        def substep(x, dt):
            k1 = field(x)
            k2 = field(x + 0.5 * dt * k1)
            k3 = field(x + 0.5 * dt * k2)
            k4 = field(x + dt * k3)
            return x + dt / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4), None

        pieces = stretch * jnp.stack([jnp.asarray(piece, q.dtype) for piece in self.timestep.pieces()])
        return _split(jax.lax.scan(substep, jnp.concatenate([q, p]), pieces)[0])


class Transition(AbstractTransition):
    """Φ_dt by Strang splitting (Algorithm 1), L substeps."""

    core: AbstractCore
    damping: AbstractDampingStep
    timestep: Timestep

    def __call__(self, system, q, p, u=None, stretch=1.0):
        if self.core.needs_separable and not system.separable:
            raise TypeError(
                f"{type(self.core).__name__} needs a constant mass, but {type(system.mass).__name__} depends on q: "
                "use ImplicitMidpoint() or CayleyNeumann() as the core"
            )
        force = 0.0 if u is None else system.input_force(u)
        damping, holding = parted(system.damping)
        if holding:
            return self._sticking(dataclasses.replace(system, damping=damping), holding, q, p, force, stretch)
        for piece in self.timestep.pieces():
            dt = stretch * piece
            p = self.damping.step(system, q, p, 0.5 * dt)
            q, p = self.core.step(system, q, p, force, dt)
            p = self.damping.step(system, q, p, 0.5 * dt)
        return q, p

    def _sticking(self, system: PortHamiltonian, holding: tuple[Stiction, ...], q, p, force, stretch: Scalar) -> State:
        def substep(state, dt):
            step = lambda q, p, h: self.damping.step(system, q, p, h)  # noqa: E731
            return sticking_step(step, self.core, system, holding, *state, force, dt), None

        pieces = stretch * jnp.stack([jnp.asarray(piece, q.dtype) for piece in self.timestep.pieces()])
        return jax.lax.scan(substep, (q, p), pieces)[0]

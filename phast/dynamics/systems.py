"""Every simulator, declared once from the component classes (appendix B of the paper).

A :class:`System` is physics (V, M, D), coordinates, a sampling step and a distribution of initial states. The physics
is written here and nowhere else: a KNOWN model takes ``system.port_hamiltonian.potential`` as it stands, and a learned
damping is judged against ``system.port_hamiltonian.damping``. All constants are Python floats, so no system has a
trainable parameter.
"""

import math
from collections.abc import Callable
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.damping import AbstractDamping, ConstantDamping, Friction, WindyDamping
from phast.components.mass import AbstractMass, ArmMass, CartPoleMass, ConstantMass, DoublePendulumMass
from phast.components.potential import ArmGravity, Cosine, Gravity, HeatExchange, LennardJones, Quadratic
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import AbstractDynamics, PortHamiltonian
from phast.dynamics.names import check_system
from phast.errors import InputError

Regime = Literal["KNOWN", "PARTIAL", "UNKNOWN"]
Samples = Float[np.ndarray, "count n"]
Sampler = Callable[[np.random.Generator, int], Samples]
Initial = Callable[[np.random.Generator, int], tuple[Samples, Samples]]
VectorField = Callable[[Float[Array, " n"], Float[Array, " n"]], tuple[Float[Array, " n"], Float[Array, " n"]]]


class System(eqx.Module):
    """A simulator: what moves, how it is sampled in time, and where it starts.

    ``regime`` is what the paper's Table 1 assumes known. ``constant_mass`` is the paper's separable approximation: the
    diagonal of M(q) averaged over the configurations, and M itself where it is constant. ``pairs`` says that the
    coordinates are points in the plane that act on each other in pairs: geometry, which a model may know without
    knowing the law.
    """

    name: str
    title: str
    domain: str
    regime: Regime
    manifold: Manifold
    dynamics: AbstractDynamics
    dt: float
    initial: Initial
    constant_mass: ConstantMass
    benchmark: bool = False
    pairs: bool = False

    @property
    def port_hamiltonian(self) -> PortHamiltonian:
        """The true V, M and D, for systems that have them."""
        if isinstance(self.dynamics, PortHamiltonian):
            return self.dynamics
        raise TypeError(f"'{self.name}' has no known potential, mass or damping: only its vector field is given")


# --- dynamics without a known energy ---------------------------------------------------------------------------------


class LotkaVolterra(AbstractDynamics):
    """Prey q = n₁ and predator p = n₂ with a carrying capacity K and mortality μ:

    n₁' = α n₁ (1 - n₁/K) - β n₁ n₂ - μ n₁,   n₂' = δ n₁ n₂ - γ n₂ - μ n₂
    """

    growth: float = 1.0
    predation: float = 0.1
    decay: float = 0.4
    conversion: float = 0.1
    capacity: float = 100.0
    mortality: float = 0.01

    def vector_field(self, q, p, u=None):
        _no_input(u)
        dq = self.growth * q * (1.0 - q / self.capacity) - self.predation * q * p - self.mortality * q
        return dq, self.conversion * q * p - self.decay * p - self.mortality * p


class BlackBox(AbstractDynamics):
    """A user's own (q', p') = f(q, p), written with ``jax.numpy``."""

    function: VectorField

    def vector_field(self, q, p, u=None):
        _no_input(u)
        dq, dp = (jnp.asarray(rate, q.dtype) for rate in self.function(q, p))
        if dq.shape != q.shape or dp.shape != p.shape:
            raise InputError(f"f(q, p) must return two arrays of shape {q.shape}, got {dq.shape} and {dp.shape}")
        return dq, dp


def _no_input(u: Array | None) -> None:
    if u is not None:
        raise TypeError("this system has no input port: call vector_field(q, p) without u")


# --- initial states --------------------------------------------------------------------------------------------------


def _uniform(low: tuple[float, ...], high: tuple[float, ...]) -> Sampler:
    return lambda rng, count: rng.uniform(low, high, (count, len(low)))


def _normal(n: int, deviation: float) -> Sampler:
    return lambda rng, count: rng.normal(0.0, deviation, (count, n))


def _triangle(circumradius: float, deviation: float) -> Sampler:
    """Three points at the corners of an equilateral triangle around the origin, each coordinate perturbed."""
    corners = [(math.cos(a), math.sin(a)) for a in (math.pi / 2, math.pi * 7 / 6, math.pi * 11 / 6)]
    centre = circumradius * np.ravel(corners)
    return lambda rng, count: centre + rng.normal(0.0, deviation, (count, 6))


def _with_momentum(q: Sampler, p: Sampler) -> Initial:
    return lambda rng, count: (q(rng, count), p(rng, count))


def _with_velocity(q: Sampler, v: Sampler, mass: AbstractMass) -> Initial:
    """For distributions that are stated in velocities: p = M(q) v."""

    def initial(rng: np.random.Generator, count: int) -> tuple[Samples, Samples]:
        q0, v0 = q(rng, count), v(rng, count)
        momenta = jax.jit(jax.vmap(lambda q, v: mass.operator(q).matvec(v)))
        with jax.enable_x64(True):
            return q0, np.asarray(momenta(q0, v0))

    return initial


# --- the table -------------------------------------------------------------------------------------------------------

_GRAVITY = 9.81
_PI = math.pi
_ANGLE = Manifold.parse("theta:angle")
_CART_POLE = Manifold.parse("x", "theta:angle")
_TWO_LINES = Manifold.parse("q1", "q2")
_TWO_ANGLES = Manifold.parse("theta1:angle", "theta2:angle")
_THREE_POINTS = Manifold.parse("x1", "y1", "x2", "y2", "x3", "y3")
_BODIES = (1.0, 0.8, 0.6)  # not given in the paper, whose drawing shows three different masses
_BODY_MASSES = tuple(m for m in _BODIES for _ in "xy")


def _pendulum(
    name: str,
    title: str,
    damping: AbstractDamping,
    deviation: float,
    *,
    mass: float = 1.0,
    regime: Regime = "KNOWN",
    benchmark: bool = True,
) -> System:
    """B.1: I = m = ℓ = 1, V = g(1 - cos θ), p₀ ~ N(0, deviation²)."""
    return System(
        name=name,
        title=title,
        domain="mechanics",
        regime=regime,
        manifold=_ANGLE,
        dynamics=PortHamiltonian(Cosine(_GRAVITY), ConstantMass(mass), damping),
        dt=0.05,
        initial=_with_momentum(_uniform((-_PI,), (_PI,)), _normal(1, deviation)),
        constant_mass=ConstantMass(mass),
        benchmark=benchmark,
    )


def _cart_pole(name: str, title: str, damping: AbstractDamping, benchmark: bool) -> System:
    """B.2: m_c = m_p = ℓ = 1, the pole hanging at θ = 0."""
    return System(
        name=name,
        title=title,
        domain="mechanics",
        regime="PARTIAL",
        manifold=_CART_POLE,
        dynamics=PortHamiltonian(Cosine((0.0, _GRAVITY)), CartPoleMass(), damping),
        dt=0.02,
        initial=_with_momentum(_uniform((-1.0, -_PI), (1.0, _PI)), _uniform((-2.0, -2.0), (2.0, 2.0))),
        constant_mass=ConstantMass((2.0, 1.0)),
        benchmark=benchmark,
    )


def _oscillator(name: str, title: str, damping: float) -> System:
    """B.3: two independent oscillators with ω = m = 1."""
    return System(
        name=name,
        title=title,
        domain="mechanics",
        regime="KNOWN",
        manifold=_TWO_LINES,
        dynamics=PortHamiltonian(Quadratic(1.0), ConstantMass(1.0), ConstantDamping(damping)),
        dt=0.02,
        initial=_with_momentum(_normal(2, 1.0), _normal(2, 1.0)),
        constant_mass=ConstantMass(1.0),
        benchmark=True,
    )


def _double_pendulum(name: str, title: str, damping: AbstractDamping, benchmark: bool) -> System:
    """B.4: unit masses and rods, absolute angles. V is zero where both hang, 3g above the paper's reference."""
    mass = DoublePendulumMass()
    return System(
        name=name,
        title=title,
        domain="mechanics",
        regime="KNOWN",
        manifold=_TWO_ANGLES,
        dynamics=PortHamiltonian(Cosine((2.0 * _GRAVITY, _GRAVITY)), mass, damping),
        dt=0.01,
        initial=_with_velocity(_uniform((-_PI, -_PI), (_PI, _PI)), _uniform((-2.0, -2.0), (2.0, 2.0)), mass),
        constant_mass=ConstantMass((2.0, 1.0)),
        benchmark=benchmark,
    )


def robot_arm(links: int = 2) -> System:
    """A planar arm of ``links`` uniform rods (1 kg, 0.5 m) hanging from its base, with viscous and Coulomb friction.

    Coordinates are relative joint angles. It starts anywhere, with joint speeds up to 1 rad/s.
    """
    if links < 1:
        raise InputError(f"a robot arm needs at least one link, got {links}")
    masses, lengths, centres = (1.0,) * links, (0.5,) * links, (0.25,) * links
    inertias = (1.0 * 0.5**2 / 12.0,) * links
    mass = ArmMass(masses, lengths, centres, inertias)
    # The mean over uniform joint angles of Σ_{i ≥ j} m_i |c_i - o_j|² + I_i: the cosines between links drop out.
    averaged = tuple(
        sum(masses[i] * (sum(x**2 for x in lengths[j:i]) + centres[i] ** 2) + inertias[i] for i in range(j, links))
        for j in range(links)
    )
    anywhere = _uniform((-_PI,) * links, (_PI,) * links)
    return System(
        name="robot-arm" if links == 2 else f"robot-arm-{links}",
        title=f"Robot arm, {links} link{'s' * (links > 1)}",
        domain="robotics",
        regime="PARTIAL",
        manifold=Manifold.parse(*(f"theta{i + 1}:angle" for i in range(links))),
        dynamics=PortHamiltonian(ArmGravity(masses, lengths, centres), mass, Friction(viscous=0.05, coulomb=0.1)),
        dt=0.02,
        initial=_with_velocity(anywhere, _uniform((-1.0,) * links, (1.0,) * links), mass),
        constant_mass=ConstantMass(averaged),
    )


_TABLE = (
    _pendulum("pendulum-conservative", "Pendulum, conservative", ConstantDamping(0.0), 3.0),
    _pendulum("pendulum-damped", "Pendulum, damped", ConstantDamping(0.5), 3.0),
    _pendulum("pendulum-windy", "Pendulum, windy", WindyDamping(0.3, 0.5, (0,)), 4.0),
    _cart_pole("cartpole-windy", "Cart-pole, windy", WindyDamping(0.3, 0.5, (1, 1)), benchmark=True),
    _oscillator("oscillator-conservative", "Oscillator, conservative", 0.0),
    _oscillator("oscillator-damped", "Oscillator, damped", 0.1),
    _double_pendulum(
        "double-pendulum-conservative", "Double pendulum, conservative", ConstantDamping(0.0), benchmark=True
    ),
    _double_pendulum("double-pendulum-damped", "Double pendulum, damped", ConstantDamping(0.2), benchmark=True),
    System(
        name="rlc",  # L = C = 1, R = 0.5; p is the flux linkage
        title="Series RLC circuit",
        domain="electrical",
        regime="KNOWN",
        manifold=Manifold.parse("charge"),
        dynamics=PortHamiltonian(Quadratic(1.0), ConstantMass(1.0), ConstantDamping(0.5)),
        dt=0.02,
        initial=_with_momentum(_uniform((-2.0,), (2.0,)), _uniform((-2.0,), (2.0,))),
        constant_mass=ConstantMass(1.0),
        benchmark=True,
    ),
    System(
        name="lennard-jones-3",  # ε = σ = m = 1; sides of the triangle at r_eq = 2^{1/6}
        title="Lennard-Jones cluster of 3",
        domain="molecular dynamics",
        regime="KNOWN",
        manifold=_THREE_POINTS,
        dynamics=PortHamiltonian(LennardJones(), ConstantMass(1.0), ConstantDamping(0.1)),
        dt=0.002,
        initial=_with_momentum(_triangle(2.0 ** (1 / 6) / math.sqrt(3.0), 0.05), _normal(6, 0.1)),
        constant_mass=ConstantMass(1.0),
        benchmark=True,
        pairs=True,
    ),
    System(
        name="heat-exchange",  # c = (1, 1), κ = 0.5, κ_loss = 0.1, τ = (1, 1)
        title="Heat exchange",
        domain="thermal",
        regime="KNOWN",
        manifold=Manifold.parse("T1", "T2"),
        dynamics=PortHamiltonian(HeatExchange((1.0, 1.0), 0.5), ConstantMass(1.0), ConstantDamping(0.1)),
        dt=0.02,
        initial=_with_momentum(_uniform((0.5, 0.5), (2.0, 2.0)), _normal(2, 0.3)),
        constant_mass=ConstantMass(1.0),
        benchmark=True,
    ),
    System(
        name="n-body-3",  # G = 1, γ = 0.05
        title="Gravity between 3 bodies",
        domain="astrophysics",
        regime="PARTIAL",
        manifold=_THREE_POINTS,
        dynamics=PortHamiltonian(Gravity(_BODIES), ConstantMass(_BODY_MASSES), ConstantDamping(0.05)),
        dt=0.01,
        initial=_with_momentum(_triangle(2.0, 0.3), _normal(6, 0.5)),
        constant_mass=ConstantMass(_BODY_MASSES),
        benchmark=True,
        pairs=True,
    ),
    System(
        name="predator-prey",
        title="Predator and prey",
        domain="ecology",
        regime="UNKNOWN",
        manifold=Manifold.parse("prey"),
        dynamics=LotkaVolterra(),
        dt=0.1,
        initial=_with_momentum(_uniform((10.0,), (50.0,)), _uniform((5.0,), (20.0,))),
        constant_mass=ConstantMass(1.0),  # there is no true one: a unit to express predators in
        benchmark=True,
    ),
    # Beyond the thirteen: the figures' variants, and the rows of Table 1 that have no benchmark.
    _cart_pole(
        "cartpole-windy-rail", "Cart-pole, windy, rail friction", WindyDamping(0.3, (0.0, 0.5), (1, 1)), benchmark=False
    ),
    _double_pendulum(
        "double-pendulum-windy", "Double pendulum, windy", WindyDamping(0.3, 0.5, (0, 1)), benchmark=False
    ),
    System(
        name="spring-mass",
        title="Spring-mass-damper",
        domain="mechanics",
        regime="KNOWN",
        manifold=Manifold.parse("x"),
        dynamics=PortHamiltonian(Quadratic(1.0), ConstantMass(1.0), ConstantDamping(0.3)),
        dt=0.05,
        initial=_with_momentum(_uniform((-2.0,), (2.0,)), _normal(1, 1.0)),
        constant_mass=ConstantMass(1.0),
    ),
    _pendulum(
        "pendulum-unknown-mass",
        "Pendulum, unknown mass",
        ConstantDamping(0.3),
        3.0,
        mass=1.5,  # V = g(1 - cos θ) is given; the inertia is not
        regime="PARTIAL",
        benchmark=False,
    ),
    robot_arm(),
)

SYSTEMS: dict[str, System] = {entry.name: entry for entry in _TABLE}


def system(name: str) -> System:
    """The system called ``name``."""
    return SYSTEMS[check_system(name)]


def black_box(
    vector_field: VectorField, manifold: Manifold, initial: Initial, dt: float, name: str = "black-box"
) -> System:
    """A user's own simulator: f(q, p) -> (q', p') for one state, and where it starts."""
    return System(
        name=name,
        title=name,
        domain="any",
        regime="UNKNOWN",
        manifold=manifold,
        dynamics=BlackBox(vector_field),
        dt=dt,
        initial=initial,
        constant_mass=ConstantMass(1.0),
    )

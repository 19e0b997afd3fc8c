"""Second-order identification: few coefficients, fitted by Levenberg–Marquardt, with honest uncertainties.

Two stages. :func:`match` fits accelerations, q'' as the model predicts it against q'' from a local polynomial smoother
whose width is chosen from the data: parallel over all samples, and good enough to start from anywhere. :func:`shoot`
then fits positions over windows through the model's own time steps; the state at the start of each window is eliminated
from the normal equations, so no velocity is ever needed. The information matrix that is left says what the data
determine: its inverse is the covariance of the coefficients, and its null space is what no amount of the same data
can tell.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from phast.components.damping import SplineDamping
from phast.components.potential import SplinePotential
from phast.datasets import Trajectories
from phast.errors import InputError
from phast.forecaster import Core
from phast.hamiltonian import PortHamiltonian
from phast.horizon import fit_window
from phast.manifold import Manifold

LARGEST_FIT = 2000

# --- derivatives from positions --------------------------------------------------------------------------------------


class Smoother(NamedTuple):
    """A local polynomial of ``degree`` over ``window`` samples (Savitzky and Golay)."""

    window: int
    degree: int

    def kernels(self, dt: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights that give value, slope and curvature at the centre of the window."""
        half = self.window // 2
        powers = np.vander(dt * np.arange(-half, half + 1), self.degree + 1, increasing=True)
        fit = np.linalg.pinv(powers)
        return fit[0], fit[1], 2.0 * fit[2]


SMOOTHERS = (*(Smoother(w, 4) for w in (5, 7, 9, 11, 13, 15, 19, 23, 31)), Smoother(7, 6))
_REFERENCE = Smoother(7, 6)


class Samples(NamedTuple):
    """Positions, velocities and accelerations at the same instants."""

    q: Float[np.ndarray, "S n"]
    v: Float[np.ndarray, "S n"]
    a: Float[np.ndarray, "S n"]


def unwrapped(data: Trajectories) -> Float[np.ndarray, "N T n"]:
    """Positions without 2π jumps in the angles."""
    steps = np.diff(data.q, axis=1)
    turns = np.where(np.asarray(data.manifold.circles), np.round(steps / (2 * np.pi)), 0.0)
    return data.q - 2 * np.pi * np.concatenate([np.zeros_like(data.q[:, :1]), np.cumsum(turns, axis=1)], axis=1)


def noise_scale(data: Trajectories) -> float:
    """The standard deviation of white noise on the positions, from high-order differences.

    A smooth signal shrinks under differencing and noise grows by a known factor; the smallest of the estimates that
    orders 3 to 10 give is the least fooled by the signal.
    """
    q = unwrapped(data)
    estimates = []
    for order in range(3, min(11, data.length)):
        growth = np.sqrt(np.prod([(order + k) / k for k in range(1, order + 1)]))  # sqrt of binomial(2 order, order)
        estimates.append(np.median(np.abs(np.diff(q, n=order, axis=1))) / (0.6745 * growth))
    return float(min(estimates)) if estimates else 0.0


def choose_smoother(data: Trajectories, noise: float) -> Smoother:
    """The smoother with the least estimated error in the acceleration: noise that passes, plus bias.

    The bias is measured against a narrow reference, whose own noise is known and is subtracted.
    """
    _, _, reference = _REFERENCE.kernels(data.dt)
    q = unwrapped(data)
    best, least = _REFERENCE, np.inf
    for smoother in SMOOTHERS:
        if smoother.window > data.length:
            continue
        kernel = smoother.kernels(data.dt)[2]
        wide = np.zeros(max(smoother.window, _REFERENCE.window))
        wide[_centred(len(wide), smoother.window)] += kernel
        wide[_centred(len(wide), _REFERENCE.window)] -= reference
        if len(wide) > data.length:
            continue
        difference = _slide(q, wide)
        bias = max(float(np.mean(difference**2)) - noise**2 * float(wide @ wide), 0.0)
        risk = noise**2 * float(kernel @ kernel) + bias
        if risk < least:
            best, least = smoother, risk
    return best


def differentiate(data: Trajectories, smoother: Smoother) -> Samples:
    """(q, v, a) wherever the smoother's window fits, flattened over trajectories."""
    if smoother.window > data.length:
        raise InputError(f"trajectories of {data.length} samples are too short for a window of {smoother.window}")
    q = unwrapped(data)
    n = q.shape[2]
    return Samples(*(_slide(q, kernel).reshape(-1, n) for kernel in smoother.kernels(data.dt)))


def _slide(q: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.sliding_window_view(q, len(kernel), axis=1) @ kernel


def _centred(length: int, window: int) -> slice:
    return slice(length // 2 - window // 2, length // 2 + window // 2 + 1)


# --- Levenberg–Marquardt on normal equations -------------------------------------------------------------------------


class Normal(NamedTuple):
    """A least-squares problem linearised: Jᵀ J, Jᵀ r and r·r; ``local`` is what it knows about eliminated unknowns."""

    matrix: Float[Array, "k k"]
    gradient: Float[Array, " k"]
    cost: Float[Array, ""]
    local: Any = None


def levenberg_marquardt(
    linearise: Callable[[Array, Any], Normal],
    cost: Callable[[Array, Any], Array],
    move: Callable[[Any, Any, Array], Any],
    prior: Callable[[Array], Array],
    theta: Float[Array, " k"],
    local: Any,
    *,
    iterations: int,
    tolerance: float = 1e-9,
) -> tuple[Float[Array, " k"], Any, Normal]:
    """Minimise |r(θ, x)|² + |prior(θ)|² over θ and the local unknowns x that ``linearise`` eliminates."""
    prior_jacobian = jax.jit(jax.jacfwd(prior))
    damping = 1e-4
    normal = linearise(theta, local)
    best = float(normal.cost + jnp.sum(prior(theta) ** 2))
    for _ in range(iterations):
        jacobian = prior_jacobian(theta)
        matrix = normal.matrix + jacobian.T @ jacobian
        gradient = normal.gradient + jacobian.T @ prior(theta)
        scale = jnp.diag(matrix) + 1e-12 * jnp.max(jnp.diag(matrix))
        step = -jnp.linalg.solve(matrix + damping * jnp.diag(scale), gradient)
        proposal, moved = theta + step, move(local, normal.local, step)
        total = float(cost(proposal, moved) + jnp.sum(prior(proposal) ** 2))
        if np.isfinite(total) and total <= best:
            gain, best = best - total, total
            theta, local, damping = proposal, moved, max(0.1 * damping, 1e-12)
            normal = linearise(theta, local)
            if gain <= tolerance * best:
                break
        else:
            damping *= 10.0
            if damping > 1e8:
                break
    return theta, local, normal


# --- stage one: accelerations ----------------------------------------------------------------------------------------


def acceleration(system: PortHamiltonian, q: Float[Array, " n"], v: Float[Array, " n"]) -> Float[Array, " n"]:
    """q'' of the unforced system at (q, v), for any M(q)."""
    p = system.momentum(q, v)
    return jax.jvp(system.velocity, (q, p), system.vector_field(q, p))[1]


def match(
    system: PortHamiltonian,
    samples: Samples,
    *,
    deviation: float,
    smoothness: float = 1.0,
    iterations: int = 20,
    chunk: int = 1000,
) -> PortHamiltonian:
    """Fit every learned coefficient to accelerations whose errors have this standard deviation."""
    theta, rebuild = _coefficients(system)
    used = len(samples.q) // chunk * chunk or len(samples.q)
    batches = tuple(jnp.asarray(x[:used]).reshape(-1, min(chunk, used), x.shape[1]) for x in samples)

    def residual(theta, q, v, a):
        model = rebuild(theta)
        return ((jax.vmap(lambda x, w: acceleration(model, x, w))(q, v) - a) / deviation).reshape(-1)

    @jax.jit
    def linearise(theta, batches):
        def add(total, batch):
            r = residual(theta, *batch)
            jacobian = jax.jacfwd(residual)(theta, *batch)
            return (total[0] + jacobian.T @ jacobian, total[1] + jacobian.T @ r, total[2] + r @ r), None

        zero = (jnp.zeros((theta.size, theta.size)), jnp.zeros(theta.size), jnp.zeros(()))
        return Normal(*jax.lax.scan(add, zero, batches)[0])

    @jax.jit
    def cost(theta, batches):
        return jnp.sum(jax.lax.map(lambda batch: jnp.sum(residual(theta, *batch) ** 2), batches))

    theta, _, _ = levenberg_marquardt(
        lambda t, _: linearise(t, batches),
        lambda t, _: cost(t, batches),
        lambda local, normal, step: None,
        lambda t: roughness(rebuild(t), smoothness),
        theta,
        None,
        iterations=iterations,
    )
    return rebuild(theta)


# --- stage two: positions --------------------------------------------------------------------------------------------


class Identified(NamedTuple):
    """A fitted system and what the data say about its coefficients.

    ``information`` is that of the data alone, in the raveled order of the trainable leaves; ``covariance`` includes
    the smoothness prior. ``rms`` is the root mean square of the position residuals over ``count`` of them.
    """

    system: PortHamiltonian
    information: Float[np.ndarray, "k k"]
    covariance: Float[np.ndarray, "k k"]
    rms: float
    count: int


def shoot(
    core: Core,
    manifold: Manifold,
    windows: Float[np.ndarray, "W L n"],
    *,
    dt: float,
    noise: float,
    iterations: int = 12,
    chunk: int = 100,
) -> Identified:
    """Fit every learned coefficient of the core's system to windows of positions, their initial states eliminated.

    Spline fields are fitted twice: with a faint smoothness prior, and with the one that the evidence then prefers.
    """
    theta, rebuild = _coefficients(core.system)
    n = manifold.size
    chunk = min(chunk, len(windows))
    used = len(windows) // chunk * chunk
    y = jnp.asarray(windows[:used]).reshape(-1, chunk, *windows.shape[1:])
    states = _first_states(core, manifold, y, dt)

    def residual(theta, x, window):
        q, _ = Core(rebuild(theta), core.transition).rollout(x[:n], x[n:], window.shape[0] - 1)
        path = jnp.concatenate([x[None, :n], q])
        return manifold.difference(path, window).reshape(-1) / noise

    def eliminate(theta, x, window):
        r = residual(theta, x, window)
        by_theta = jax.jacfwd(residual)(theta, x, window)
        by_x = jax.jacfwd(residual, argnums=1)(theta, x, window)
        normal = by_x.T @ by_x
        inverse = jnp.linalg.inv(normal + 1e-13 * jnp.trace(normal) * jnp.eye(2 * n))
        x_from_r, x_from_theta = inverse @ (by_x.T @ r), inverse @ (by_x.T @ by_theta)
        rest, rest_r = by_theta - by_x @ x_from_theta, r - by_x @ x_from_r
        return rest.T @ rest, rest.T @ rest_r, r @ r, (x_from_r, x_from_theta)

    @jax.jit
    def linearise(theta, states, y):
        def add(total, batch):
            matrix, gradient, cost, local = jax.vmap(lambda x, w: eliminate(theta, x, w))(*batch)
            return (total[0] + matrix.sum(0), total[1] + gradient.sum(0), total[2] + cost.sum()), local

        zero = (jnp.zeros((theta.size, theta.size)), jnp.zeros(theta.size), jnp.zeros(()))
        total, local = jax.lax.scan(add, zero, (states, y))
        return Normal(*total, local)

    @jax.jit
    def cost(theta, states, y):
        each = jax.vmap(lambda x, w: jnp.sum(residual(theta, x, w) ** 2))
        return jnp.sum(jax.lax.map(lambda batch: jnp.sum(each(*batch)), (states, y)))

    @jax.jit
    def move(states, local, step):
        from_r, from_theta = local
        return states - from_r - from_theta @ step

    def run(theta, states, weights):
        return levenberg_marquardt(
            lambda t, x: linearise(t, x, y),
            lambda t, x: cost(t, x, y),
            move,
            lambda t: roughness(rebuild(t), jnp.asarray(weights)),
            theta,
            states,
            iterations=iterations,
        )

    weights = np.full(len(_splines_of(core.system)), _WEIGHTS[0])
    theta, states, normal = run(theta, states, weights)
    if weights.size:
        preferred = choose_smoothness(normal, theta, rebuild)
        affordable = 1.01 * float(normal.cost) + 4.0 * theta.size
        for smaller in (1.0, 0.1, 0.01):  # the evidence is local: a choice that costs far more than it promised is not
            smooth = run(theta, states, smaller * preferred)
            if float(smooth[2].cost) <= affordable:
                (theta, states, normal), weights = smooth, smaller * preferred
                break
    jacobian = jax.jacfwd(lambda t: roughness(rebuild(t), jnp.asarray(weights)))(theta)
    covariance = np.linalg.pinv(np.asarray(normal.matrix + jacobian.T @ jacobian), hermitian=True)
    rms = float(np.sqrt(float(normal.cost) / y.size)) * noise
    return Identified(rebuild(theta), np.asarray(normal.matrix), covariance, rms, int(y.size))


@eqx.filter_jit
def _first_states(core: Core, manifold: Manifold, y: Float[Array, "C B L n"], dt: float) -> Float[Array, "C B k"]:
    """States at the start of each window, fitted to its first samples."""
    head = y[:, :, : min(y.shape[2], 10)]
    weights = jnp.ones(head.shape[2])
    return jax.lax.map(jax.vmap(lambda w: fit_window(core, manifold, dt, w, weights).start), head)


# --- what is learned, and how rough it is ----------------------------------------------------------------------------


def _coefficients(system: PortHamiltonian) -> tuple[Float[Array, " k"], Callable[[Array], PortHamiltonian]]:
    """All trainable numbers as one vector, and the way back."""
    params, static = eqx.partition(system, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(params)
    if theta.size == 0:
        raise InputError("nothing to identify: every coefficient of this model is given")
    if theta.size > LARGEST_FIT:
        raise InputError(f"{theta.size} coefficients are too many for a second-order fit: the limit is {LARGEST_FIT}")
    return theta, lambda t: eqx.combine(unravel(t), static)


def roughness(system: PortHamiltonian, smoothness: float | Float[Array, " fields"]) -> Float[Array, " k"]:
    """Prior residuals: the roughness of every spline field, and a whisper that keeps unseen nodes where they are."""
    fields = _splines_of(system)
    weights = jnp.broadcast_to(jnp.asarray(smoothness, dtype=float), (len(fields),))
    parts = [jnp.zeros(1)]
    for weight, field in zip(weights, fields, strict=True):
        values = field.coefficients if isinstance(field, SplinePotential) else field.entries
        parts += [weight * field.roughness(), 1e-4 * values.reshape(-1)]
    return jnp.concatenate(parts)


def _splines_of(system: PortHamiltonian) -> list[SplinePotential | SplineDamping]:
    return [leaf for leaf in jax.tree.leaves(system, is_leaf=_is_spline) if _is_spline(leaf)]


def choose_smoothness(
    normal: Normal, theta: Float[Array, " k"], rebuild: Callable[[Array], PortHamiltonian]
) -> Float[np.ndarray, " fields"]:
    """The weight of each field's roughness that the data themselves prefer: the largest evidence (marginal likelihood).

    With the residuals linear around ``theta`` and the roughness linear in it, the evidence of a choice is a formula:
    the best fit that the prior allows, and how much of the prior's volume that fit leaves.
    """
    matrix, gradient, at = (np.asarray(x) for x in (normal.matrix, normal.gradient, theta))
    jacobians = [
        np.asarray(jax.jacfwd(lambda t, k=k: _splines_of(rebuild(t))[k].roughness())(theta))
        for k in range(len(_splines_of(rebuild(theta))))
    ]
    penalties = [jacobian.T @ jacobian for jacobian in jacobians]
    ranks = [np.linalg.matrix_rank(penalty, hermitian=True) for penalty in penalties]

    def evidence(weights: tuple[float, ...]) -> float:
        prior = sum((w**2 * p for w, p in zip(weights, penalties, strict=True)), 1e-8 * np.eye(len(at)))
        posterior = matrix + prior
        step = -np.linalg.solve(posterior, gradient + prior @ at)
        fit = 2 * gradient @ step + step @ matrix @ step + (at + step) @ prior @ (at + step)
        volume = sum(2 * rank * np.log(w) for w, rank in zip(weights, ranks, strict=True))
        return -0.5 * (fit + np.linalg.slogdet(posterior)[1] - volume)

    return np.array(max(itertools.product(_WEIGHTS, repeat=len(penalties)), key=evidence))


_WEIGHTS = tuple(10.0 ** (k / 2) for k in range(-4, 11))


def _is_spline(node: Any) -> bool:
    return isinstance(node, SplinePotential | SplineDamping)


# --- the report ------------------------------------------------------------------------------------------------------

_NO_INFORMATION = 1e-9  # of the largest eigenvalue of the scaled information matrix


class Coefficient(NamedTuple):
    """One recovered number: its value, its standard deviation, and whether these data determine it."""

    name: str
    value: float
    deviation: float
    identifiable: bool


class Report(NamedTuple):
    """What was recovered, what could not be, and why, in words."""

    coefficients: list[Coefficient]
    conditioning: float
    remarks: list[str]


def report(found: Identified) -> Report:
    """Every learned scalar with its uncertainty; what the data leave open, and which anchor would close it.

    A direction without information is one along which all coefficients of the null vector trade off. Spline fields
    count in that test, but their many coefficients are not listed: see :func:`damping_band`.
    """
    names = _names(found.system)
    theta = np.asarray(_coefficients(found.system)[0])
    natural = [
        (_softplus(x), _sigmoid(x)) if kind == "positive" else (x, 1.0)
        for x, (_, kind) in zip(theta, names, strict=True)
    ]
    scale = np.sqrt(np.maximum(np.diag(found.information), 1e-300))
    values, vectors = np.linalg.eigh(found.information / np.outer(scale, scale))
    informed = values > _NO_INFORMATION * max(values[-1], 1e-300)
    relative = np.array([s / (abs(x) + (kind != "positive")) for (x, s), (_, kind) in zip(natural, names, strict=True)])
    moves = vectors[:, ~informed] / scale[:, None]
    null = relative[:, None] * moves  # the relative change along each open direction
    null /= np.maximum(np.max(np.abs(null), axis=0, keepdims=True, initial=0.0), 1e-300)
    open_ones = np.any(np.abs(null) > 0.01, axis=1)
    deviations = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    coefficients = [
        Coefficient(name, float(value), float(slope * deviation), not is_open)
        for (name, kind), (value, slope), deviation, is_open in zip(names, natural, deviations, open_ones, strict=True)
        if kind != "field"
    ]
    remarks = [_in_words(direction, move, names) for direction, move in zip(null.T, moves.T, strict=True)]
    conditioning = float(values[-1] / values[informed][0]) if informed.any() else np.inf
    return Report(coefficients, conditioning, list(dict.fromkeys(remarks)))


def damping_band(found: Identified, q: Float[np.ndarray, "N n"]) -> tuple[np.ndarray, np.ndarray]:
    """The diagonal of D(q) and its standard deviation, at configurations q, at rest."""
    theta, rebuild = _coefficients(found.system)
    points = jnp.asarray(q, dtype=float)
    rest = jnp.zeros(points.shape[1])

    def field(t):
        law = rebuild(t).damping
        return jax.vmap(lambda x: law.operator(x, rest).diagonal_part())(points)

    jacobian = np.asarray(jax.jacfwd(field)(theta))
    variance = np.einsum("ijk,kl,ijl->ij", jacobian, found.covariance, jacobian)
    return np.asarray(field(theta)), np.sqrt(np.maximum(variance, 0.0))


def _names(system: PortHamiltonian) -> list[tuple[str, str]]:
    """(name, kind) of every trainable number, in raveled order; the kind is "positive", "field" or "plain"."""
    names = []
    params = eqx.filter(system, eqx.is_inexact_array)
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        parts = [key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)]
        positive, field = parts[-1] == "raw", parts[-1] in ("coefficients", "entries")
        name = ".".join(parts[:-1] if positive or field else parts)
        kind = "positive" if positive else "field" if field else "plain"
        names += [(name if leaf.size == 1 or field else f"{name}[{i}]", kind) for i in range(leaf.size)]
    return names


def _in_words(direction: np.ndarray, move: np.ndarray, names: list[tuple[str, str]]) -> str:
    """What is open along one direction, given as relative changes and as the move of the raw coefficients."""
    shares: dict[str, float] = {}
    for (name, _), change in zip(names, direction, strict=True):
        shares[name] = max(shares.get(name, 0.0), abs(float(change)))
    involved = sorted((name for name, share in shares.items() if share > 0.01), key=lambda name: -shares[name])
    parts = {name.partition(".")[0] for name in involved}
    if {"potential", "mass", "damping"} <= parts:
        return (
            "the common scale of potential, mass and damping is open: multiplying all three by one factor changes no "
            "trajectory; give the mass, or the strength of the potential, to fix it"
        )
    within = move[[name == involved[0] for name, _ in names]]
    if len(involved) == 1 and len(within) > 1 and np.ptp(within) < 0.05 * np.max(np.abs(within)):
        return f"{involved[0]} is determined up to a constant: its zero level moves nothing"
    if len(involved) == 1:
        return f"these data say nothing about {involved[0]}: give it, or record motion that depends on it"
    return f"{' and '.join(involved)} trade off: only a combination is determined; give one of them to fix the others"


def _softplus(x: float) -> float:
    return float(np.logaddexp(0.0, x))


def _sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))

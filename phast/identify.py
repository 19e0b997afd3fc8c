"""Second-order identification: few coefficients, fitted by Levenberg–Marquardt.

Two stages. :func:`match` fits accelerations, q'' as the model predicts it against q'' from a local polynomial smoother
(:mod:`phast.derivatives`): parallel over all samples, and good enough to start from anywhere. :func:`shoot` then fits
positions over windows through the model's own time steps; the state at the start of each window is eliminated from the
normal equations, so no velocity is ever needed. The information matrix that is left says what the data determine: its
inverse is the covariance of the coefficients, and its null space is what no amount of the same data can tell
(:mod:`phast.findings`).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from phast.components.parameter import Positive
from phast.components.spline import AbstractSmooth
from phast.datasets import Trajectories
from phast.derivatives import Samples
from phast.errors import InputError
from phast.forecaster import Core, Held, steps_of
from phast.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.horizon import Evidence, Noise, balance, fit_window, improve
from phast.integrators import Timestep
from phast.manifold import Manifold
from phast.models import parameter_count

LARGEST_FIT = 2000

# --- Levenberg–Marquardt on normal equations -------------------------------------------------------------------------


class Normal(NamedTuple):
    """A least-squares problem linearised: Jᵀ J, Jᵀ r and r·r; ``local`` is what it knows about eliminated unknowns."""

    matrix: Float[Array, "k k"]
    gradient: Float[Array, " k"]
    cost: Float[Array, ""]
    local: Any = None


_NEGLIGIBLE = 0.1  # of a sum of squares in units of the noise


def levenberg_marquardt(
    linearise: Callable[[Array, Any], Normal],
    cost: Callable[[Array, Any], tuple[Array, Any]],
    move: Callable[[Any, Any, Array], Any],
    prior: Callable[[Array], Array],
    theta: Float[Array, " k"],
    local: Any,
    *,
    floor: Float[Array, " k"],
    iterations: int,
    tolerance: float,
) -> tuple[Float[Array, " k"], Any, Normal]:
    """Minimise |r(θ, x)|² + |prior(θ)|² over θ ≥ ``floor`` and the local unknowns x that ``linearise`` eliminates.

    ``move`` says where the x go with a step of θ, and ``cost`` improves them there.

    Stops where a step promises less than ``tolerance`` of the whole, or less than residuals of unit variance can tell.
    """
    prior_jacobian = jax.jit(jax.jacfwd(prior))
    damping, growth = 1e-4, 4.0
    normal = linearise(theta, local)
    best = float(normal.cost + jnp.sum(prior(theta) ** 2))
    for _ in range(iterations):
        jacobian = prior_jacobian(theta)
        matrix = normal.matrix + jacobian.T @ jacobian
        gradient = normal.gradient + jacobian.T @ prior(theta)
        ridge = damping * (jnp.diag(matrix) + 1e-12 * jnp.max(jnp.diag(matrix)))
        step = -jnp.linalg.solve(matrix + jnp.diag(ridge), gradient)
        promised = float(jnp.dot(step, ridge * step - gradient))
        if promised <= max(tolerance * best, _NEGLIGIBLE):
            break
        proposal = jnp.maximum(theta + step, floor)
        moved = move(local, normal.local, proposal - theta)
        misfit, moved = cost(proposal, moved)
        total = float(misfit + jnp.sum(prior(proposal) ** 2))
        if np.isfinite(total) and total <= best:
            damping = max(damping * max(1.0 / 3.0, 1.0 - (2.0 * (best - total) / promised - 1.0) ** 3), 1e-12)
            theta, local, growth, best = proposal, moved, 4.0, total
            normal = linearise(theta, local)
        else:  # each failure in a row asks for more than the one before
            damping, growth = damping * growth, 2.0 * growth
            if damping > 1e8:
                break
    return theta, local, normal


# --- stage one: accelerations ----------------------------------------------------------------------------------------


def acceleration(
    system: AbstractEnergetic,
    q: Float[Array, " n"],
    v: Float[Array, " n"],
    u: Float[Array, " inputs"] | None = None,
) -> Float[Array, " n"]:
    """q'' at (q, v), for any M(q)."""
    p = system.momentum(q, v)
    return jax.jvp(system.velocity, (q, p), system.vector_field(q, p, u))[1]


def match(
    system: AbstractEnergetic,
    samples: Samples,
    *,
    deviation: float | Float[np.ndarray, " n"],
    smoothness: float = 1.0,
    iterations: int = 15,
    chunk: int = 500,
) -> AbstractEnergetic:
    """Fit every learned coefficient to accelerations whose errors have this standard deviation, or more where they say
    that they may be off by more."""
    theta, rebuild = coefficients_of(system)
    chunk = min(chunk, len(samples.q))
    batches = _in_chunks(samples, chunk)

    def residual(theta, q, v, a, u, bias):
        off = deviation if bias is None else jnp.maximum(deviation, bias)
        return (acceleration(rebuild(theta), q, v, u) - a) / off

    @jax.jit
    def linearise(theta, batches):
        def add(total, batch):
            r = jax.vmap(residual, (None, 0, 0, 0, 0, 0))(theta, *batch).reshape(-1)
            jacobian = jax.vmap(jax.jacrev(residual), (None, 0, 0, 0, 0, 0))(theta, *batch).reshape(-1, theta.size)
            return (total[0] + jacobian.T @ jacobian, total[1] + jacobian.T @ r, total[2] + r @ r), None

        return Normal(*jax.lax.scan(add, _nothing(theta.size), batches)[0])

    @jax.jit
    def cost(theta, batches):
        each = jax.vmap(residual, (None, 0, 0, 0, 0, 0))
        return jnp.sum(jax.lax.map(lambda batch: jnp.sum(each(theta, *batch) ** 2), batches)), None

    theta, _, _ = levenberg_marquardt(
        lambda t, _: linearise(t, batches),
        lambda t, _: cost(t, batches),
        lambda local, normal, step: None,
        lambda t: roughness(rebuild(t), smoothness),
        theta,
        None,
        floor=_floor(system),
        iterations=iterations,
        tolerance=1e-3,
    )
    return rebuild(theta)


def _in_chunks(arrays: Any, chunk: int) -> Any:
    """Each array with its leading axis cut into chunks of at most this size, as equal as leaves the fewest over."""
    count = len(jax.tree.leaves(arrays)[0])
    chunk = count // -(-count // chunk)
    return jax.tree.map(lambda x: jnp.asarray(x[: len(x) // chunk * chunk]).reshape(-1, chunk, *x.shape[1:]), arrays)


def _nothing(size: int) -> tuple[Array, Array, Array]:
    return jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(())


# --- stage two: positions --------------------------------------------------------------------------------------------


class Identified(NamedTuple):
    """A fitted system and what the data say about its coefficients."""

    system: AbstractEnergetic
    evidence: Evidence


def shoot(
    core: Core,
    windows: Trajectories,
    *,
    noise: Noise,
    smooth: bool = True,
    iterations: int = 12,
    chunk: int = 50,
) -> Identified:
    """Fit every learned coefficient of the core's system to windows of positions, their initial states eliminated.

    With ``smooth``, fields are fitted again with the smoothness that the evidence prefers, until it stays. Data without
    noise need next to none.
    """
    theta, rebuild = coefficients_of(core.system)
    batches = _in_chunks((windows.q, held_over(windows)), min(chunk, len(windows)))
    states = _first_states(core, windows.manifold, batches, windows.dt)
    problem, floor = _Shooting(core, rebuild, windows.manifold, noise), _floor(core.system)

    def run(theta, states, weights):
        kept, states = problem.explained(theta, states, batches)
        count = int(kept.sum()) * windows.length * windows.manifold.size
        if count == 0:  # no window has a path that is a number
            raise FloatingPointError(_DIVERGED)
        return count, *levenberg_marquardt(
            lambda t, x: problem.linearise(t, (x, *batches, kept)),
            lambda t, x: problem.cost(t, (x, *batches, kept)),
            _follow,
            lambda t: roughness(rebuild(t), jnp.asarray(weights)),
            theta,
            states,
            floor=floor,
            iterations=iterations,
            tolerance=0.1 / count,
        )

    weights = np.full(_directions(core.system), 1.0 if smooth else _WEIGHTS[0])
    count, theta, states, normal = run(theta, states, weights)
    for _ in range(_ROUNDS if smooth and weights.size else 0):  # the evidence is local: ask again where it led
        previous, weights = weights, choose_smoothness(normal, theta, rebuild, count)
        count, theta, states, normal = run(theta, states, weights)
        if np.allclose(weights, previous, rtol=0.1):
            break
    if not np.isfinite(normal.cost + jnp.sum(normal.matrix)):
        raise FloatingPointError(_DIVERGED)
    jacobian = jax.jacfwd(lambda t: roughness(rebuild(t), jnp.asarray(weights)))(theta)
    excess = _excess(normal, count)
    covariance = excess * _scaled_inverse(np.asarray(normal.matrix + jacobian.T @ jacobian))
    rms = float(np.sqrt(float(normal.cost) / count)) * balance(noise, windows.manifold.size)[0]
    evidence = Evidence(np.asarray(normal.matrix) / excess, covariance, rms, count)
    return Identified(rebuild(theta), evidence)


_DIVERGED = "the fit diverged: check the units and dt, or give a template and a damping law"


def _scaled_inverse(matrix: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """The pseudo-inverse, in units in which the diagonal is one: a coefficient's unit does not make it unknown."""
    scale = 1.0 / np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    return np.linalg.pinv(matrix * np.outer(scale, scale), hermitian=True) * np.outer(scale, scale)


def _excess(normal: "Normal", count: int) -> float:
    """By how much squared residuals exceed what the noise explains: a model's own error counts as noise too."""
    return max(float(normal.cost) / count, 1.0)


def held_over(windows: Trajectories) -> Held | None:
    """What is held between the samples of each window; None where there are no inputs and all steps are even."""
    if windows.u is None and windows.stretch is None:
        return None
    u, stretch = (None if x is None else jnp.asarray(x[:, :-1]) for x in (windows.u, windows.stretch))
    return Held(u, None if stretch is None else stretch[..., 0])


class _Shooting:
    """The least-squares problem of :func:`shoot`: compiled once, whatever the smoothness.

    Sensitivities follow the path in substeps of length h. One substep has the derivative A = ∂x⁺/∂x; what coefficients
    add to it is B = h ½(I + A) ∂f/∂θ at its middle (variation of constants, right to second order in h, which is enough
    for the slope of a least-squares problem), and S⁺ = A S + B carries ∂x/∂θ through the window. The field f has few
    components and many coefficients, so ∂f/∂θ is taken in reverse mode, for all substeps at once.

    States are settled in their own windows after every step of the coefficients. Windows that no state near the first
    guess explains (``kept`` = 0) are left out.
    """

    def __init__(self, core: Core, rebuild: Callable[[Array], AbstractEnergetic], manifold: Manifold, noise: Noise):
        n = manifold.size
        typical, share = balance(noise, n)
        each = jnp.broadcast_to(jnp.asarray(noise, dtype=float), (n,))
        pieces = core.transition.timestep.pieces()
        substeps, h = len(pieces), pieces[0]
        single = eqx.tree_at(lambda t: t.timestep, core.transition, Timestep(h))
        given = isinstance(core.system, PortHamiltonian) and parameter_count(core.system.mass) == 0
        moved = slice(n, None) if given else slice(None)  # of mechanical systems, q' = v knows only the mass

        def advance(theta, x, u):
            return jnp.concatenate(Core(rebuild(theta), single)(x[:n], x[n:], u))

        def field(theta, x, u):
            return jnp.concatenate(rebuild(theta).vector_field(x[:n], x[n:], None if u is None else u.u))[moved]

        def trace(theta, x, y, u):
            """The path in substeps, and what is held over each."""
            u = jax.tree.map(lambda each: jnp.repeat(each, substeps, axis=0), u)
            step = lambda x, u: (advance(theta, x, u),) * 2  # noqa: E731
            path = jax.lax.scan(step, x, u, length=substeps * (y.shape[0] - 1))[1]
            return jnp.concatenate([x[None], path]), u

        def misfit(path, y):
            return (manifold.difference(path[::substeps, :n], y) / each).reshape(-1)

        def eliminate(theta, x, y, u, kept):
            path, u = trace(theta, x, y, u)
            along = (None, 0, None if u is None else 0)
            length = h if u is None or u.stretch is None else h * u.stretch[:, None, None]
            by_state = jax.vmap(jax.jacfwd(advance, argnums=1), along)(theta, path[:-1], u)
            slopes = jax.vmap(jax.jacrev(field), along)(theta, 0.5 * (path[1:] + path[:-1]), u)
            carried = 0.5 * length * (jnp.eye(2 * n) + by_state)[:, :, moved] @ slopes
            start = jnp.concatenate([jnp.eye(2 * n), jnp.zeros((2 * n, theta.size))], axis=1)
            added = jnp.concatenate([jnp.zeros_like(by_state), carried], axis=2)
            grow = lambda s, step: (step[0] @ s + step[1], s[:n])  # noqa: E731
            last, before = jax.lax.scan(grow, start, (by_state, added))
            jacobian = jnp.concatenate([before[::substeps], last[None, :n]]) / each[:, None]
            jacobian = jacobian.reshape(-1, 2 * n + theta.size)
            r, by_x, by_theta = misfit(path, y), jacobian[:, : 2 * n], jacobian[:, 2 * n :]
            scale = 1.0 / jnp.sqrt(jnp.sum(by_x**2, axis=0) + 1e-300)
            normal = (by_x * scale).T @ (by_x * scale)
            inverse = jnp.linalg.inv(normal + 1e-12 * jnp.eye(2 * n)) * jnp.outer(scale, scale)
            x_from_r, x_from_theta = inverse @ (by_x.T @ r), inverse @ (by_x.T @ by_theta)
            rest, left = by_theta - by_x @ x_from_theta, r - by_x @ x_from_r
            told = (rest, left, r @ r, (x_from_r, x_from_theta))
            return jax.tree.map(lambda x: jnp.where(kept > 0, x, 0.0), told)  # what is left out may be no number

        def linearise(theta, batches):
            def add(total, batch):
                rest, r, cost, local = jax.vmap(eliminate, (None, 0, 0, 0, 0))(theta, *batch)
                rest, r = rest.reshape(-1, theta.size), r.reshape(-1)
                return (total[0] + rest.T @ rest, total[1] + rest.T @ r, total[2] + cost.sum()), local

            total, local = jax.lax.scan(add, _nothing(theta.size), batches)
            return Normal(*total, local)

        def settle(theta, x, y, u, iterations):
            """The state near x that explains the window best, and how well."""
            model = Core(rebuild(theta), core.transition)
            weights = jnp.broadcast_to(share, y.shape)
            found = improve(model, manifold, y, weights, x, u, iterations=iterations)
            return found.misfit / typical**2, found.start

        def cost(theta, batches):
            def one(x, y, u, kept):
                misfit, x = settle(theta, x, y, u, 2)
                return jnp.where(kept > 0, misfit, 0.0), x

            misfits, states = jax.lax.map(lambda batch: jax.vmap(one)(*batch), batches)
            return jnp.sum(misfits), states

        def explained(theta, states, batches):
            one = jax.vmap(lambda x, y, u: settle(theta, x, y, u, 6))
            misfits, states = jax.lax.map(lambda batch: one(*batch), (states, *batches))
            usual = jnp.nanmedian(misfits)
            return (misfits <= _OUTLYING * usual + 1e-300).astype(float), states

        self.linearise, self.cost, self.explained = jax.jit(linearise), jax.jit(cost), jax.jit(explained)


_OUTLYING = 25.0  # times the median misfit: a window whose path went the other way over the top tells nothing


@jax.jit
def _follow(states: Array, local: tuple[Array, Array], step: Float[Array, " k"]) -> Array:
    """Where the eliminated states go when the coefficients take a step."""
    from_r, from_theta = local
    return states - from_r - from_theta @ step


@eqx.filter_jit
def _first_states(core: Core, manifold: Manifold, batches: tuple, dt: float) -> Float[Array, "C B k"]:
    """States at the start of each window, fitted to its first samples."""
    y, u = batches
    head = min(y.shape[2], 10)
    weights = jnp.ones((head, y.shape[3]))

    def one(y, u):
        return fit_window(core, manifold, dt, y[:head], weights, steps_of(u, 0, head - 1)).start

    return jax.lax.map(lambda batch: jax.vmap(one)(*batch), (y, u))


# --- what is learned, and how rough it is ----------------------------------------------------------------------------


def coefficients_of(system: AbstractEnergetic) -> tuple[Float[Array, " k"], Callable[[Array], AbstractEnergetic]]:
    """All trainable numbers as one vector, and the way back."""
    params, static = eqx.partition(system, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(params)
    if theta.size == 0:
        raise InputError("nothing to identify: every coefficient of this model is given")
    if theta.size > LARGEST_FIT:
        raise InputError(f"{theta.size} coefficients are too many for a second-order fit: the limit is {LARGEST_FIT}")
    return theta, lambda t: eqx.combine(unravel(t), static)


_NEAR_ZERO = -20.0  # a positive coefficient of 2e-9 units: none, and still with a slope


def _floor(system: AbstractEnergetic) -> Float[Array, " k"]:
    """How low each trainable number may go: what becomes zero must not run away to minus infinity."""
    lowest = lambda node: jax.tree.map(lambda x: jnp.full_like(x, _limit(node)), node)  # noqa: E731
    params = eqx.filter(system, eqx.is_inexact_array)
    return ravel_pytree(jax.tree.map(lowest, params, is_leaf=lambda node: isinstance(node, Positive)))[0]


def _limit(node: Any) -> float:
    return _NEAR_ZERO if isinstance(node, Positive) else -jnp.inf


def smooth_fields(system: AbstractEnergetic) -> list[AbstractSmooth]:
    """The fields of a system that have a roughness."""
    return [leaf for leaf in jax.tree.leaves(system, is_leaf=_is_smooth) if _is_smooth(leaf)]


def _is_smooth(node: Any) -> bool:
    return isinstance(node, AbstractSmooth)


def _directions(system: AbstractEnergetic) -> int:
    """How many weights of smoothness there are: one for each direction of each field."""
    return sum(len(field.roughness()) for field in smooth_fields(system))


_WHISPER = 1e-4  # keeps what the data never show where it is


def roughness(system: AbstractEnergetic, smoothness: float | Float[Array, " directions"]) -> Float[Array, " k"]:
    """Prior residuals: the weighted roughness of every smooth field, and a whisper on its values."""
    fields = smooth_fields(system)
    rough = [part for field in fields for part in field.roughness()]
    weights = jnp.broadcast_to(jnp.asarray(smoothness, dtype=float), (len(rough),))
    values = [_WHISPER * field.values() for field in fields]
    return jnp.concatenate([jnp.zeros(1), *(w * part for w, part in zip(weights, rough, strict=True)), *values])


def choose_smoothness(
    normal: Normal, theta: Float[Array, " k"], rebuild: Callable[[Array], AbstractEnergetic], count: int
) -> Float[np.ndarray, " directions"]:
    """The weights of roughness that the data themselves prefer: the largest evidence (marginal likelihood).

    With the residuals linear around ``theta`` and the roughness linear in it, the evidence of a choice is a formula:
    the best fit that the prior allows, and how much of the prior's volume that fit leaves. Weights are improved one
    after the other. ``count`` residuals beyond what the noise explains widen the noise.
    """
    excess = _excess(normal, count)
    matrix, gradient, at = (np.asarray(x) for x in (normal.matrix / excess, normal.gradient / excess, theta))

    def parts(t):
        return [part for field in smooth_fields(rebuild(t)) for part in field.roughness()]

    penalties = [np.asarray(j.T @ j) for j in jax.jacfwd(parts)(theta)]
    touched = [np.flatnonzero(np.diag(penalty)) for penalty in penalties]
    shared = [np.unique(np.concatenate([b for b in touched if np.intersect1d(a, b).size])) for a in touched]
    whisper = _WHISPER**2 * np.eye(len(at))

    def evidence(weights: np.ndarray, changed: int) -> float:
        """Up to terms that do not depend on the changed weight: of the prior's volume, only its own field's counts."""
        prior = np.tensordot(weights**2, penalties, axes=1) + whisper
        scale = np.sqrt(np.diag(matrix) + np.diag(prior))
        scaled = (matrix + prior) / np.outer(scale, scale) + 1e-12 * np.eye(len(at))  # as much as rounding takes away
        posterior = scipy.linalg.cho_factor(scaled, lower=True)
        step = -scipy.linalg.cho_solve(posterior, (gradient + prior @ at) / scale) / scale
        fit = 2 * gradient @ step + step @ matrix @ step + (at + step) @ prior @ (at + step)
        field = np.ix_(shared[changed], shared[changed])
        return np.linalg.slogdet(prior[field])[1] - fit - 2.0 * np.sum(np.log(scale * np.diag(posterior[0])))

    weights = np.full(len(penalties), 1.0)
    for _ in range(_SWEEPS):
        for i in range(len(weights)):
            tried = [np.where(np.arange(len(weights)) == i, w, weights) for w in _WEIGHTS]
            weights = max(tried, key=lambda w, i=i: evidence(w, i))
    return np.sqrt(excess) * weights


_WEIGHTS = tuple(10.0 ** (k / 2) for k in range(-4, 11))
_SWEEPS, _ROUNDS = 2, 4

"""Second-order identification: few coefficients, fitted by Levenberg–Marquardt.

Two stages. :func:`match` fits accelerations, q'' as the model predicts it against q'' from a local polynomial smoother
(:mod:`phast.estimation.derivatives`): parallel over all samples, and good enough to start from anywhere. :func:`shoot`
then fits positions over windows through the model's own time steps; the state at the start of each window is
eliminated from the normal equations, so no velocity is ever needed. The information matrix that is left says what the
data determine: its inverse is the covariance of the coefficients, and its null space is what more of the
same data cannot determine (:mod:`phast.analysis.identifiability`).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.components.parameter import parameter_count
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import AbstractEnergetic, PortHamiltonian
from phast.dynamics.integrators import Timestep
from phast.errors import FitError, Reason
from phast.estimation.forecaster import Core
from phast.estimation.inputs import held_over, steps_of
from phast.estimation.moving_horizon import Evidence, Noise, balance, fit_window, improve
from phast.fitting.coefficients import coefficients_of, lower_bounds
from phast.fitting.levenberg_marquardt import Normal, in_chunks, levenberg_marquardt, no_equations
from phast.fitting.smoothness import ROUNDS, WEIGHTS, choose_smoothness, excess_misfit, field_count, roughness


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
    batches = in_chunks((windows.q, held_over(windows)), min(chunk, len(windows)))
    states = _first_states(core, windows.manifold, batches, windows.dt)
    problem, floor = _Shooting(core, rebuild, windows.manifold, noise), lower_bounds(core.system)
    positions = windows.length * windows.manifold.size  # of a window

    def run(theta, states, weights):
        kept, states = problem.explained(theta, states, batches)
        if not kept.any():  # no window has a path that is a number
            raise FitError(Reason.UNEXPLAINED)
        count = int(kept.sum()) * positions

        def settle(theta, states):
            return levenberg_marquardt(
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

        found = settle(theta, states)
        raised = _raised(found[0], floor, found[2], count)
        if (raised != found[0]).any():
            again = settle(raised, found[1])
            found = again if again[2].cost < found[2].cost else found
        return kept, *found

    weights = np.full(field_count(core.system), 1.0 if smooth else WEIGHTS[0])
    kept, theta, states, normal = run(theta, states, weights)
    for _ in range(ROUNDS if smooth and weights.size else 0):  # the evidence is local: ask again where it led
        previous, weights = weights, choose_smoothness(normal, theta, rebuild, int(kept.sum()) * positions)
        kept, theta, states, normal = run(theta, states, weights)
        if np.allclose(weights, previous, rtol=0.1):
            break
    if not np.isfinite(normal.cost + jnp.sum(normal.matrix)):
        raise FitError(Reason.DIVERGED)
    jacobian = jax.jacfwd(lambda t: roughness(rebuild(t), jnp.asarray(weights)))(theta)
    used = int(kept.sum())
    count = used * positions
    excess = excess_misfit(normal, count)
    covariance = excess * _scaled_inverse(np.asarray(normal.matrix + jacobian.T @ jacobian))
    rms = float(np.sqrt(float(normal.cost) / count)) * balance(noise, windows.manifold.size)[0]
    evidence = Evidence(
        np.asarray(normal.matrix) / excess, covariance, rms, count, windows=kept.size, windows_left_out=kept.size - used
    )
    return Identified(rebuild(theta), evidence)


def _scaled_inverse(matrix: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """The pseudo-inverse, in units in which the diagonal is one: a coefficient's unit does not make it unknown."""
    scale = 1.0 / np.sqrt(np.maximum(np.diag(matrix), np.finfo(float).tiny))
    return np.linalg.pinv(matrix * np.outer(scale, scale), hermitian=True) * np.outer(scale, scale)


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
            felt = jnp.sum(by_x**2, axis=0)  # nothing, of the momentum of what is held all along
            scale = jnp.where(felt > _NOTHING, 1.0 / jnp.sqrt(jnp.maximum(felt, _NOTHING)), 0.0)
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

            total, local = jax.lax.scan(add, no_equations(theta.size), batches)
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


_NOTHING = 1e-200  # of squares
_OUTLYING = 25.0  # times the median misfit: a window whose path went the other way over the top tells nothing


def _raised(theta: Float[Array, " k"], floor: Float[Array, " k"], normal: Normal, count: int) -> Float[Array, " k"]:
    """Coefficients with those raised that are stuck near zero although the data ask for more.

    softplus is flat there: steps of what is trained take a positive coefficient up by one e-folding each, and from its
    floor hardly at all. A Newton step of the value x itself, -g_x/H_x, has no such trouble.
    """
    value, slope, curvature = jax.nn.softplus(theta), jax.nn.sigmoid(theta), jnp.diag(normal.matrix)
    step = -slope * normal.gradient / curvature
    pull = -normal.gradient / jnp.sqrt(curvature * excess_misfit(normal, count))  # in standard deviations
    stuck = jnp.isfinite(floor) & (step > value) & (pull > 2.0)
    raised = value + step
    return jnp.where(stuck, raised + jnp.log(-jnp.expm1(-raised)), theta)


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

"""Levenberg and Marquardt's method on normal equations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


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


# --- sums over chunks ------------------------------------------------------------------------------------------------


def in_chunks(arrays: Any, chunk: int) -> Any:
    """Each array with its leading axis cut into chunks of at most this size, as equal as leaves the fewest over."""
    count = len(jax.tree.leaves(arrays)[0])
    chunk = count // -(-count // chunk)
    return jax.tree.map(lambda x: jnp.asarray(x[: len(x) // chunk * chunk]).reshape(-1, chunk, *x.shape[1:]), arrays)


def no_equations(size: int) -> tuple[Array, Array, Array]:
    """Normal equations and cost to which those of chunks are added."""
    return jnp.zeros((size, size)), jnp.zeros(size), jnp.zeros(())

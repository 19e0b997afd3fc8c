"""Stage one of a second-order fit: accelerations.

q'' as the model predicts it is fitted to q'' from a local polynomial smoother (:mod:`phast.estimation.derivatives`):
parallel over all samples, and good enough to start from anywhere.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.estimation.derivatives import Samples
from phast.fitting.coefficients import coefficients_of, lower_bounds
from phast.fitting.levenberg_marquardt import Normal, in_chunks, levenberg_marquardt, no_equations
from phast.fitting.smoothness import roughness


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
    batches = in_chunks(samples, chunk)

    def residual(theta, q, v, a, u, bias):
        off = deviation if bias is None else jnp.maximum(deviation, bias)
        return (acceleration(rebuild(theta), q, v, u) - a) / off

    @jax.jit
    def linearise(theta, batches):
        def add(total, batch):
            r = jax.vmap(residual, (None, 0, 0, 0, 0, 0))(theta, *batch).reshape(-1)
            jacobian = jax.vmap(jax.jacrev(residual), (None, 0, 0, 0, 0, 0))(theta, *batch).reshape(-1, theta.size)
            return (total[0] + jacobian.T @ jacobian, total[1] + jacobian.T @ r, total[2] + r @ r), None

        return Normal(*jax.lax.scan(add, no_equations(theta.size), batches)[0])

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
        floor=lower_bounds(system),
        iterations=iterations,
        tolerance=1e-3,
    )
    return rebuild(theta)

"""The linear-quadratic regulator of a learned model at a target, and the input that holds it there.

A position q* can be held where an input balances the potential, G u* = ∇V(q*): with fewer inputs than coordinates that
is a condition on q*. About (q*, 0) the model's own time step is linear, x⁺ - x* = A (x - x*) + B (u - u*), and the
stabilising solution of the discrete Riccati equation,

    P = Q + Aᵀ P A - (AᵀPB + N)(R + BᵀPB)⁻¹(BᵀPA + Nᵀ),

gives the gain u = u* - K (x - x*), and ½ xᵀPx, the cost from x on for ever.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from phast.components.potential import gradient
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError

_AWAY = 0.05  # how far, in a coordinate's unit, what can be held may lie from what is asked for
_STEPS = 8


def held_at(
    system: PortHamiltonian, target: Float[np.ndarray, " n"], names: tuple[str, ...]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " inputs"]]:
    """The position nearest to the target that an input can hold, and that input.

    A learned equilibrium is never quite where it is expected; a target far from one is refused.
    """
    port = np.asarray(system.port_matrix(len(target)))
    unforced = scipy.linalg.null_space(port.T).T  # rows: the directions that no input pushes

    def unbalanced(q):
        return jnp.asarray(unforced) @ gradient(system.potential, q)

    q = np.asarray(target, dtype=float)
    for _ in range(_STEPS if len(unforced) else 0):
        slope = np.asarray(jax.jacfwd(unbalanced)(jnp.asarray(q)))
        q = q - np.linalg.lstsq(slope, np.asarray(unbalanced(jnp.asarray(q))), rcond=1e-9)[0]
    if not np.abs(q - target).max() <= _AWAY:
        raise InputError(
            f"no input holds {_named(names, target)}: the inputs do not push every coordinate, so that the others must "
            "be at rest by themselves there; choose such a position"
        )
    u = np.linalg.lstsq(port, np.asarray(gradient(system.potential, jnp.asarray(q))), rcond=None)[0]
    return q, u


def _named(names: tuple[str, ...], q: Float[np.ndarray, " n"]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in zip(names, q, strict=True))


def regulator(
    flow: Float[np.ndarray, "states both"], slope: Float[np.ndarray, "residuals both"]
) -> tuple[Float[np.ndarray, "inputs states"], Float[np.ndarray, "states states"]]:
    """(K, P) for x⁺ = [A B] (x, u) and the stage cost ½ |J (x, u)|²; ``flow`` is [A B] and ``slope`` J."""
    size = len(flow)
    a, b, weights = flow[:, :size], flow[:, size:], slope.T @ slope
    q, r, cross = weights[:size, :size], weights[size:, size:], weights[:size, size:]
    try:
        p = scipy.linalg.solve_discrete_are(a, b, q, r, s=cross)
        gain = np.linalg.solve(r + b.T @ p @ b, b.T @ p @ a + cross.T)
    except (np.linalg.LinAlgError, ValueError):
        p, gain = np.full((size, size), np.nan), np.full((b.shape[1], size), np.nan)
    if not np.isfinite(gain).all() or np.abs(np.linalg.eigvals(a - b @ gain)).max() >= 1.0:
        raise InputError("the inputs cannot stabilise the target: some motion that grows there is out of their reach")
    return gain, p


def root_of(p: Float[np.ndarray, "k k"]) -> Float[np.ndarray, "k k"]:
    """R with RᵀR = P ⪰ 0, whose rounding may make it slightly indefinite."""
    values, vectors = np.linalg.eigh(0.5 * (p + p.T))
    return np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T


def expansion(function, x: Float[Array, " states"], u: Float[Array, " inputs"]) -> Float[np.ndarray, "rows both"]:
    """The slope of ``function(x, u)`` in both."""
    size = x.shape[0]
    return np.asarray(jax.jacfwd(lambda z: function(z[:size], z[size:]))(jnp.concatenate([x, u])))

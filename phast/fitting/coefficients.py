"""The coefficients that a fit may change: as one vector, by name, and in physical units."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float

from phast.components.damping import FrictionField, PSDDamping, SplineDamping
from phast.components.parameter import AbstractLearned, Positive
from phast.dynamics.hamiltonian import AbstractEnergetic
from phast.errors import InputError

LARGEST_FIT = 2000


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


def lower_bounds(system: AbstractEnergetic) -> Float[Array, " k"]:
    """How low each trainable number may go: what becomes zero must not run away to minus infinity."""
    lowest = lambda node: jax.tree.map(lambda x: jnp.full_like(x, _limit(node)), node)  # noqa: E731
    params = eqx.filter(system, eqx.is_inexact_array)
    return ravel_pytree(jax.tree.map(lowest, params, is_leaf=lambda node: isinstance(node, Positive)))[0]


def _limit(node: Any) -> float:
    return _NEAR_ZERO if isinstance(node, Positive) else -jnp.inf


def names_of(system: AbstractEnergetic) -> list[tuple[str, str]]:
    """(name, kind) of every trainable number, in raveled order; the kind is "positive", "field" or "plain"."""
    names = []
    for path, leaf in trained_leaves(system):
        name, kind = _spelled(path), "positive" if isinstance(leaf, Positive) else "plain"
        if not isinstance(leaf, AbstractLearned) and name.endswith((".coefficients", ".entries")):
            name, kind = name.rpartition(".")[0], "field"
        size = sum(x.size for x in jax.tree.leaves(leaf))
        names += [(name if size == 1 or kind == "field" else f"{name}[{i}]", kind) for i in range(size)]
    return names


def in_units(system: AbstractEnergetic) -> list[tuple[float, float]]:
    """The physical value behind every trainable number, and by how much it changes with it; as in :func:`names_of`."""
    found = []
    for _, leaf in trained_leaves(system):
        along = jax.tree.map(jnp.ones_like, leaf)
        pair = jax.jvp(lambda x: x() if isinstance(x, AbstractLearned) else x, (leaf,), (along,))
        found += zip(*(np.asarray(x).reshape(-1).tolist() for x in pair), strict=True)
    return found


def scales_of(system: AbstractEnergetic) -> Float[np.ndarray, " k"]:
    """The magnitude that every trainable number is expected to have, in physical units; as in :func:`names_of`."""
    scales = [
        np.full(sum(x.size for x in jax.tree.leaves(leaf)), leaf.scale if isinstance(leaf, AbstractLearned) else 1.0)
        for _, leaf in trained_leaves(system)
    ]
    return np.concatenate(scales)


def at_floor(system: AbstractEnergetic) -> Bool[np.ndarray, " k"]:
    """Which trainable numbers stand at their lower bound: positive coefficients that the data would rather have below
    zero."""
    return np.asarray(coefficients_of(system)[0] <= lower_bounds(system))


def through_softplus(system: AbstractEnergetic) -> Bool[np.ndarray, " k"]:
    """Which trained numbers become positive by softplus, which is flat far below zero: a step there means little.

    Positive coefficients, entries of friction fields, and the diagonals of Cholesky factors.
    """
    marks = [np.broadcast_to(_made_positive(system, path, leaf), _shape(leaf)) for path, leaf in trained_leaves(system)]
    return np.concatenate([mark.reshape(-1) for mark in marks])


def _made_positive(system: AbstractEnergetic, path: tuple, leaf: AbstractLearned | Array) -> Bool[np.ndarray, "..."]:
    node: Any = system
    for key in path[:-1]:
        node = getattr(node, key.name) if hasattr(key, "name") else node[key.idx]
    if isinstance(leaf, Positive) or isinstance(node, FrictionField):
        return np.array(True)
    if not isinstance(node, SplineDamping | PSDDamping):
        return np.array(False)
    count = _shape(leaf)[-1]  # n (n + 1) / 2 of a factor, the diagonal first
    return np.arange(count) < round((np.sqrt(8 * count + 1) - 1) / 2)


def _shape(leaf: AbstractLearned | Array) -> tuple[int, ...]:
    return jax.tree.leaves(leaf)[0].shape


def trained_leaves(system: AbstractEnergetic) -> list[tuple[tuple, AbstractLearned | Array]]:
    """Where in the system something is trained, and what: learned coefficients whole, arrays elsewhere."""
    params = eqx.filter(system, eqx.is_inexact_array)
    return jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda node: isinstance(node, AbstractLearned))[0]


def _spelled(path: tuple) -> str:
    """``potential[0].scale``: attributes with dots, places in a sum in brackets."""
    words = (f"[{key.idx}]" if isinstance(key, jax.tree_util.SequenceKey) else f".{key.name}" for key in path)
    return "".join(word for word in words if word != ".parts").lstrip(".")

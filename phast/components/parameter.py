"""Given and learned coefficients.

Equinox trains inexact arrays only. So a *given* coefficient is a Python float (or a tuple of floats) and a
*learned* one is a leaf of :class:`AbstractLearned`: :class:`Positive`, :class:`Real` or :class:`Bounded`. Components
read all of them through :func:`value_of` and never ask which it is.
"""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.data.manifold import Manifold
from phast.errors import InputError

jax.tree_util.register_static(Manifold)  # components hold one; it is no array, and is compared as a whole


class AbstractLearned(eqx.Module):
    """A learned number or array, by element a smooth function of what is trained."""

    @abstractmethod
    def __call__(self) -> Float[Array, "*shape"]: ...

    @property
    @abstractmethod
    def scale(self) -> float:
        """The magnitude that the coefficient is expected to have: against it an uncertainty is small or not."""


class Positive(AbstractLearned):
    """A learned coefficient (or array of them) that stays positive: unit · softplus(raw), with ``raw`` trained.

    ``unit`` is the magnitude that the coefficient is expected to have, so that 10⁻⁴ kg m² is as easy to find as 1.
    """

    raw: Float[Array, "*shape"]
    unit: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_unit(self.unit)

    @classmethod
    def starting_at(cls, value, unit: float = 1.0) -> "Positive":
        """The coefficient that begins at ``value`` > 0."""
        value = jnp.asarray(value, dtype=float) / unit
        return cls(value + jnp.log(-jnp.expm1(-value)), unit)

    @classmethod
    def uninformed(cls, *shape: int, unit: float = 1.0) -> "Positive":
        """softplus(0) = log 2 units everywhere: the start of a coefficient about which nothing is known."""
        return cls(jnp.zeros(shape), unit)

    def __call__(self):
        return self.unit * jax.nn.softplus(self.raw)

    @property
    def scale(self):
        return self.unit


class Real(AbstractLearned):
    """A learned number (or array) of either sign: unit · value, with ``value`` trained."""

    value: Float[Array, "*shape"]
    unit: float = eqx.field(static=True, default=1.0)

    def __check_init__(self):
        check_unit(self.unit)

    @classmethod
    def starting_at(cls, value, unit: float = 1.0) -> "Real":
        """The number that begins at ``value``."""
        return cls(jnp.asarray(value, dtype=float) / unit, unit)

    def __call__(self):
        return self.unit * self.value

    @property
    def scale(self):
        return self.unit


class Bounded(AbstractLearned):
    """A learned number (or array) between -bound and bound: bound · tanh(raw), with ``raw`` trained."""

    raw: Float[Array, "*shape"]
    bound: float = eqx.field(static=True, default=0.999)

    @classmethod
    def starting_at(cls, value, bound: float = 0.999) -> "Bounded":
        """The number that begins at ``value``, smaller than the bound."""
        return cls(jnp.arctanh(jnp.asarray(value, dtype=float) / bound), bound)

    @classmethod
    def uninformed(cls, *shape: int, bound: float = 0.999) -> "Bounded":
        """Zero."""
        return cls(jnp.zeros(shape), bound)

    def __call__(self):
        return self.bound * jnp.tanh(self.raw)

    @property
    def scale(self):
        return self.bound


Coefficient = float | tuple | Positive
Offset = Coefficient | Real


def is_trained(leaf: Any) -> bool:
    """What training moves: floating-point arrays of JAX. NumPy's hold what is known about a model, not the model."""
    return isinstance(leaf, jax.Array) and eqx.is_inexact_array(leaf)


def value_of(coefficient: Offset | Bounded | Array) -> Float[Array, "*shape"]:
    """The number or array behind a given or a learned coefficient."""
    return coefficient() if isinstance(coefficient, AbstractLearned) else jnp.asarray(coefficient, dtype=float)


def check_unit(unit: float) -> None:
    """Refuse a unit that would make a positive coefficient anything else."""
    if not 0.0 < unit < float("inf"):
        raise InputError(f"the unit of a coefficient is a positive number, not {unit}")


def parameter_count(model: Any) -> int:
    """Trainable numbers in a model."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, is_trained)))


def in_working_precision(model: Any) -> Any:
    """The same numbers as wide as the process computes: models of either precision share a page."""
    width = jnp.result_type(float)
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, width)) if eqx.is_inexact_array(x) else x, model)

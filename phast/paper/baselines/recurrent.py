"""Recurrent blocks: gated ones (GRU, LSTM) and linear ones (S5, LinOSS, D-LinOSS).

A diagonal state space whose states come in conjugate pairs is a row of real 2x2 recurrences, one per pair; an
oscillator (z, x) is one too. All parameters are real: the published counts are those of real numbers (a pair counts
twice, for Re and Im), and an optimiser needs no convention for complex gradients. What a sample adds to a state is one
matrix product for the whole sequence; what is left in the loop over time is a dozen multiplications per pair, so a
plain ``lax.scan`` is faster on a CPU than an associative one, which moves the sequence through memory log T times.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, PRNGKeyArray

from phast.errors import InputError
from phast.paper.baselines.sequence import AbstractBlock, Affine, LayerNorm

# --- gated -----------------------------------------------------------------------------------------------------------


class GRU(AbstractBlock):
    """h' = (1 - z) n + z h with r, z = σ(·) and n = tanh(W x + b + r (U h + c)); two biases per gate."""

    into: Affine
    back: Affine

    @classmethod
    def create(cls, inputs: int, width: int, *, key: PRNGKeyArray) -> "GRU":
        return cls(*_gates(inputs, width, 3, key))

    def __call__(self, x, key=None):
        return jax.lax.scan(lambda h, drive: (self._advance(h, drive),) * 2, self.start(0), self.into(x))[1]

    def start(self, length):
        return jnp.zeros_like(self.back.bias, shape=self.back.weight.shape[:1])

    def update(self, cache, x):
        return (self._advance(cache, self.into(x)),) * 2

    def _advance(self, h, drive):
        reset, keep, new = jnp.split(self.back(h), 3)
        drive_reset, drive_keep, drive_new = jnp.split(drive, 3)
        keep = jax.nn.sigmoid(drive_keep + keep)
        return keep * h + (1.0 - keep) * jnp.tanh(drive_new + jax.nn.sigmoid(drive_reset + reset) * new)


class LSTM(AbstractBlock):
    """c' = f c + i g, h' = o tanh(c') with i, f, o = σ(·) and g = tanh(·); two biases per gate."""

    into: Affine
    back: Affine

    @classmethod
    def create(cls, inputs: int, width: int, *, key: PRNGKeyArray) -> "LSTM":
        return cls(*_gates(inputs, width, 4, key))

    def __call__(self, x, key=None):
        def body(state, drive):
            state = self._advance(state, drive)
            return state, state[0]

        return jax.lax.scan(body, self.start(0), self.into(x))[1]

    def start(self, length):
        rest = jnp.zeros_like(self.back.bias, shape=self.back.weight.shape[:1])
        return rest, rest

    def update(self, cache, x):
        state = self._advance(cache, self.into(x))
        return state, state[0]

    def _advance(self, state, drive):
        h, c = state
        enter, forget, new, out = jnp.split(drive + self.back(h), 4)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(new)
        return jax.nn.sigmoid(out) * jnp.tanh(c), c


def _gates(inputs: int, width: int, count: int, key: PRNGKeyArray) -> tuple[Affine, Affine]:
    into, back = jax.random.split(key)
    return (
        Affine.create(inputs, count * width, fan_in=width, key=into),
        Affine.create(width, count * width, key=back),
    )


# --- linear: S5 ------------------------------------------------------------------------------------------------------


class S5(AbstractBlock):
    """u + GELU(SSM(LN u)) with x' = Λx + Bu, y = Re(Cx) + D⊙u over P states, by zero-order hold over Δ = 0.01:
    Λ̄ = exp(ΛΔ), B̄ = Λ⁻¹(Λ̄ - 1)B.

    The P states are P/2 conjugate pairs of which one each is kept; with Re and Im as real numbers, Λ is P of them, B
    and C are dP, and with D and the norm a block has 2dP + P + 3d: the published count. Re Λ is clipped at -1e-4.
    """

    norm: LayerNorm
    decay: Float[Array, " pairs"]
    frequency: Float[Array, " pairs"]
    into: tuple[Float[Array, "d pairs"], Float[Array, "d pairs"]]  # Re B, Im B
    out: tuple[Float[Array, "pairs d"], Float[Array, "pairs d"]]  # Re C, Im C
    skip: Float[Array, " d"]
    step: float = 0.01

    @classmethod
    def create(cls, width: int, *, states: int = 64, key: PRNGKeyArray) -> "S5":
        """HiPPO-LegS-N: the normal part of the matrix that keeps Legendre coefficients of its past, diagonalised."""
        if states < 2 or states % 2:
            raise InputError(f"S5 keeps conjugate pairs: an even number of states, not {states}")
        b_key, c_key, d_key = jax.random.split(key, 3)
        eigenvalues, vectors = hippo_pairs(states)
        b = jax.random.normal(b_key, (width, states)) * width**-0.5
        c = jax.random.normal(c_key, (states, width)) * states**-0.5
        return cls(
            LayerNorm.create(width),
            *_parts(eigenvalues),
            tuple(b @ part for part in _parts(vectors.conj())),
            tuple(part @ c for part in _parts(vectors.T)),
            jax.random.normal(d_key, (width,)),
        )

    def eigenvalues(self) -> Complex[Array, " pairs"]:
        """Λ, clipped."""
        return jax.lax.complex(jnp.minimum(self.decay, -1e-4), self.frequency)

    def discretised(self) -> tuple[Complex[Array, " pairs"], Complex[Array, "d pairs"]]:
        """Λ̄ and B̄."""
        eigenvalues = self.eigenvalues()
        return jnp.exp(eigenvalues * self.step), jnp.expm1(eigenvalues * self.step) / eigenvalues * jax.lax.complex(
            *self.into
        )

    def __call__(self, x, key=None):
        u = self.norm(x)
        advance, (real, imaginary) = self._recurrence()

        def body(state, drive):
            return (advance(state, drive),) * 2

        return self._answer(x, u, jax.lax.scan(body, self.start(0), (u @ real, u @ imaginary))[1])

    def start(self, length):
        return jnp.zeros_like(self.decay), jnp.zeros_like(self.decay)

    def update(self, cache, x):
        u = self.norm(x)
        advance, (real, imaginary) = self._recurrence()
        state = advance(cache, (u @ real, u @ imaginary))
        return state, self._answer(x, u, state)

    def _recurrence(self):
        """x, drive -> Λ̄x + drive on pairs (Re, Im), and the two parts of B̄."""
        turn, into = self.discretised()
        a, b = turn.real, turn.imag

        def advance(state, drive):
            return a * state[0] - b * state[1] + drive[0], b * state[0] + a * state[1] + drive[1]

        return advance, (into.real, into.imag)

    def _answer(self, x, u, state):
        """Both of a conjugate pair count: their sum is twice the real part of one."""
        y = 2.0 * (state[0] @ self.out[0] - state[1] @ self.out[1])
        return x + jax.nn.gelu(y + self.skip * u)


def _parts(numbers: Complex[np.ndarray, "..."]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    return jnp.asarray(numbers.real, dtype=float), jnp.asarray(numbers.imag, dtype=float)


def hippo_pairs(states: int) -> tuple[Complex[np.ndarray, " pairs"], Complex[np.ndarray, "P pairs"]]:
    """Eigenvalues with positive imaginary part and eigenvectors of HiPPO-LegS-N.

    The matrix is -½I plus the skew K_nk = -½ sqrt((2n+1)(2k+1)) for n > k, so Re Λ = -½ and the vectors are unitary.
    """
    root = np.sqrt(2.0 * np.arange(states) + 1.0)
    lower = np.tril(np.outer(root, root), -1)
    frequencies, vectors = np.linalg.eigh(-0.5j * (lower.T - lower))
    kept = frequencies > 0
    return -0.5 + 1j * frequencies[kept], vectors[:, kept]


# --- linear: oscillators ---------------------------------------------------------------------------------------------


class Oscillators(NamedTuple):
    """z_k = (z - dt A x)/S + f_k, x_k = x + dt z_k with f = dt Bu/S: every discretisation below, by its S."""

    stiffness: Float[Array, " P"]
    scale: Float[Array, " P"]
    dt: Float[Array, " P"]

    def advance(self, state, force):
        z, x = state
        z = (z - self.dt * self.stiffness * x) / self.scale + force
        return z, x + self.dt * z

    def run(self, u: Float[Array, "T d"], into: Float[Array, "d P"]) -> Float[Array, "T P"]:
        """x after every sample, from rest."""

        def body(state, force):
            state = self.advance(state, force)
            return state, state[1]

        rest = jnp.zeros_like(self.dt)
        return jax.lax.scan(body, (rest, rest), self.forces(u, into))[1]

    def forces(self, u, into):
        return u @ (into * (self.dt / self.scale))


class LinOSS(AbstractBlock):
    """u + GELU(SSM(LN u)) with d forced oscillators z' = -Ax + Bu, x' = z, y = Cx + D⊙u, A = relu(Â) ≥ 0, dt = 1.

    ``implicit`` (IM), with S = 1 + dt²A: z_k = (z - dt A x + dt Bu)/S, x_k = (dt z + x + dt² Bu)/S = x + dt z_k.
    Otherwise IMEX, with S = 1: z_k = z + dt(-A x + Bu), x_k = x + dt z_k, which is stable while dt²A ≤ 4.
    A is d numbers, B and C are d² each (real), and with D and the norm a block has 2d² + 4d.
    """

    norm: LayerNorm
    stiffness: Float[Array, " d"]
    into: Float[Array, "d d"]
    out: Float[Array, "d d"]
    skip: Float[Array, " d"]
    step: float = 1.0
    implicit: bool = True

    @classmethod
    def create(cls, width: int, *, implicit: bool = True, key: PRNGKeyArray) -> "LinOSS":
        a_key, b_key, c_key, d_key = jax.random.split(key, 4)
        bound = width**-0.5
        return cls(
            LayerNorm.create(width),
            jax.random.uniform(a_key, (width,)),
            jax.random.uniform(b_key, (width, width), minval=-bound, maxval=bound),
            jax.random.uniform(c_key, (width, width), minval=-bound, maxval=bound),
            jax.random.normal(d_key, (width,)),
            implicit=implicit,
        )

    def oscillators(self) -> Oscillators:
        a = jax.nn.relu(self.stiffness)
        scale = 1.0 + self.step**2 * a if self.implicit else jnp.ones_like(a)
        return Oscillators(a, scale, jnp.full_like(a, self.step))

    def __call__(self, x, key=None):
        u = self.norm(x)
        return self._answer(x, u, self.oscillators().run(u, self.into))

    def start(self, length):
        return jnp.zeros_like(self.stiffness), jnp.zeros_like(self.stiffness)

    def update(self, cache, x):
        u, oscillators = self.norm(x), self.oscillators()
        state = oscillators.advance(cache, oscillators.forces(u, self.into))
        return state, self._answer(x, u, state[1])

    def _answer(self, x, u, seen):
        return x + jax.nn.gelu(seen @ self.out + self.skip * u)


class DLinOSS(AbstractBlock):
    """u + GLU(GELU(SSM(LN u))) with P = d/2 damped oscillators z' = -Ax - Gz + Bu, x' = z, y = Re(Cx) + D⊙u.

    With S = 1 + dt G: z_k = (z - dt A x + dt Bu)/S, x_k = x + dt z_k, whose determinant is 1/S. G ≥ 0 and A within
    [(√S - 1)²/dt², (√S + 1)²/dt²] keep the eigenvalues a conjugate pair of modulus S^(-1/2) ≤ 1.
    A, G and dt are P numbers each, B and C complex (2Pd real numbers each), the GLU 2(d² + d).
    """

    norm: LayerNorm
    stiffness: Float[Array, " P"]
    damping: Float[Array, " P"]
    step: Float[Array, " P"]  # dt = σ(step)
    into: Float[Array, "d twice_P"]  # Re B, Im B
    out: Float[Array, "twice_P d"]  # Re C, -Im C
    skip: Float[Array, " d"]
    gate: Affine

    @classmethod
    def create(cls, width: int, *, key: PRNGKeyArray) -> "DLinOSS":
        """Eigenvalues r exp(±iθ) in a ring: r² ~ U(0.9², 1), θ ~ U(0, π)."""
        if width < 2 or width % 2:
            raise InputError(f"D-LinOSS has half as many oscillators as features: an even width, not {width}")
        keys = jax.random.split(key, 7)
        count, bound = width // 2, width**-0.5
        raw = jax.random.uniform(keys[0], (count,))
        dt = jax.nn.sigmoid(raw)
        r = jnp.sqrt(jax.random.uniform(keys[1], (count,), minval=0.9**2, maxval=1.0))
        turn = jax.random.uniform(keys[2], (count,), maxval=np.pi)
        return cls(
            LayerNorm.create(width),
            (1.0 + r**-2 - 2.0 * jnp.cos(turn) / r) / dt**2,
            (r**-2 - 1.0) / dt,
            raw,
            jax.random.uniform(keys[3], (width, 2 * count), minval=-bound, maxval=bound),
            jax.random.uniform(keys[4], (2 * count, width), minval=-bound, maxval=bound),
            jax.random.normal(keys[5], (width,)),
            Affine.create(width, 2 * width, key=keys[6]),
        )

    def oscillators(self) -> Oscillators:
        """G made non-negative and A brought into its interval; once for real and once for imaginary parts."""
        dt = jax.nn.sigmoid(self.step)
        scale = 1.0 + dt * jax.nn.relu(self.damping)
        a = jnp.clip(self.stiffness, ((jnp.sqrt(scale) - 1.0) / dt) ** 2, ((jnp.sqrt(scale) + 1.0) / dt) ** 2)
        return Oscillators(jnp.tile(a, 2), jnp.tile(scale, 2), jnp.tile(dt, 2))

    def __call__(self, x, key=None):
        u = self.norm(x)
        return self._answer(x, u, self.oscillators().run(u, self.into))

    def start(self, length):
        rest = jnp.zeros_like(self.step, shape=self.out.shape[:1])
        return rest, rest

    def update(self, cache, x):
        u, oscillators = self.norm(x), self.oscillators()
        state = oscillators.advance(cache, oscillators.forces(u, self.into))
        return state, self._answer(x, u, state[1])

    def _answer(self, x, u, seen):
        y = jax.nn.gelu(seen @ self.out + self.skip * u)
        value, gate = jnp.split(self.gate(y), 2, axis=-1)
        return x + value * jax.nn.sigmoid(gate)

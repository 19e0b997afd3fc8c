"""Recurrent blocks: gated ones, and banks of linear 2x2 recurrences (S5, LinOSS, D-LinOSS).

A diagonal state space whose states come in conjugate pairs is a bank of real 2x2 recurrences s_k = M s_{k-1} + f_k, one
per pair; an oscillator (z, x) is one too. So all three linear models share :func:`run_bank` and differ in M and f. All
parameters are real: the published counts are those of real numbers (a pair counts twice, for Re and Im), and an
optimiser needs no convention for complex gradients. A plain ``lax.scan`` over the bank is faster here than an
associative one, which moves the whole sequence through memory log T times.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Complex, Float, PRNGKeyArray

from phast.baselines.sequence import AbstractBlock, Affine, LayerNorm
from phast.errors import InputError

UNROLL = 4  # steps of a scan per loop iteration: less overhead, longer compilation

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


# --- banks of 2x2 recurrences ----------------------------------------------------------------------------------------

Bank = Float[Array, "2 2 P"]  # M[i, j, k]: what component j of recurrence k gives to component i
Pairs = Float[Array, "2 P"]


def advance_bank(bank: Bank, state: Pairs, drive: Pairs) -> Pairs:
    """s' = M s + f for every recurrence of the bank."""
    return bank[:, 0] * state[0] + bank[:, 1] * state[1] + drive


def run_bank(bank: Bank, drive: Float[Array, "T 2 P"]) -> Float[Array, "T 2 P"]:
    """The states after every sample, from rest."""

    def body(state, drive_t):
        state = advance_bank(bank, state, drive_t)
        return state, state

    return jax.lax.scan(body, jnp.zeros_like(drive[0]), drive, unroll=UNROLL)[1]


class S5(AbstractBlock):
    """u + GELU(SSM(LN u)) with x' = Λx + Bu, y = Re(Cx) + D⊙u over P states, by zero-order hold over Δ = 0.01:
    Λ̄ = exp(ΛΔ), B̄ = Λ⁻¹(Λ̄ - 1)B.

    The P states are P/2 conjugate pairs of which one each is kept; with Re and Im as real numbers, Λ is P of them, B
    and C are dP, and with D and the norm a block has 2dP + P + 3d: the published count. Re Λ is clipped at -1e-4.
    """

    norm: LayerNorm
    decay: Float[Array, " pairs"]
    frequency: Float[Array, " pairs"]
    into: Float[Array, "d P"]  # Re B and Im B, side by side
    out: Float[Array, "P d"]  # 2 Re C over -2 Im C: both of a pair count
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
        rotated, back = vectors.conj(), vectors.T  # Vᴴb, as rows; and cV
        real, imaginary = (jnp.asarray(part, dtype=float) for part in (eigenvalues.real, eigenvalues.imag))
        return cls(
            LayerNorm.create(width),
            real,
            imaginary,
            b @ jnp.asarray(np.concatenate([rotated.real, rotated.imag], axis=1), dtype=float),
            2.0 * jnp.asarray(np.concatenate([back.real, -back.imag]), dtype=float) @ c,
            jax.random.normal(d_key, (width,)),
        )

    def eigenvalues(self) -> Complex[Array, " pairs"]:
        """Λ, clipped."""
        return jax.lax.complex(jnp.minimum(self.decay, -1e-4), self.frequency)

    def discretised(self) -> tuple[Complex[Array, " pairs"], Complex[Array, " pairs"]]:
        """Λ̄, and what B is multiplied by."""
        eigenvalues = self.eigenvalues()
        return jnp.exp(eigenvalues * self.step), jnp.expm1(eigenvalues * self.step) / eigenvalues

    def __call__(self, x, key=None):
        u = self.norm(x)
        return self._answer(x, u, run_bank(*self._bank(u)))

    def start(self, length):
        return jnp.zeros_like(self.decay, shape=(2, *self.decay.shape))

    def update(self, cache, x):
        u = self.norm(x)
        state = advance_bank(self._bank(u)[0], cache, self._bank(u)[1])
        return state, self._answer(x, u, state)

    def _bank(self, u):
        turn, hold = self.discretised()
        bank = jnp.array([[turn.real, -turn.imag], [turn.imag, turn.real]])
        real, imaginary = jnp.split(u @ self.into, 2, axis=-1)
        drive = [hold.real * real - hold.imag * imaginary, hold.imag * real + hold.real * imaginary]
        return bank, jnp.stack(drive, axis=-2)

    def _answer(self, x, u, state):
        return x + jax.nn.gelu(state.reshape(*state.shape[:-2], -1) @ self.out + self.skip * u)


def hippo_pairs(states: int) -> tuple[Complex[np.ndarray, " pairs"], Complex[np.ndarray, "P pairs"]]:
    """Eigenvalues with positive imaginary part and eigenvectors of HiPPO-LegS-N.

    The matrix is -½I plus the skew K_nk = -½ sqrt((2n+1)(2k+1)) for n > k, so Re Λ = -½ and the vectors are unitary.
    """
    root = np.sqrt(2.0 * np.arange(states) + 1.0)
    lower = np.tril(np.outer(root, root), -1)
    frequencies, vectors = np.linalg.eigh(-1j * 0.5 * (lower.T - lower))
    kept = frequencies > 0
    return -0.5 + 1j * frequencies[kept], vectors[:, kept]


class LinOSS(AbstractBlock):
    """u + GELU(SSM(LN u)) with d forced oscillators z' = -Ax + Bu, x' = z, y = Cx + D⊙u, A = relu(Â) ≥ 0, dt = 1.

    ``implicit`` (IM), with S = 1 + dt²A: z_k = (z - dt A x + dt Bu)/S, x_k = x + dt z_k.
    Otherwise IMEX: z_k = z + dt(-A x + Bu), x_k = x + dt z_k, which is stable while dt²A ≤ 4.
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

    def bank(self) -> Bank:
        """M of (z, x)."""
        a, dt = jax.nn.relu(self.stiffness), self.step
        one = jnp.ones_like(a)
        if self.implicit:
            return jnp.array([[one, -dt * a], [dt * one, one]]) / (1.0 + dt**2 * a)
        return jnp.array([[one, -dt * a], [dt * one, 1.0 - dt**2 * a]])

    def __call__(self, x, key=None):
        u = self.norm(x)
        return self._answer(x, u, run_bank(self.bank(), self._drive(u)))

    def start(self, length):
        return jnp.zeros_like(self.stiffness, shape=(2, *self.stiffness.shape))

    def update(self, cache, x):
        u = self.norm(x)
        state = advance_bank(self.bank(), cache, self._drive(u))
        return state, self._answer(x, u, state)

    def _drive(self, u):
        """What Bu adds to (z, x): x_k = x + dt z_k in both forms."""
        pull = self.step * (u @ self.into)
        if self.implicit:
            pull = pull / (1.0 + self.step**2 * jax.nn.relu(self.stiffness))
        return jnp.stack([pull, self.step * pull], axis=-2)

    def _answer(self, x, u, state):
        return x + jax.nn.gelu(state[..., 1, :] @ self.out + self.skip * u)


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
    into: Float[Array, "d twice_P"]
    out: Float[Array, "twice_P d"]
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

    def constants(self) -> tuple[Float[Array, " P"], Float[Array, " P"], Float[Array, " P"]]:
        """(A, S, dt) as they act: G made non-negative and A brought into its interval."""
        dt = jax.nn.sigmoid(self.step)
        s = 1.0 + dt * jax.nn.relu(self.damping)
        a = jnp.clip(self.stiffness, ((jnp.sqrt(s) - 1.0) / dt) ** 2, ((jnp.sqrt(s) + 1.0) / dt) ** 2)
        return a, s, dt

    def bank(self) -> Bank:
        """M of (z, x), for the real and again for the imaginary parts of the oscillators."""
        a, s, dt = self.constants()
        return jnp.tile(jnp.array([[1.0 / s, -dt * a / s], [dt / s, 1.0 - dt**2 * a / s]]), 2)

    def __call__(self, x, key=None):
        u = self.norm(x)
        return self._answer(x, u, run_bank(self.bank(), self._drive(u)))

    def start(self, length):
        return jnp.zeros_like(self.out, shape=(2, self.out.shape[0]))

    def update(self, cache, x):
        u = self.norm(x)
        state = advance_bank(self.bank(), cache, self._drive(u))
        return state, self._answer(x, u, state)

    def _drive(self, u):
        _, s, dt = self.constants()
        pull = jnp.tile(dt / s, 2) * (u @ self.into)
        return jnp.stack([pull, jnp.tile(dt, 2) * pull], axis=-2)

    def _answer(self, x, u, state):
        y = jax.nn.gelu(state[..., 1, :] @ self.out + self.skip * u)
        value, gate = jnp.split(self.gate(y), 2, axis=-1)
        return x + value * jax.nn.sigmoid(gate)

"""The plant: a port-Hamiltonian system between two samples, its input held, integrated to tight tolerance.

A closed loop is judged on the true system, never on the integrator that a model was learned with.
"""

import diffrax
import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import State
from phast.errors import InputError

TOLERANCE = 1e-10
_MOST_STEPS = 4096


class Plant(eqx.Module):
    """A system with an input port, sampled every ``dt``; ``limits`` is the largest magnitude of each input.

    A plant is called with a state and an input and returns the state one sample later: NaN where the motion cannot be
    followed to the tolerance.
    """

    system: PortHamiltonian
    manifold: Manifold = eqx.field(static=True)
    dt: float
    limits: tuple[float, ...] | None = None

    def __check_init__(self):
        if self.inputs < 1:
            raise InputError("this system has no input port, so nothing can drive it: give one with a port G")
        if not self.dt > 0.0:
            raise InputError(f"dt={self.dt}: give the time between samples, a positive number")
        if self.limits is not None and (len(self.limits) != self.inputs or not min(self.limits) > 0.0):
            raise InputError(f"limits={self.limits}: give {self.inputs} positive number(s), one for each input")

    @property
    def inputs(self) -> int:
        """How many inputs there are."""
        return self.system.input_count(self.manifold.size)

    def saturated(self, u: Float[Array, " inputs"]) -> Float[Array, " inputs"]:
        """The input that the actuators apply when ``u`` is asked for."""
        if self.limits is None:
            return u
        most = jnp.asarray(self.limits, u.dtype)
        return jnp.clip(u, -most, most)

    def port_output(self, q: Float[Array, " n"], p: Float[Array, " n"]) -> Float[Array, " inputs"]:
        """y = Gᵀ ∂H/∂p."""
        return self.system.port_output(q, p)

    def __call__(self, q: Float[Array, " n"], p: Float[Array, " n"], u: Float[Array, " inputs"]) -> State:
        """The state one sample later, ``u`` held."""
        n = q.shape[0]

        def field(_, x, applied):
            return jnp.concatenate(self.system.vector_field(x[:n], x[n:], applied))

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            diffrax.Dopri8(),
            0.0,
            self.dt,
            self.dt,
            jnp.concatenate([q, p]),
            self.saturated(u),
            stepsize_controller=diffrax.PIDController(rtol=TOLERANCE, atol=TOLERANCE),
            adjoint=diffrax.ForwardMode(),
            max_steps=_MOST_STEPS,
            throw=False,
        )
        assert solution.ys is not None  # the end is saved
        reached = jnp.where(diffrax.is_successful(solution.result), solution.ys[-1], jnp.nan)
        return reached[:n], reached[n:]

"""The same predictive control by CasADi and IPOPT: the peer of :mod:`phast.control.predictive` (extra ``mpc``).

The learned cart-pole is transcribed with its coefficients and its time step, the classical Runge–Kutta method, into a
problem in all states and inputs at once (multiple shooting), with the same cost and limits. IPOPT gets what helps it:
exact derivatives, compiled by the system's compiler or from one expanded graph, and at each sample its last solution
moved on by one, with the multipliers, and a small barrier.
"""

import contextlib
import tempfile

import casadi
import numpy as np
from jaxtyping import Float

from phast.components.parameter import value_of
from phast.control.predictive import PredictiveControl
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta

_OPTIONS = {
    "ipopt.print_level": 0,
    "ipopt.sb": "yes",
    "print_time": False,
    "ipopt.warm_start_init_point": "yes",
    "ipopt.mu_init": 1e-6,
    "ipopt.warm_start_bound_push": 1e-8,
    "ipopt.warm_start_mult_bound_push": 1e-8,
}
_EXPANDED = {"expand": True}  # into one graph of scalars: quicker where it is interpreted
_COMPILED = {  # the folder is removed, so that nothing need be cleaned up
    "jit": True,
    "compiler": "shell",
    "jit_cleanup": False,
    "jit_options": {"flags": ["-O2"], "cleanup": False},
}


def transcribed(system: PortHamiltonian, transition: RungeKutta) -> casadi.Function:
    """The time step of a cart-pole as a function of (q, p) and u."""
    x, u = casadi.SX.sym("x", 4), casadi.SX.sym("u", 1)
    cart, pole, length = (float(value_of(getattr(system.mass, name))) for name in ("cart", "pole", "length"))
    weigh, centre = _gravity(system)
    drag = np.broadcast_to(np.asarray(value_of(system.damping.viscous)), (2,))
    coupling = pole * length * casadi.cos(x[1])
    mass = casadi.blockcat([[cart + pole, coupling], [coupling, pole * length**2]])
    v = casadi.solve(mass, x[2:])
    energy = weigh * (1.0 - casadi.cos(x[1] - centre)) + 0.5 * casadi.dot(x[2:], v)
    force = -casadi.gradient(energy, x)[:2] - casadi.DM(drag) * v + casadi.DM(np.asarray(system.port_matrix(2))) @ u
    field = casadi.Function("field", [x, u], [casadi.vertcat(v, force)])
    state = x
    for piece in map(float, transition.timestep.pieces()):
        k1 = field(state, u)
        k2 = field(state + 0.5 * piece * k1, u)
        k3 = field(state + 0.5 * piece * k2, u)
        k4 = field(state + piece * k3, u)
        state = state + piece / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
    return casadi.Function("step", [x, u], [state, v], ["x", "u"], ["next", "v"])


def _gravity(system: PortHamiltonian) -> tuple[float, float]:
    """Of the pole: the strength and the centre of its cosine."""
    cosine = system.potential.template  # of the pole alone: Some(Cosine, (1,))
    return float(np.ravel(value_of(cosine.amplitudes))[0]), float(np.ravel(value_of(cosine.centre))[0])


def _solver(nlp: dict, compiled: bool) -> casadi.Function:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # where CasADi leaves what it compiles
        return casadi.nlpsol("solver", "ipopt", nlp, _OPTIONS | (_COMPILED if compiled else _EXPANDED))


class Ipopt:
    """The optimal control problem of a controller, solved to convergence at every sample."""

    def __init__(self, controller: PredictiveControl, *, compiled: bool = True):
        problem, horizon = controller.problem, controller.horizon
        step = transcribed(problem.core.system, problem.core.transition)
        position, velocity, effort, outside = (np.asarray(root) for root in problem.roots)
        target, holding, low, high = (
            np.asarray(part) for part in (problem.target, problem.holding, problem.low, problem.high)
        )
        bounded = [int(i) for i in np.flatnonzero(np.isfinite(low) | np.isfinite(high))]
        first = casadi.MX.sym("first", 4)
        xs, us = casadi.MX.sym("x", 4, horizon), casadi.MX.sym("u", 1, horizon)
        here = casadi.horzcat(first, xs[:, :-1])
        ahead, v = step.map(horizon)(here, us)
        residuals = [position[i] * (here[i, :] - target[i]) for i in range(2)]
        residuals += [velocity[i] * v[i, :] for i in range(2)]
        residuals += [effort[0] * (us - holding[0])]
        residuals += [float(outside) * casadi.fmax(here[i, :] - high[i], 0.0) for i in bounded]
        residuals += [float(outside) * casadi.fmin(here[i, :] - low[i], 0.0) for i in bounded]
        end = xs[:, -1] - casadi.DM(np.concatenate([target, [0.0, 0.0]]))
        ending = casadi.DM(np.asarray(problem.terminal)) @ end
        total = casadi.sumsqr(casadi.vertcat(*residuals)) + casadi.sumsqr(ending)
        unknowns = casadi.vertcat(casadi.vec(xs), casadi.vec(us))
        nlp = {"x": unknowns, "p": first, "f": 0.5 * total, "g": casadi.vec(xs - ahead)}
        self.solver = _solver(nlp, compiled)
        most = float(problem.limits[0])
        self.bounds = np.concatenate([np.full(4 * horizon, np.inf), np.full(horizon, most)])
        self.horizon, self.last = horizon, None

    def solve(self, x: Float[np.ndarray, "4"]) -> tuple[float, float]:
        """The first input of the optimal plan from ``x``, and what the plan costs."""
        begin = {"x0": np.concatenate([np.tile(x, self.horizon), np.zeros(self.horizon)])} if self.last is None else {}
        found = self.solver(**(begin or self.last), p=x, lbx=-self.bounds, ubx=self.bounds, lbg=0.0, ubg=0.0)
        plan = np.asarray(found["x"]).ravel()
        self.last = {
            "x0": self._moved_on(plan),
            "lam_x0": self._moved_on(np.asarray(found["lam_x"]).ravel()),
            "lam_g0": _later(np.asarray(found["lam_g"]).ravel(), 4),
        }
        return float(plan[4 * self.horizon]), float(found["f"])

    def _moved_on(self, plan: np.ndarray) -> np.ndarray:
        states, inputs = plan[: 4 * self.horizon], plan[4 * self.horizon :]
        return np.concatenate([_later(states, 4), _later(inputs, 1)])


def _later(rows: np.ndarray, size: int) -> np.ndarray:
    """One sample later, the last one repeated."""
    return np.concatenate([rows[size:], rows[-size:]])

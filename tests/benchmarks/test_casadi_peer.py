"""The CasADi peer has the model and the problem of ours: the same time step, and the same optimum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import phast
from phast.components.mass import CartPoleMass
from phast.control.riccati import plan_cost
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware
from phast.paper.cli.bench import speed_benchmarks
from phast.paper.rigs import RIGS

pytest.importorskip("casadi")


def test_it_transcribes_the_time_step_and_finds_the_same_optimum():
    with jax.enable_x64(True):
        peer = speed_benchmarks()._casadi_peer()
        mass = CartPoleMass(*map(phast.Positive.starting_at, (1.1, 0.3, 0.5)))
        pole = phast.Some(phast.Cosine(phast.Positive.starting_at([1.5]), phast.Real.starting_at([0.01])), (1,))
        system = phast.PortHamiltonian(pole, mass, phast.Friction((0.5, 0.01)), port=((1.0,), (0.0,)))
        step = phast.RungeKutta(phast.Timestep(0.02, 2))
        q, p, u = np.array([0.1, 3.0]), np.array([0.2, -0.03]), np.array([2.0])
        found = np.asarray(peer.transcribed(system, step)(np.concatenate([q, p]), u)[0]).ravel()
        model = ModelAware(Core(system, step), RIGS["cart-pole"].manifold, 0.02)
        np.testing.assert_allclose(found, np.concatenate(model.core(*map(jnp.asarray, (q, p, u)))), rtol=1e-12)

        control = RIGS["cart-pole"].control(model, 10)
        x = np.concatenate([q, p])
        plan = jax.jit(lambda x: control.started(x))(jnp.asarray(x))
        first, optimum = peer.Ipopt(control, compiled=False).solve(x)
        assert float(plan_cost(control.problem, plan)) == pytest.approx(optimum, rel=1e-6)
        assert float(plan.u[0, 0]) == pytest.approx(first, abs=1e-3)

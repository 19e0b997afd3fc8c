"""Time steps as ONNX, run by ONNX Runtime."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from doubles import wrapped

from phast.components.damping import ConstantDamping, Friction
from phast.components.mass import CartPoleMass, ConstantMass
from phast.components.potential import Cosine
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import (
    AbstractTransition,
    ExactDamping,
    ImplicitMidpoint,
    RungeKutta,
    Timestep,
    Transition,
)
from phast.errors import InputError
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import ModelAware

pytestmark = pytest.mark.usefixtures("float64")
DT, ANGLE, RAIL = 0.02, Manifold.parse("theta:angle"), Manifold.parse("x", "theta:angle")


def pendulum() -> ModelAware:
    system = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), Friction(viscous=0.2, coulomb=0.1))
    return ModelAware(Core(system, RungeKutta(Timestep(DT, 2))), ANGLE, DT)


def cart(transition: AbstractTransition) -> ModelAware:
    system = PortHamiltonian(Cosine((0.0, 9.81)), CartPoleMass(), ConstantDamping((0.1, 0.1)), ((1.0,), (0.0,)))
    return ModelAware(Core(system, transition), RAIL, DT)


CASES = {
    "explicit": (pendulum, ()),
    "driven": (lambda: cart(RungeKutta(Timestep(DT))), ("force",)),
    "implicit": (lambda: cart(Transition(ImplicitMidpoint(), ExactDamping(), Timestep(DT))), ()),
}


@pytest.mark.parametrize("name", CASES)
def test_a_graph_steps_as_the_model_does(name, tmp_path):
    pytest.importorskip("jax2onnx", reason="needs the extra onnx: pip install 'phast-physics[onnx]'")
    runtime = pytest.importorskip("onnxruntime")
    runtime.set_default_logger_severity(3)
    make, inputs = CASES[name]
    model = make()
    session = runtime.InferenceSession(wrapped(model, inputs).export(tmp_path / "rig.onnx"))
    rng, n, step = np.random.default_rng(0), model.manifold.size, jax.jit(model.core.__call__)
    for _ in range(20):
        given = {"q": rng.uniform(-3, 3, n), "p": rng.normal(0, 2, n), **({"u": rng.normal(size=1)} if inputs else {})}
        found = session.run(["q_next", "p_next"], given)
        np.testing.assert_allclose(found, step(*map(jnp.asarray, given.values())), atol=1e-9)


def test_what_belongs_to_c_is_refused(tmp_path):
    with pytest.raises(InputError, match="name and controller are of the export to C"):
        wrapped(pendulum()).export(tmp_path / "rig.onnx", name="rig")


def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'phast-physics\[onnx\]'"):
        wrapped(pendulum()).export(tmp_path / "rig.onnx")

"""What is said of coefficients: determined, at zero or open, each open direction once, and what was left out."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

from phast.analysis.identifiability import Determination, report, upper_bound
from phast.components.damping import ConstantDamping, Friction
from phast.components.mass import ConstantMass, LinkedMass
from phast.components.parameter import Bounded, Positive, Real
from phast.components.potential import Cosine, Quadratic
from phast.data.manifold import Manifold
from phast.data.trajectories import Trajectories
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.dynamics.integrators import RungeKutta, Timestep
from phast.dynamics.simulation import simulate
from phast.dynamics.systems import system
from phast.estimation.forecaster import Core
from phast.estimation.moving_horizon import Evidence
from phast.fitting.coefficients import _NEAR_ZERO, in_units
from phast.fitting.free_fields import unknown_system
from phast.fitting.shooting import Identified, shoot

pytestmark = pytest.mark.usefixtures("float64")

DETERMINED, AT_ZERO, UNDETERMINED = Determination
STEADY = system("pendulum-conservative")
NOISE = 0.01


# --- evidence made up ------------------------------------------------------------------------------------------------


def spring(stiffness=4.0, drag=0.5, centre=0.0, unit=1.0) -> PortHamiltonian:
    """An oscillator with three learned coefficients: potential.stiffness, potential.centre and damping."""
    potential = Quadratic(Positive.starting_at(stiffness), Real.starting_at(centre))
    return PortHamiltonian(potential, ConstantMass(1.0), ConstantDamping(Positive.starting_at(drag, unit)))


def told(model: PortHamiltonian, covariance: np.ndarray, **about: int) -> Identified:
    """What a fit would know that leaves this covariance of the physical values."""
    slopes = np.array(in_units(model))[:, 1]
    raw = covariance / np.outer(slopes, slopes)
    return Identified(model, Evidence(np.linalg.inv(raw), raw, NOISE, 1000, **about))


def knowing(model: PortHamiltonian, rows: np.ndarray) -> Identified:
    """What a fit would know that measures these combinations of the physical values, to a hundredth, and nothing else.

    The information is that of the numbers behind the values.
    """
    slopes = np.array(in_units(model))[:, 1]
    information = (1e2 * rows * slopes).T @ (1e2 * rows * slopes)
    return Identified(model, Evidence(information, np.linalg.pinv(information), NOISE, 1000))


@pytest.mark.parametrize(
    ("value", "unit", "deviation", "verdict"),
    [
        (0.5, 1.0, 1e-3, DETERMINED),
        (1e-4, 1.0, 1e-6, DETERMINED),  # however small beside its unit
        (1e6, 1.0, 1e4, DETERMINED),
        (0.5, 1.0, 0.2, DETERMINED),
        (0.5, 1.0, 0.4, AT_ZERO),
        (1e-7, 1.0, 1e-3, AT_ZERO),
        (1e-7, 1e-3, 1e-3, UNDETERMINED),  # 1e-3 is as much as it was expected to be
        (13.0, 1.0, 2.3e4, UNDETERMINED),
        (13.0, 10.0, 30.0, UNDETERMINED),
    ],
)
def test_a_deviation_is_compared_with_the_value_and_the_natural_scale(value, unit, deviation, verdict):
    found = report(told(spring(drag=value, unit=unit), np.diag([1e-6, 1e-6, deviation**2])))
    drag = found.coefficients[2]
    assert (drag.name, drag.verdict) == ("damping.coefficients", verdict)
    assert drag.value == pytest.approx(value) and drag.deviation == pytest.approx(deviation)
    assert drag.identifiable == (verdict is not UNDETERMINED) == found.all_determined
    assert (drag.upper is None) == (verdict is DETERMINED)
    assert drag.upper is None or drag.upper > value + 1.6 * deviation
    assert len(found.remarks) == (verdict is UNDETERMINED)
    assert all(remark.startswith("these data hardly determine damping.coefficients:") for remark in found.remarks)


@pytest.mark.parametrize(("deviation", "verdict"), [(0.01, DETERMINED), (0.4, DETERMINED), (0.6, UNDETERMINED)])
def test_a_coefficient_of_either_sign_may_be_zero_and_determined(deviation, verdict):
    centre = report(told(spring(), np.diag([1e-6, deviation**2, 1e-6]))).coefficients[1]
    assert centre.name == "potential.centre" and centre.verdict is verdict and centre.upper is None


def test_a_coupling_is_compared_with_its_bound():
    mass = LinkedMass(Positive.starting_at(1.0), 1.0, Bounded.starting_at(0.0))
    for deviation, verdict in ((0.1, DETERMINED), (0.8, UNDETERMINED)):
        found = report(told(PortHamiltonian(Cosine(1.0), mass, ConstantDamping(0.1)), np.diag([1e-4, deviation**2])))
        assert [c.verdict for c in found.coefficients] == [DETERMINED, verdict]


def test_a_coefficient_at_its_bound_is_at_zero_however_sure():
    """There its trained number has no meaning any more, and its value has."""
    stopped = eqx.tree_at(lambda s: s.damping.coefficients.raw, spring(), jnp.array(_NEAR_ZERO))
    found = report(told(stopped, np.diag([1e-6, 1e-6, 1e-4])))
    assert found.coefficients[2].verdict is AT_ZERO and found.all_determined
    assert found.coefficients[2].upper == pytest.approx(0.0196, rel=1e-3)
    assert report(told(stopped, np.diag([1e-6, 1e-6, 1e-24]))).coefficients[2].verdict is AT_ZERO


@given(st.floats(0.0, 10.0), st.floats(1e-6, 1e6))
def test_the_upper_bound_is_a_quantile_of_what_cannot_be_negative(ratio, deviation):
    bound = upper_bound(ratio * deviation, deviation)
    assert truncnorm.cdf(bound / deviation - ratio, -ratio, np.inf) == pytest.approx(0.95, abs=1e-9)


STIFFNESS, CENTRE, DRAG = np.eye(3)


@pytest.mark.parametrize(
    ("measured", "undetermined", "remarks"),
    [
        ([STIFFNESS, CENTRE], ["damping"], ["say nothing about damping.coefficients"]),
        ([STIFFNESS + DRAG, CENTRE], ["stiffness", "damping"], ["potential.stiffness and damping.coefficients trade"]),
        ([CENTRE], ["stiffness", "damping"], ["about damping.coefficients", "about potential.stiffness"]),
        ([STIFFNESS + DRAG], ["stiffness", "centre", "damping"], ["nothing about potential.centre", "trade off"]),
    ],
    ids=["one", "two that trade off", "two of which nothing is known", "one and two"],
)  # fmt: skip
def test_every_open_direction_is_said_once(measured, undetermined, remarks):
    found = report(knowing(spring(stiffness=1.0, drag=1.0), np.array(measured)))
    assert [c.name for c in found.coefficients if not c.identifiable] == [
        c.name for c in found.coefficients if any(word in c.name for word in undetermined)
    ]
    assert all(np.isinf(c.deviation) for c in found.coefficients if not c.identifiable)
    assert len(found.remarks) == len(remarks) and not found.all_determined
    for part in remarks:
        assert sum(part in remark for remark in found.remarks) == 1


def test_two_that_can_hardly_be_told_apart_trade_off():
    """Not for want of any information, but of enough."""
    covariance = np.diag([25.0, 1e-6, 4.0])
    covariance[0, 2] = covariance[2, 0] = -9.99
    found = report(told(spring(stiffness=1.0, drag=1.0), covariance))
    assert [c.verdict for c in found.coefficients] == [UNDETERMINED, DETERMINED, UNDETERMINED]
    (remark,) = found.remarks
    assert remark.startswith("potential.stiffness and damping.coefficients trade off")


@pytest.mark.parametrize(
    ("left_out", "said"),
    [
        (0, []),
        (1, ["1 of 120 windows was left out of the fit: no state near the first guess explains it"]),
        (3, ["3 of 120 windows were left out of the fit: no state near the first guess explains them"]),
    ],
)
def test_windows_that_were_left_out_are_counted(left_out, said):
    found = report(told(spring(), 1e-6 * np.eye(3), windows=120, windows_left_out=left_out))
    assert found.remarks == said and found.all_determined


def test_a_model_of_fields_only_says_so():
    line = Trajectories(np.sin(np.linspace(0.0, 9.0, 60))[None, :, None], 0.1, Manifold.parse("x"))
    model = unknown_system(line, damping=ConstantDamping(0.1))
    count = sum(x.size for x in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    found = report(Identified(model, Evidence(np.eye(count), np.eye(count), NOISE, 1000)))
    assert found.coefficients == [] and not found.all_determined
    assert found.remarks == ["only fields were learned: there are no coefficients to list"]


def test_the_anchor_is_what_is_given():
    free = ConstantMass(Positive.starting_at(1.0))
    well = Cosine(Positive.starting_at(1.0))
    given_ones = {
        "the mass is given": PortHamiltonian(well, ConstantMass(1.0), ConstantDamping(0.0)),
        "the potential is given": PortHamiltonian(Cosine(1.0), free, ConstantDamping(0.0)),
        "the damping is given": PortHamiltonian(well, free, ConstantDamping(0.1)),
        "known forces, or a given entry of the mass, fix": PortHamiltonian(well, free, ConstantDamping(0.0)),
    }
    for words, model in given_ones.items():
        count = len(in_units(model))
        assert report(told(model, 1e-6 * np.eye(count))).anchor.startswith(words)


# --- evidence of fits ------------------------------------------------------------------------------------------------


def swings(scale: float = 1.0) -> Trajectories:
    """A pendulum without any friction."""
    data = simulate(STEADY, 20, length=40, seed=1)
    return Trajectories(scale * data.q, data.dt, data.manifold).with_noise(NOISE, seed=1)


def fitted(data: Trajectories, potential, friction) -> Identified:
    start = PortHamiltonian(potential, ConstantMass(1.0), friction)
    return shoot(Core(start, RungeKutta(Timestep(data.dt, 2))), data, noise=NOISE, smooth=False)


def test_friction_that_is_truly_zero_is_at_zero_below_a_bound():
    """With as much friction as the bound, the fit is worse by what 1.64 to 1.96 deviations ask for, or more."""
    data, gravity = swings(), Positive.starting_at(9.8, unit=10.0)
    found = fitted(data, Cosine(gravity), Friction(Positive.starting_at(0.02, unit=0.3)))
    drag = report(found).coefficients[1]
    assert drag.verdict is AT_ZERO and 0.0 < drag.value < drag.upper < 2e-3
    misfits = []
    for given_one in (drag.value, drag.upper):
        other = fitted(data, Cosine(gravity), Friction(given_one)).evidence
        misfits.append(other.count * (other.rms / NOISE) ** 2)
    assert 2.0 < misfits[1] - misfits[0] < 12.0


def test_friction_that_the_motion_does_not_show_is_not_determined():
    """Swings of a few noises tell next to nothing of a drag that grows with the square of the speed."""
    data = simulate(system("pendulum-damped"), 6, length=20, seed=1)
    small = Trajectories(np.zeros_like(data.q), data.dt, data.manifold).with_noise(NOISE, seed=2)
    law = Friction(0.5, 0.0, Positive.starting_at(1.0))
    found = report(fitted(small, Cosine(9.81), law))
    (drag,) = found.coefficients
    assert drag.verdict is UNDETERMINED and drag.deviation > 10.0 * max(drag.value, 1.0)
    assert drag.upper > 10.0 and not found.all_determined and len(found.remarks) == 1

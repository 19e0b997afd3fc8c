"""Systems as formulas: every component that a search or a word makes, with ± where it was learned."""

import pytest

from phast.analysis.identifiability import Coefficient
from phast.components.damping import ConstantDamping, FacingDamping, Friction, SumDamping
from phast.components.mass import ConstantMass, LinkageMass, RelativeMass, UnequalMass
from phast.components.parameter import Positive, Real
from phast.components.potential import (
    Along,
    ChainCosine,
    ConstantForce,
    Cosine,
    PairPower,
    Quadratic,
    Quartic,
    Scaled,
    Some,
    Sum,
)
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.report.equation import equation, latex

pytestmark = pytest.mark.usefixtures("float64")


NONE, UNIT, FREE = Quadratic(0.0), ConstantMass(1.0), ConstantDamping(0.0)


def told(potential=NONE, mass=UNIT, damping=FREE, names=("x", "theta"), found=()):
    return equation(PortHamiltonian(potential, mass, damping), names, found).splitlines()


POTENTIALS = {
    "none": (Quadratic(0.0), "0"),
    "cosines": (Cosine((0.0, 9.81), (0.0, 0.1)), "9.81 (1 - cos(theta - 0.1))"),
    "a chain": (ChainCosine((3.0, 2.0)), "3 (1 - cos(x)) + 2 (1 - cos(x + theta))"),
    "springs": (Quadratic((1.0, 2.0), 0.5), "½ 1 (x - 0.5)² + ½ 2 (theta - 0.5)²"),
    "a quartic spring": (Some(Quartic(2.0, 3.0), (0,)), "½ 3 x² + ¼ 2 x⁴"),
    "a force": (Some(ConstantForce(-0.5), (0,)), "0.5 x"),
    "between two": (Along(Quadratic(3.0), ((1.0, -1.0),)), "½ 3 (x - theta)²"),
    "a sum": (Sum((Some(Quadratic(1.0), (0,)), Scaled(Some(Cosine(2.0), (1,)), 3.0))), "½ 1 x² + 3 2 (1 - cos(theta))"),
}


@pytest.mark.parametrize(("part", "text"), POTENTIALS.values(), ids=POTENTIALS.keys())
def test_potentials(part, text):
    assert told(part)[1] == f"V = {text}"


def test_pairs_of_points_are_numbered():
    assert told(PairPower((-2.0,), 1), names=("x1", "y1", "x2", "y2"))[1] == "V = -2 / r_12^1"


def test_masses():
    links = LinkageMass(3.0, (2.0,), (0.5,), (False, True))
    coupled = "½ 3 x'² + ½ 2 theta'² + 1.225 cos(theta) x' theta'"
    assert told(mass=links)[0] == f"T = {coupled}"
    assert told(mass=UnequalMass(1.0, (0.5,)))[0] == "T = ½ 1 x'² + ½ 0.5 theta'²"
    joints = RelativeMass(LinkageMass(3.0, (2.0,), (0.5,), (True, True)))
    assert told(mass=joints, names=("a", "b"))[0].endswith("1.225 cos((a + b) - a) a' (a' + b')")


def test_friction_is_the_force_against_a_speed():
    parts = (Friction(0.1, 0.5, joints=((1.0, -1.0),)), FacingDamping(0.3, 0, 1), ConstantDamping((0.2, 0.0)))
    assert told(damping=SumDamping(parts))[2:] == [
        "F(x' - theta') = 0.1 (x' - theta') + 0.5 sign((x' - theta'))",
        "F(x') = 0.3 |sin(theta)| x'",
        "F(x') = 0.2 x'",
    ]


def test_what_was_learned_has_its_deviation():
    potential = Quadratic(Positive.starting_at([4.0]), Real.starting_at([0.5]))
    found = [Coefficient("potential.stiffness", 4.0, 0.01), Coefficient("potential.centre", 0.5, 0.002)]
    lines = told(potential, names=("x1",), found=found)
    assert lines[1] == "V = ½ (4.000 ± 0.010) (x1 - (0.5000 ± 0.0020))²"
    text = latex("\n".join(lines))
    assert text.startswith("\\begin{align*}\nT &= \\tfrac{1}{2} 1 \\dot{x}_{1}^2 \\\\")
    assert r"V &= \tfrac{1}{2} (4.000 \pm 0.010) (x_{1} - (0.5000 \pm 0.0020))^2" in text


def test_greek_names_and_functions_in_latex():
    assert latex("V = 2 (1 - cos(theta1))").splitlines()[1] == r"V &= 2 (1 - \cos(\theta_{1}))"
    assert latex("F(x') = 0.1 sign(x')").splitlines()[1] == r"F(\dot{x}) &= 0.1 \operatorname{sign}(\dot{x})"

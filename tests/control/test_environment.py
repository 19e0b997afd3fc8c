"""Plants as Gymnasium environments: the checker's contract, seeds, dtypes, energy, and inputs that saturate."""

import warnings

import numpy as np
import pytest

from phast.components.damping import ConstantDamping
from phast.components.mass import ConstantMass
from phast.components.potential import Cosine
from phast.control.plant import Plant
from phast.data.manifold import Manifold
from phast.dynamics.hamiltonian import PortHamiltonian
from phast.errors import InputError

gymnasium = pytest.importorskip("gymnasium", reason="environments need the extra gym: pip install -e '.[gym]'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from phast.control.environment import PlantEnvironment, QuadraticReward  # noqa: E402

ID = "phast.control.environment:phast/Plant-v0"


def pendulum(drag: float = 0.0) -> Plant:
    system = PortHamiltonian(Cosine(9.81), ConstantMass(1.0), ConstantDamping(drag))
    return Plant(system, Manifold.parse("theta:angle"), 0.05, limits=(4.0,))


def swinging(rng: np.random.Generator, count: int):
    return rng.uniform(-2.0, 2.0, (count, 1)), rng.normal(0.0, 1.0, (count, 1))


@pytest.fixture(scope="module")
def environment() -> PlantEnvironment:
    return PlantEnvironment(pendulum(), initial=swinging, horizon=1000)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["pendulum-windy", "cartpole-windy"])
def test_the_checker_of_gymnasium_has_nothing_to_say(name, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(ID, system=name, limits=5.0, noise=0.01, dtype=dtype)
        check_env(made.unwrapped)
    observation, _ = made.reset(seed=0)
    assert observation.dtype == made.observation_space.dtype == made.action_space.dtype == dtype
    assert made.observation_space.contains(made.step(made.action_space.sample())[0])
    with pytest.raises(gymnasium.error.ResetNeeded):
        PlantEnvironment(pendulum(), initial=swinging).step(np.zeros(1))


def test_the_same_seed_gives_the_same_numbers():
    noisy = PlantEnvironment(pendulum(), initial=swinging, noise=0.1)

    def run(seed):
        seen = [noisy.reset(seed=seed)[0], *(noisy.step(np.array([np.sin(i)]))[0] for i in range(20))]
        return np.concatenate(seen)

    np.testing.assert_array_equal(run(3), run(3))
    assert (run(3) != run(4)).all()


def test_noise_is_on_the_observation_alone():
    noisy = PlantEnvironment(pendulum(0.3), initial=swinging, noise=0.1, horizon=10_000)
    noisy.reset(seed=0, options={"q": np.pi})  # near the turn, where angles are wrapped
    off, states = [], []
    for _ in range(400):
        seen, _, _, _, info = noisy.step(np.zeros(1))
        off.append(np.angle(np.exp(1j * (seen - info["q"]))))
        states.append(info["q"])
    np.testing.assert_allclose(np.array(states), np.pi, atol=1e-6)
    assert np.std(off) == pytest.approx(0.1, rel=0.15) and abs(np.mean(off)) < 0.02


def test_energy_is_kept_without_damping_and_input(environment):
    environment.reset(options={"q": 2.5, "p": 1.0})
    energies = [environment.step(np.zeros(1))[4]["energy"] for _ in range(400)]
    np.testing.assert_allclose(energies, energies[0], rtol=1e-8)


def test_an_input_beyond_the_limits_is_applied_as_far_as_it_goes_and_said(environment):
    infos, states = [], []
    for action in (1.0, 3.0):
        environment.reset(options={"q": 0.3})
        _, reward, _, _, info = environment.step(np.array([action]))
        infos.append(info)
        states.append((info["q"], info["p"], reward))
    assert [info["saturated"] for info in infos] == [False, True]
    np.testing.assert_array_equal([info["applied"] for info in infos], [[4.0], [4.0]])
    assert states[0] == states[1]


def test_the_reward_is_of_the_shortest_way_to_the_target():
    upright = PlantEnvironment(
        pendulum(), initial=swinging, target=np.pi, reward=QuadraticReward(position=2.0, effort=0.5)
    )
    upright.reset(options={"q": -np.pi + 0.1})
    _, reward, *_, info = upright.step(np.array([0.5]))
    error = np.angle(np.exp(1j * (info["q"][0] - np.pi)))
    assert reward == pytest.approx(-(2.0 * error**2 + 0.5 * 2.0**2), rel=1e-12)


def test_an_episode_ends_at_its_horizon_or_out_of_reach():
    short = PlantEnvironment("cartpole-windy", limits=5.0, horizon=3, reach=1.0)
    short.reset(seed=0, options={"q": np.zeros(2)})
    assert [short.step(np.zeros(2))[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    short.reset(seed=0, options={"q": np.array([0.99, 0.0]), "p": np.array([5.0, 0.0])})
    observation, _, terminated, *_ = short.step(np.zeros(2))
    assert terminated and short.observation_space.contains(observation)


REFUSED = {
    "no limits": (lambda: PlantEnvironment("pendulum-windy"), "limits"),
    "no such system": (lambda: PlantEnvironment("pendulum-widny", limits=1.0), "did you mean"),
    "limits twice": (lambda: PlantEnvironment(pendulum(), initial=swinging, limits=1.0), "of its own"),
    "no initial states": (lambda: PlantEnvironment(pendulum()), "initial"),
    "negative noise": (lambda: PlantEnvironment(pendulum(), initial=swinging, noise=-0.1), "noise"),
    "no horizon": (lambda: PlantEnvironment(pendulum(), initial=swinging, horizon=0), "horizon"),
    "two targets": (lambda: PlantEnvironment(pendulum(), initial=swinging, target=(0.0, 1.0)), "target is"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_wrong_options_are_refused(what):
    make, said = REFUSED[what]
    with pytest.raises(InputError, match=said):
        make()


@pytest.mark.parametrize("action", [np.array([np.nan]), np.zeros(2)], ids=["not a number", "two inputs"])
def test_wrong_actions_are_refused(environment, action):
    environment.reset(seed=0)
    with pytest.raises(InputError, match="the action is"):
        environment.step(action)


def test_wrong_beginnings_are_refused(environment):
    with pytest.raises(InputError, match="options velocity"):
        environment.reset(options={"velocity": 1.0})

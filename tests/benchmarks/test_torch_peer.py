"""The PyTorch peer of the bench computes what we compute: predictions, gradients and rollouts from the same weights."""

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the peer needs PyTorch: pip install 'phast[bench]'")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch_peer  # noqa: E402

from phast.dynamics import systems  # noqa: E402
from phast.estimation.forecaster import autoregressive  # noqa: E402
from phast.fitting.losses import Batch, NextStepLoss  # noqa: E402
from phast.paper import models  # noqa: E402

BUILDERS = {"known": models.phast_known, "partial": models.phast_partial}
OPTIMISED = ("trimmed", "whole")


def _perturbed(model, scale=0.05):
    """Away from the zero head and the symmetric start, so that every weight shows."""
    params, static = eqx.partition(model, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    moved = [leaf + scale * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return eqx.combine(jax.tree.unflatten(tree, moved), static)


def _copy(target, value):
    array = torch.tensor(np.asarray(value))
    assert target.shape == array.shape
    with torch.no_grad():
        target.copy_(array)


def _copy_convolution(target, layer):
    """Our tap j looks j samples back, torch's last tap is the present."""
    _copy(target.weight, jnp.flip(layer.weight, 0).transpose(2, 1, 0))
    _copy(target.bias, layer.bias)


def _copy_network(target, network):
    linears = [layer for layer in target if isinstance(layer, torch.nn.Linear)]
    for linear, weight, bias in zip(linears, network.weights, network.biases, strict=True):
        _copy(linear.weight, weight.T)
        _copy(linear.bias, bias)


def _copy_known(physics, system):
    _copy(physics.scale, system.potential.scale.raw)
    _copy(physics.base, system.damping.base.raw)
    _copy(physics.gain, system.damping.gain.raw)


def _copy_partial(physics, system):
    _copy(physics.scale, system.potential.template.scale.raw)
    _copy(physics.epsilon, system.potential.epsilon.raw)
    _copy_network(physics.residual, system.potential.residual.network)
    _copy_network(physics.direction, system.damping.direction_network)
    _copy_network(physics.strength, system.damping.strength_network)


@pytest.fixture(scope="module", params=BUILDERS)
def pair(request):
    """(our model, the peer with its weights)."""
    ours = _perturbed(BUILDERS[request.param](systems.system("pendulum-windy"), key=jax.random.key(0)))
    peer = torch_peer.build(request.param)
    _copy_convolution(peer.observer.first, ours.observer.layers[0])
    _copy_convolution(peer.observer.second, ours.observer.layers[1])
    _copy_convolution(peer.observer.head, ours.observer.head)
    (_copy_known if request.param == "known" else _copy_partial)(peer.physics, ours.core.system)
    return ours, peer


@pytest.fixture(scope="module")
def paths():
    return torch_peer.smooth_paths(6, 40).numpy()


def test_both_have_the_same_parameters(pair):
    ours, peer = pair
    assert models.parameter_count(ours) == sum(p.numel() for p in peer.parameters())


@pytest.mark.parametrize("trimmed", [True, False], ids=OPTIMISED)
def test_next_step_predictions_agree(pair, paths, trimmed):
    ours, peer = pair
    peer.trimmed = trimmed
    expected = jax.vmap(ours.predict_next)(jnp.asarray(paths))
    np.testing.assert_allclose(peer(torch.tensor(paths)).detach().numpy(), expected, atol=2e-5)


def test_the_whole_step_agrees_in_momentum_too(pair, paths):
    ours, peer = pair
    peer.trimmed = False
    q = torch.tensor(paths)
    expected = jax.vmap(ours.predict_states)(jnp.asarray(paths))[1]
    np.testing.assert_allclose(peer.step(q, peer.observer(q))[1].detach().numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("trimmed", [True, False], ids=OPTIMISED)
def test_losses_and_gradients_agree(pair, paths, trimmed):
    ours, peer = pair
    peer.trimmed = trimmed
    peer.zero_grad()
    theirs = peer.loss(torch.tensor(paths))
    theirs.backward()

    @eqx.filter_value_and_grad
    def objective(model):
        trajectories = [Batch(jnp.asarray(path)) for path in paths]
        return jnp.mean(jnp.stack([NextStepLoss().selection(model, trajectory) for trajectory in trajectories]))

    value, gradient = objective(ours)
    np.testing.assert_allclose(theirs.item(), value, rtol=1e-4)
    norms = sorted(float(jnp.linalg.norm(leaf.ravel())) for leaf in jax.tree.leaves(gradient))
    their_norms = sorted(0.0 if p.grad is None else p.grad.norm().item() for p in peer.parameters())
    np.testing.assert_allclose(their_norms, norms, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("window", [None, torch_peer.VISIBLE])
def test_rollouts_agree(pair, paths, window):
    ours, peer = pair
    context = paths[:, : torch_peer.CONTEXT]
    expected = jax.vmap(lambda c: autoregressive(ours, c, 20))(jnp.asarray(context))
    found = peer.rollout(torch.tensor(context), 20, window).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-4)

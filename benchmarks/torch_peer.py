"""PHAST KNOWN and PARTIAL on the windy pendulum in plain PyTorch, as one would write it there: the peer of our bench.

The same computation as ``phast.paper.models.phast_known`` and ``phast_partial``: FD+TCN observer, p = v (unit mass), a
Strang step with leapfrog inside, forces by autograd, AdamW on the wrapped next-step error. Rollouts run the observer
on the whole prefix at every step. Two shortcuts that a careful reader of a profile might take are options: ``trimmed``
leaves out the second kick and damping, which q̂ does not depend on, and ``window`` shows the observer only the samples
that it can see. The bench runs this file in a process of its own; it prints one JSON object. The package never imports
torch.

    python benchmarks/torch_peer.py train partial --steps 20 --trimmed
    python benchmarks/torch_peer.py rollout known --horizon 100
"""

import argparse
import itertools
import json
import math
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

DT, GRAVITY, CONTEXT = 0.05, 9.81, 10
VISIBLE = 8  # samples that one velocity estimate depends on: 1 + 2·1 + 2·2, and one more for the difference


def wrap(angle: Tensor) -> Tensor:
    """Into [-π, π]."""
    return angle - 2 * math.pi * torch.round(angle / (2 * math.pi))


def features(q: Tensor) -> Tensor:
    """(…, 1) -> (…, 8): sin kθ and cos kθ for k = 1 … 4."""
    angles = q * torch.arange(1, 5, dtype=q.dtype)
    return torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)


class Observer(nn.Module):
    """Finite difference plus a causal convolutional correction, (B, T, 1) -> (B, T, 1)."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.first = nn.Conv1d(2, width, 3)
        self.second = nn.Conv1d(width, width, 3, dilation=2)
        self.head = nn.Conv1d(width, 1, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, q: Tensor) -> Tensor:
        rough = F.pad(wrap(q[:, 1:] - q[:, :-1]) / DT, (0, 0, 1, 0))
        x = torch.cat([wrap(q), rough], dim=-1).transpose(1, 2)
        x = F.silu(self.first(F.pad(x, (2, 0))))
        x = F.silu(self.second(F.pad(x, (4, 0))))
        return rough + self.head(x).transpose(1, 2)


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear maps with SiLU between them."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


class KnownPhysics(nn.Module):
    """V = a·g(1 - cos θ) and D = d0 + d1 |sin θ|: three learned scalars."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(math.log(math.expm1(1.0))))
        self.base = nn.Parameter(torch.zeros(()))
        self.gain = nn.Parameter(torch.zeros(()))

    def potential(self, q: Tensor) -> Tensor:
        return F.softplus(self.scale) * GRAVITY * (1 - torch.cos(q)).sum(-1)

    def drag(self, q: Tensor, v: Tensor) -> Tensor:
        return (F.softplus(self.base) + F.softplus(self.gain) * torch.sin(q).abs()) * v


class PartialPhysics(nn.Module):
    """V = a·g(1 - cos θ) + ε·network(θ) and D = d0 I + Σ β_i k_i k_iᵀ with bounded β, d0 given."""

    def __init__(self, base: float = 0.3, bound: float = 0.5, rank: int = 2, width: int = 64):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(math.log(math.expm1(1.0))))
        self.epsilon = nn.Parameter(torch.tensor(math.log(math.expm1(0.01))))
        self.residual = perceptron(8, width, width, width, 1)
        self.direction = perceptron(8, width, rank)
        self.strength = perceptron(8, width, rank)
        self.base, self.bound, self.rank = base, bound / rank, rank

    def potential(self, q: Tensor) -> Tensor:
        template = F.softplus(self.scale) * GRAVITY * (1 - torch.cos(q)).sum(-1)
        return template + F.softplus(self.epsilon) * self.residual(features(q)).squeeze(-1)

    def drag(self, q: Tensor, v: Tensor) -> Tensor:
        phi = features(q)
        k = self.direction(phi).unflatten(-1, (self.rank, q.shape[-1]))
        k = k / torch.sqrt((k**2).sum(-1, keepdim=True) + 1e-12)
        beta = self.bound * torch.sigmoid(self.strength(phi))
        along = (k * v.unsqueeze(-2)).sum(-1)
        return self.base * v + ((beta * along).unsqueeze(-1) * k).sum(-2)


class Peer(nn.Module):
    """Observer, then one Strang step from every (q_t, p̂_t)."""

    def __init__(self, physics: nn.Module, trimmed: bool = False):
        super().__init__()
        self.observer = Observer()
        self.physics = physics
        self.trimmed = trimmed

    def forward(self, q: Tensor) -> Tensor:
        """(B, T, 1) -> predictions of q_{t+1} for every t."""
        return self.step(q, self.observer(q))[0]

    def step(self, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        p = p - 0.5 * DT * self.physics.drag(q, p)
        p = p + 0.5 * DT * self.force(q)
        q = q + DT * p
        if self.trimmed:
            return q, p
        p = p + 0.5 * DT * self.force(q)
        return q, p - 0.5 * DT * self.physics.drag(q, p)

    def force(self, q: Tensor) -> Tensor:
        """-∇V, differentiable where training needs it."""
        training = torch.is_grad_enabled()
        with torch.enable_grad():
            q = q if q.requires_grad else q.detach().requires_grad_()
            return -torch.autograd.grad(self.physics.potential(q).sum(), q, create_graph=training)[0]

    def loss(self, q: Tensor) -> Tensor:
        return (wrap(self(q[:, :-1]) - q[:, 1:]) ** 2).mean()

    @torch.no_grad()
    def rollout(self, context: Tensor, horizon: int, window: int | None = None) -> Tensor:
        """(B, K, 1) -> (B, H, 1), each prediction appended to what the observer sees next."""
        path = context
        for _ in range(horizon):
            v = self.observer(path if window is None else path[:, -window:])[:, -1]
            path = torch.cat([path, self.step(path[:, -1], v)[0].unsqueeze(1)], dim=1)
        return path[:, context.shape[1] :]


def build(regime: str, trimmed: bool = False) -> Peer:
    return Peer(KnownPhysics() if regime == "known" else PartialPhysics(), trimmed)


# --- timing ----------------------------------------------------------------------------------------------------------


def smooth_paths(count: int, length: int) -> Tensor:
    """Data of the right shape: angles that swing."""
    phase, speed = torch.rand(2, count, 1)
    return (2 * torch.sin(phase * 6 + 3 * speed * DT * torch.arange(length))).unsqueeze(-1)


def time_training(peer: Peer, steps: int, batch: int, length: int, repeats: int) -> list[float]:
    """Seconds per step, one number per repeat of ``steps`` shuffled batches."""
    data = smooth_paths(10 * batch, length)
    optimiser = torch.optim.AdamW(peer.parameters(), lr=1e-3, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 1000)

    def run(count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            optimiser.zero_grad()
            peer.loss(data[torch.randint(len(data), (batch,))]).backward()
            optimiser.step()
            schedule.step()
        return (time.perf_counter() - start) / count

    run(3)
    return [run(steps) for _ in range(repeats)]


def time_rollout(peer: Peer, horizon: int, count: int, repeats: int, window: int | None) -> list[float]:
    """Seconds per rollout of ``count`` trajectories, one number per repeat."""
    context = smooth_paths(count, CONTEXT)
    peer.rollout(context, horizon, window)  # the first run at each length also builds kernels: not counted
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        peer.rollout(context, horizon, window)
        seconds.append(time.perf_counter() - start)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("task", choices=["train", "rollout"])
    parser.add_argument("regime", choices=["known", "partial"])
    parser.add_argument("--trimmed", action="store_true", help="skip what q̂ does not depend on")
    parser.add_argument("--windowed", action="store_true", help="show the observer its receptive field only")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--horizon", type=int, default=100)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    peer = build(args.regime, args.trimmed)
    if args.task == "train":
        seconds = time_training(peer, args.steps, args.batch, args.length, args.repeats)
    else:
        window = VISIBLE if args.windowed else None
        seconds = time_rollout(peer, args.horizon, args.count, args.repeats, window)
    print(json.dumps({"seconds": seconds, "torch": torch.__version__, "threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()

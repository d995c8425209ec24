"""Trains a small network on CPUs, and leaves summing gradients and stepping the optimizer to Farside's Aggregators.

What makes a training script share them is the one line with `farside.attach`; the loop around it is any script's. Each
worker computes its own batches, and all workers have the same network after each step.

In a cluster whose manager has Aggregators, with `aggregation = "shared"` in the job file:

    farside submit examples/train_shared.toml

Without a manager, on one machine, with an Aggregator that runs already (docs/aggregation.md):

    export FARSIDE_AGGREGATION_SERVICE=unix:/run/farside/aggregator-members.sock FARSIDE_AGGREGATION_KEY_FILE=key
    export FARSIDE_AGGREGATION_JOB=mine WORLD_SIZE=2
    RANK=1 python3 examples/train_shared.py & RANK=0 python3 examples/train_shared.py

Needs PyTorch and Farside in the python3 that PATH finds.
"""

import argparse
import os
import sys
import time

import torch
from torch import nn

import farside
from farside.errors import FarsideError

FEATURES, HIDDEN, BATCH = 16, 64, 64
SEED = 17


def main() -> None:
    """Trains to ``--steps``."""
    options = parsed()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model, teacher = network(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    handle = farside.attach(model, optimizer)

    # Workers that were started again go on from what the Aggregators have kept.
    step = handle.iteration
    tell(f"begins at step {step}")
    rank = int(os.environ.get("RANK", "0"))
    while step < options.steps:
        loss = train_step(model, optimizer, teacher, seed=1000 * step + rank)
        step += 1
        if step % options.tell_every == 0 or step == options.steps:
            tell(f"step {step} loss {float(loss):.6f}")
        time.sleep(options.pace_s)
    handle.wait()
    total = sum(float(one.detach().double().sum()) for one in model.parameters())
    tell(f"finished with parameters that sum to {total:.12f}")
    handle.detach()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tell-every", type=int, default=20, help="steps between two lines")
    parser.add_argument("--pace-s", type=float, default=0.0, help="seconds to sleep a step, to watch it for longer")
    return parser.parse_args()


def network() -> nn.Module:
    """What is trained, and with other weights what it is to imitate."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, teacher: nn.Module, *, seed: int) -> torch.Tensor:
    """One step on a batch that follows from the seed alone."""
    inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        wanted = teacher(inputs)
    loss: torch.Tensor = nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def tell(text: str) -> None:
    """A line for whoever reads the worker's output."""
    print(text, flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    try:
        main()
    except FarsideError as problem:
        sys.exit(f"train_shared.py: {problem}")

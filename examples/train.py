"""Trains a small network on CPUs with PyTorch's DistributedDataParallel, and can be preempted at any step.

What makes a training job fit for Farside is in `main`, step by step: who it is among how many comes from the
environment, as torch.distributed reads it; a checkpoint goes to FARSIDE_CHECKPOINT_DIR every so often and at SIGTERM,
whole or not at all; and with FARSIDE_RESUME it goes on from there, on however many workers it gets then.

    farside submit examples/train.toml --checkpoint /shared/$USER/run1

Needs PyTorch in the python3 that PATH finds (`pip install torch`); gloo carries the gradients, so no GPU is needed.
"""

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FEATURES, HIDDEN, BATCH = 16, 64, 64
SEED = 17


def main() -> None:
    """Trains to ``--steps``, or until SIGTERM."""
    options = parsed()
    torch.set_num_threads(1)
    if os.environ.get("MASTER_ADDR") == "127.0.0.1":  # all on one machine: do not look for another network
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    is_told_to_stop = watch_sigterm()

    torch.manual_seed(SEED)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    checkpoint = Path(os.environ.get("FARSIDE_CHECKPOINT_DIR", ".")) / "checkpoint.pt"
    step = restore(checkpoint, model, optimizer) if os.environ.get("FARSIDE_RESUME") else 0
    teacher = network()
    tell(rank, f"begins at step {step} with {world} workers")

    while step < options.steps:
        loss = train_step(model, optimizer, teacher, seed=step * world + rank)
        step += 1
        if step % options.tell_every == 0 or step == options.steps:
            tell(rank, f"step {step} loss {mean(loss.detach()):.6f}")
        say_ready()
        # All workers have to stop after the same step, or one would wait for the others for ever.
        is_stopping = any_of(is_told_to_stop())
        if is_stopping or step % options.save_every == 0:
            save(checkpoint, model, optimizer, step, rank)
        if is_stopping:
            tell(rank, f"stops at step {step}")
            break
        time.sleep(options.pace_s)
    else:
        tell(rank, "finished")
    dist.destroy_process_group()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--save-every", type=int, default=100, help="steps between two checkpoints")
    parser.add_argument("--tell-every", type=int, default=10, help="steps between two lines")
    parser.add_argument("--pace-s", type=float, default=0.0, help="seconds to sleep a step, to watch it for longer")
    return parser.parse_args()


def network() -> nn.Module:
    """What is trained, and with other weights what it is to imitate."""
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, teacher: nn.Module, *, seed: int) -> torch.Tensor:
    """One step on a batch that follows from the seed alone, so that who resumes sees what he would have seen."""
    inputs = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        wanted = teacher(inputs)
    loss: torch.Tensor = nn.functional.mse_loss(model(inputs), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def watch_sigterm() -> Any:
    """A function that says whether SIGTERM has come."""
    came: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    return lambda: bool(came)


def any_of(mine: bool) -> bool:
    """Whether it is so for one of the workers."""
    told = torch.tensor([float(mine)])
    dist.all_reduce(told, op=dist.ReduceOp.MAX)
    return bool(told.item())


def mean(mine: torch.Tensor) -> float:
    """Of all workers."""
    total = mine.clone()
    dist.all_reduce(total)
    return float(total.item()) / dist.get_world_size()


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
    """Replaces the checkpoint; whoever dies in the middle leaves the old one."""
    if rank == 0:
        part = path.with_suffix(".part")
        with part.open("wb") as file:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    dist.barrier()


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Goes back to the checkpoint, if one was written; returns the step."""
    if not path.exists():
        return 0
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    optimizer.load_state_dict(kept["optimizer"])
    step: int = kept["step"]
    return step


def say_ready() -> None:
    """Tells Farside once that steps are being made: how long that took is what resuming costs."""
    ready = os.environ.pop("FARSIDE_READY", "")
    if ready:
        Path(ready).write_text("ready\n")


def tell(rank: int, text: str) -> None:
    """A line of the first worker, for all."""
    if rank == 0:
        print(text, flush=True)  # noqa: T201 - its output


if __name__ == "__main__":
    main()

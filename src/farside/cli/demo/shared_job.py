"""A training job of the demo's aggregation scene: one rank, or all ranks in one process without any service.

    python -m farside.cli.demo.shared_job MODEL --steps N --pace SECONDS --out FOLDER
    python -m farside.cli.demo.shared_job MODEL --steps N --out FOLDER --alone 2

Both write a digest of all parameters, `MODEL.RANK` and `MODEL.alone`. They are equal only if every bit is: alone, the
gradients of all ranks are summed in rank order, and their mean goes to PyTorch's own optimizer.
"""

import argparse
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

import farside

SEED, BATCH, CLASSES, WORDS, WIDTH = 17, 8, 10, 50, 32


_Module: Any = torch.nn.Module


class Images(_Module):  # type: ignore[misc] # PyTorch is not there where types are checked
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.wide = torch.nn.Linear(16 * 64, 512)
        self.head = torch.nn.Linear(512, CLASSES)

    def loss(self, random: Any) -> Any:
        """Loss of a batch of noise that is labelled at random."""
        images = torch.randn(BATCH, 3, 8, 8, generator=random)
        found = torch.relu(self.convolution(images)).flatten(1)
        labels = torch.randint(0, CLASSES, (BATCH,), generator=random)
        return torch.nn.functional.cross_entropy(self.head(torch.relu(self.wide(found))), labels)


class Sentences(_Module):  # type: ignore[misc]
    """A tiny transformer, whose decoder is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.wide = torch.nn.Linear(WIDTH, 8 * WIDTH)
        self.narrow = torch.nn.Linear(8 * WIDTH, WIDTH)

    def loss(self, random: Any) -> Any:
        """Loss on sentences of random words."""
        words = torch.randint(0, WORDS, (4, 9), generator=random)
        found = self.embedding(words[:, :-1])
        found = self.norm(found + self.attention(found, found, found, need_weights=False)[0])
        found = found + self.narrow(torch.relu(self.wide(found)))
        scores = found @ self.embedding.weight.T
        return torch.nn.functional.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))


def _sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def _adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.002)


# The model, its optimizer, and who runs that: the Aggregator, or each rank on the mean that it gets back.
Update = Literal["server", "worker"]
JOBS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any], Update]] = {
    "images": (Images, _sgd, "server"),
    "sentences": (Sentences, _adam, "worker"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains, and writes the digest."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=tuple(JOBS))
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--alone", type=int, default=0)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)  # sums of several threads have an order of their own
    torch.manual_seed(SEED)
    make, optimizer_of, update = JOBS[asked.model]
    model = make()
    optimizer = optimizer_of(model.parameters())
    if asked.alone:
        _train_alone(model, optimizer, asked.steps, asked.alone)
        name = "alone"
    else:
        name = os.environ["RANK"]
        _train(model, optimizer, update, asked.steps, asked.pace, asked.out / f"{asked.model}.{name}.step")
    part = asked.out / f"{asked.model}.{name}.part"
    part.write_text(digest(model))
    part.rename(asked.out / f"{asked.model}.{name}")


def _train(model: Any, optimizer: Any, update: Update, steps: int, pace_s: float, told: Path) -> None:
    rank = int(os.environ["RANK"])
    handle = farside.attach(model, optimizer, update=update)
    for step in range(handle.iteration, steps):
        optimizer.zero_grad()
        model.loss(_chance(rank, step)).backward()
        time.sleep(pace_s)  # a GPU would compute so long, and leave the processor to others
        optimizer.step()
        told.write_text(f"{step + 1}")
    handle.wait()
    handle.detach()


def _train_alone(model: Any, optimizer: Any, steps: int, ranks: int) -> None:
    parameters = list(model.parameters())
    for step in range(steps):
        found = []
        for rank in range(ranks):
            optimizer.zero_grad()
            model.loss(_chance(rank, step)).backward()
            found.append([parameter.grad.clone() for parameter in parameters])
        for number, parameter in enumerate(parameters):
            total = found[0][number]
            for each in found[1:]:
                total = total + each[number]
            parameter.grad = total / ranks
        optimizer.step()


def _chance(rank: int, step: int) -> Any:
    return torch.Generator().manual_seed(1000 * step + rank)


def digest(model: Any) -> str:
    """SHA-256 of all parameters, in the order of their names."""
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        found.update(name.encode() + parameter.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    main()

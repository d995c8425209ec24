"""Small models that train on data of their own making, and the one process whose results members have to match."""

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

torch: Any = import_module("torch") if find_spec("torch") is not None else None
has_cuda = torch is not None and bool(torch.cuda.is_available())
needs_cuda = pytest.mark.skipif(not has_cuda, reason="PyTorch sees no GPU")
needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")

WORDS, WIDTH, CLASSES = 50, 32, 10
Module: Any = torch.nn.Module if torch is not None else object

_one_at_a_time = threading.Lock()  # chance is the process's, and members are its threads

if torch is not None:
    torch.set_num_threads(1)  # sums of several threads have an order of their own


class Convolutions(Module):  # type: ignore[misc] # PyTorch is not there where types are checked
    """Images of 8x8, with a norm whose buffers are each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.wide = torch.nn.Linear(16 * 64, 96)
        self.head = torch.nn.Linear(96, CLASSES)

    def forward(self, images: Any) -> Any:
        """Scores of each class."""
        found = torch.relu(self.norm(self.convolution(images)))
        return self.head(torch.relu(self.wide(found.flatten(1))))

    def loss(self, rank: int, iteration: int) -> Any:
        """Of a batch that is this rank's own."""
        random = generator(rank, iteration)
        images = torch.randn(6, 3, 8, 8, generator=random).to(next(self.parameters()))
        labels = torch.randint(0, CLASSES, (6,), generator=random).to(images.device)
        return torch.nn.functional.cross_entropy(self(images), labels)


class Transformer(Module):  # type: ignore[misc]
    """Attention, which uses a projection without calling it; an embedding tied to the decoder; an unused module."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.recurrent = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.decoder = torch.nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.embedding.weight
        self.unused = torch.nn.Linear(3, 3)
        self.frozen = torch.nn.Parameter(torch.ones(WIDTH), requires_grad=False)

    def forward(self, words: Any) -> Any:
        """Scores of the next word."""
        found = self.embedding(words) * self.frozen
        seen, _weights = self.attention(found, found, found, need_weights=False)
        found, _state = self.recurrent(self.norm(found + seen))
        return self.decoder(found)

    def loss(self, rank: int, iteration: int) -> Any:
        """Of sentences that are this rank's own."""
        words = torch.randint(0, WORDS, (4, 9), generator=generator(rank, iteration)).to(next(self.parameters()).device)
        scores = self(words[:, :-1])
        return torch.nn.functional.cross_entropy(scores.reshape(-1, WORDS), words[:, 1:].reshape(-1))


def generator(rank: int, iteration: int) -> Any:
    """Chance of one batch."""
    return torch.Generator().manual_seed(1000 * iteration + rank)


def made(kind: Callable[[], Any], seed: int) -> Any:
    """A model whose parameters follow from the seed alone."""
    with _one_at_a_time, torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind()


def parameters_of(model: Any) -> dict[str, Any]:
    """Copies of all parameters; buffers are each rank's own."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train_alone(
    model: Any,
    optimizer: Any,
    *,
    members: int,
    steps: int,
    loss: Callable[[Any, int, int], Any] | None = None,
    before_step: Callable[[], None] = lambda: None,
    after_step: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """What one process has that sums the same gradients in rank order, and steps with their mean."""
    parameters = list(model.parameters())
    for iteration in range(steps):
        gradients: list[Sequence[Any]] = []
        for rank in range(members):
            optimizer.zero_grad()
            (loss(model, rank, iteration) if loss is not None else model.loss(rank, iteration)).backward()
            gradients.append([None if one.grad is None else one.grad.clone() for one in parameters])
        for number, parameter in enumerate(parameters):
            parameter.grad = mean_of([each[number] for each in gradients])
        before_step()
        optimizer.step()
        after_step()
    return parameters_of(model)


def mean_of(gradients: Sequence[Any]) -> Any:
    """In rank order; None where nobody has one."""
    there = [one for one in gradients if one is not None]
    if not there:
        return None
    total = torch.zeros_like(there[0]) if gradients[0] is None else gradients[0]
    for one in gradients[1:]:
        total = total + (one if one is not None else 0)
    return total / len(gradients)


def differing(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Parameters whose bits differ, and by how much."""
    return {
        name: float((one[name] - other[name]).abs().max()) for name in one if not torch.equal(one[name], other[name])
    }

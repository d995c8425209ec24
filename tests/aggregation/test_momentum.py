"""A momentum that changes while a job trains, also to 0 and back: the server keeps what PyTorch's SGD would keep."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farside.kmod_shim.engine.aggregation import Hyper, Rule
from tests.aggregation.rig import DEADLINE_S, Rig, gradient_of, make_job, start_of
from tests.engine.test_reduce import sgd

CHUNKS = 2
LR = 0.1


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: the optimizer's numbers, and what happens before it."""

    momentum: float
    weight_decay: float = 0.0
    nesterov: bool = False
    absent: bool = False
    event: str = ""

    @property
    def hyper(self) -> Hyper:
        is_nesterov = self.nesterov and self.momentum > 0
        return Hyper(lr=LR, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=is_nesterov)


ITERATIONS = st.builds(
    Iteration,
    momentum=st.sampled_from([0.0, 0.0, 0.9, 0.5]),
    weight_decay=st.sampled_from([0.0, 0.0, 0.01]),
    nesterov=st.booleans(),
    absent=st.sampled_from([False, False, False, True]),
    event=st.sampled_from(["", "", "", "kill", "cut", "fetch", "move"]),
)


class Numpy:
    """PyTorch's SGD in NumPy: a chunk's momentum begins as a copy of the first gradient that needs it."""

    def __init__(self, rig: Rig) -> None:
        self.parameters = [start_of(rig.job, index) for index in range(CHUNKS)]
        self.momentum: list[Any] = [None] * CHUNKS

    def step(self, index: int, gradient: Any, hyper: Hyper) -> None:
        kept = self.momentum[index]
        now = [self.parameters[index], np.zeros_like(gradient) if kept is None else kept]
        self.parameters[index], *changed = sgd(now, gradient, 1 if kept is None else 2, hyper)
        if changed:
            self.momentum[index] = changed[0]


class Torch(Numpy):
    """The real one."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        torch: Any = import_module("torch")
        self._of_numpy = torch.from_numpy
        self._parameters = [torch.nn.Parameter(torch.from_numpy(array.copy())) for array in self.parameters]
        self._optimizers = [torch.optim.SGD([one], lr=LR) for one in self._parameters]

    def step(self, index: int, gradient: Any, hyper: Hyper) -> None:
        one, optimizer = self._parameters[index], self._optimizers[index]
        for name in ("momentum", "weight_decay", "nesterov"):
            optimizer.param_groups[0][name] = getattr(hyper, name)
        one.grad = self._of_numpy(gradient)
        optimizer.step()
        self.parameters[index] = one.detach().numpy()
        buffer = optimizer.state[one].get("momentum_buffer")
        self.momentum[index] = None if buffer is None else buffer.numpy()


def train(oracle_of: type[Numpy], iterations: list[Iteration], *, shm: bool) -> None:
    """Trains through these iterations; parameters of each, and momentum where it is fetched, are the oracle's."""
    rig = Rig(make_job(Rule.SGD, chunks=CHUNKS), shm=shm, hyper=iterations[0].hyper, aggregators=2)
    try:
        rig.start()
        oracle = oracle_of(rig)
        for number, one in enumerate(iterations, 1):
            happen(rig, one.event, number)
            for rank, member in enumerate(rig.members):
                if number > 1:
                    member.hyper(0, number, one.hyper)
                for index in range(CHUNKS):
                    gradient = gradient_of(rig.job, rank, index, number) * (not one.absent)
                    member.gradient(index, number)[:] = gradient.tobytes()
                member.push(0, CHUNKS, number, absent=one.absent)
            for index in range(0 if one.absent else CHUNKS):
                parts = [gradient_of(rig.job, rank, index, number) for rank in (0, 1)]
                oracle.step(index, (parts[0] + parts[1]) / np.float32(2), one.hyper)
            for results in rig.wait(number):
                for index in range(CHUNKS):
                    assert np.array_equal(np.frombuffer(results[index], np.float32), oracle.parameters[index])
            if one.event == "fetch" or number == len(iterations):
                assert_momentum(rig, oracle, number)
    finally:
        rig.close()


def happen(rig: Rig, event: str, number: int) -> None:
    """What goes wrong or is moved before an iteration."""
    if event == "kill":
        rig.kill(number % 2)
    elif event == "cut":
        rig.cut_all()
    elif event == "move" and rig.places[0].next_owner is None:
        rig.move(0, 1 - rig.places[0].owner)


def assert_momentum(rig: Rig, oracle: Numpy, version: int) -> None:
    """What a checkpoint would have."""
    for member in rig.members:
        for index, (_parameters, momentum) in enumerate(member.fetch(0, CHUNKS, version, DEADLINE_S)):
            wanted = oracle.momentum[index]
            assert np.array_equal(momentum, np.zeros_like(momentum) if wanted is None else wanted)


def plain(*momentum: float) -> list[Iteration]:
    return [Iteration(each) for each in momentum]


@given(iterations=st.lists(ITERATIONS, min_size=1, max_size=7), shm=st.booleans())
@example(iterations=plain(0.9, 0, 0.9), shm=True)
@example(iterations=plain(0.9, 0, 0, 0, 0.9), shm=False)
@example(iterations=plain(0, 0, 0.9, 0.9), shm=True)
@example(iterations=[Iteration(0.9), Iteration(0, event="kill"), Iteration(0.9, event="kill")], shm=True)
@example(
    iterations=[Iteration(0.9), Iteration(0, event="fetch"), Iteration(0, event="move"), Iteration(0.9)], shm=False
)
@settings(max_examples=25, deadline=None)
def test_a_momentum_of_0_leaves_what_was_there(iterations: list[Iteration], shm: bool) -> None:
    train(Numpy, iterations, shm=shm)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize(
    "momentum",
    [(0.9, 0, 0.9), (0.9, 0.9, 0, 0, 0.9), (0, 0, 0.9, 0.9), (0.9, 0, 0.5, 0, 0, 0, 0.9, 0), (0.9, 0.5, 0.1, 0.99)],
)
@pytest.mark.parametrize("weight_decay", [0, 0.01])
def test_a_momentum_that_changes_is_pytorchs(momentum: tuple[float, ...], weight_decay: float) -> None:
    for nesterov in (False, True):
        train(Torch, [Iteration(each, weight_decay, nesterov) for each in momentum], shm=True)

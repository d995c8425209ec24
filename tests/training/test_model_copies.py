"""Copies of an attached model, and files with one, are plain models; averages of weights are of the new weights."""

import copy
import io
import pickle
from typing import Any

from tests.training.members import run_members
from tests.training.models import Convolutions, differing, made, needs_torch, parameters_of, torch

pytestmark = needs_torch


def trained(body: Any) -> list[Any]:
    """What ``body(model, optimizer, handle, step)`` returns at each member; ``step(iteration)`` is one iteration."""

    def member(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        handle = attach(model, optimizer)

        def step(iteration: int) -> None:
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()

        return body(model, optimizer, handle, step)

    return run_members(2, member)


def test_a_copy_has_the_new_weights_and_is_a_model_of_its_own() -> None:
    def body(model: Any, _optimizer: Any, handle: Any, step: Any) -> Any:
        step(0)
        copied = copy.deepcopy(model)
        kept = parameters_of(copied)
        step(1)
        copied.loss(0, 2).backward()  # it leaves with nothing
        copied.load_state_dict(copied.state_dict())
        handle.wait()
        return (
            differing(kept, parameters_of(copied)),
            "head.weight" in differing(kept, parameters_of(model)),
            handle.iteration,
        )

    assert trained(body) == [({}, True, 2)] * 2


def test_a_file_with_the_model_is_read_where_farside_is_not() -> None:
    def body(model: Any, _optimizer: Any, handle: Any, step: Any) -> Any:
        step(0)
        file = io.BytesIO()
        torch.save(model, file)
        pickled = pickle.dumps(model)
        handle.wait()
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        loaded(torch.ones(1, 3, 8, 8))
        torch.save(loaded, io.BytesIO())
        return differing(parameters_of(loaded), parameters_of(model)), b"farside." in pickled

    assert trained(body) == [({}, False)] * 2


def test_an_average_of_weights_is_of_the_new_ones() -> None:
    def body(model: Any, _optimizer: Any, handle: Any, step: Any) -> Any:
        average = torch.optim.swa_utils.AveragedModel(model)
        seen = []
        for iteration in range(3):
            step(iteration)
            average.update_parameters(model)
            handle.wait()
            seen.append(parameters_of(model))
        wanted = seen[0]
        for count, one in enumerate(seen[1:], start=1):
            wanted = {name: torch.lerp(wanted[name], one[name], 1 / (count + 1)) for name in wanted}
        return max(differing(parameters_of(average.module), wanted).values(), default=0.0) < 1e-6

    assert trained(body) == [True, True]

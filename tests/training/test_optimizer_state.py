"""The state of an optimizer that the server runs: in checkpoints, and from them into another job."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest

from farside.errors import ConfigError
from tests.training.members import run_members
from tests.training.models import Convolutions, differing, made, needs_torch, parameters_of, torch, train_alone

pytestmark = needs_torch
STEPS = 6

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}


def trained(rank: int, model: Any, optimizer: Any, *, first: int = 0, steps: int = STEPS) -> None:
    for iteration in range(first, first + steps):
        optimizer.zero_grad()
        model.loss(rank, iteration).backward()
        optimizer.step()


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_state_dict_is_pytorchs_own(name: str) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        attach(model, optimizer)
        trained(rank, model, optimizer)
        return copy.deepcopy(optimizer.state_dict()), len(optimizer.state)

    (found, left), (other, _left) = run_members(2, body)

    model = made(Convolutions, 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    train_alone(model, optimizer, members=2, steps=STEPS)
    wanted = optimizer.state_dict()
    assert found["param_groups"][0].pop("farside_iteration") == STEPS
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys() == other["state"].keys()
    for number, state in wanted["state"].items():
        assert found["state"][number].keys() == state.keys()
        for kind, value in state.items():
            assert torch.allclose(found["state"][number][kind], value, rtol=1e-5, atol=1e-7), (number, kind)
            assert torch.equal(found["state"][number][kind], other["state"][number][kind])
    assert left == 0


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_a_job_that_begins_from_rank_0s_checkpoint_goes_on_bit_for_bit(name: str) -> None:
    file = io.BytesIO()

    def first(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle = attach(model, optimizer)
        trained(rank, model, optimizer)
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        trained(rank, model, optimizer, first=STEPS)
        handle.wait()
        return parameters_of(model)

    def second(rank: int, attach: Any) -> Any:
        model = made(Convolutions, rank)
        optimizer = OPTIMIZERS[name](model.parameters())
        if rank == 0:
            file.seek(0)
            kept = torch.load(file)
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
        handle = attach(model, optimizer)
        assert handle.iteration == STEPS
        trained(rank, model, optimizer, first=STEPS)
        handle.wait()
        return parameters_of(model)

    whole, parts = run_members(2, first), run_members(2, second)

    assert [differing(one, whole[0]) for one in (*whole, *parts)] == [{}] * 4


def test_a_checkpoint_of_pytorchs_own_goes_on_as_one_process_does() -> None:
    model = made(Convolutions, 0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train_alone(model, optimizer, members=2, steps=STEPS)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, rank)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(copy.deepcopy(kept[1]))
        handle = attach(model, optimizer)
        trained(rank, model, optimizer)
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    wanted = train_alone(model, optimizer, members=2, steps=STEPS)
    assert [differing(one, wanted) for one in found] == [{}, {}]


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_the_optimizer_goes_on_by_itself_after_a_detach(name: str) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle = attach(model, optimizer)
        trained(0, model, optimizer)
        handle.detach()
        trained(0, model, optimizer, first=STEPS)
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    trained(0, model, optimizer, steps=2 * STEPS)
    assert differing(found[0], found[1]) == {}
    apart = differing(found[0], parameters_of(model))
    assert max((by for name, by in apart.items() if name != "convolution.bias"), default=0.0) <= 1e-6


def test_a_momentum_that_is_0_for_a_while_is_in_the_checkpoint_and_goes_on() -> None:
    schedule = (0.9, 0.0, 0.9, 0.0, 0.0, 0.9)

    def body(rank: int, attach: Any) -> Any:
        model, kept = made(Convolutions, 0), []
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        attach(model, optimizer)
        for iteration, momentum in enumerate(schedule):
            optimizer.param_groups[0]["momentum"] = momentum
            trained(rank, model, optimizer, first=iteration, steps=1)
            kept.append(copy.deepcopy(optimizer.state_dict()["state"]))
        return parameters_of(model), kept

    found = run_members(2, body)

    model = made(Convolutions, 0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    left, wanted = iter(schedule), []
    alone = train_alone(
        model,
        optimizer,
        members=2,
        steps=len(schedule),
        before_step=lambda: optimizer.param_groups[0].update(momentum=next(left)),
        after_step=lambda: wanted.append(copy.deepcopy(optimizer.state_dict()["state"])),
    )
    for parameters, kept in found:
        assert differing(parameters, alone) == {}
        for ours, theirs in zip(kept, wanted, strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[one]["momentum_buffer"], theirs[one]["momentum_buffer"]) for one in ours)


def test_members_that_come_anew_go_on_from_what_the_service_has() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        trained(rank, model, optimizer)
        handle.wait()
        end(handle)
        model = made(Convolutions, 17)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        assert handle.iteration == STEPS
        trained(rank, model, optimizer, first=STEPS)
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, 0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    wanted = train_alone(model, optimizer, members=2, steps=2 * STEPS)
    assert [differing(one, wanted) for one in found] == [{}, {}]


def end(handle: Any) -> None:
    """As the end of a process: the lanes are gone, and nothing is asked of the service."""
    handle._leave()


def test_a_checkpoint_of_another_iteration_than_the_services_is_refused_unless_one_is_chosen() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        handle = attach(model, optimizer)
        trained(rank, model, optimizer, steps=2)
        handle.wait()
        end(handle)
        older = OPTIMIZERS["adam"](model.parameters())
        older.load_state_dict(state_of_one_step(model))
        with pytest.raises(ConfigError) as refused:
            attach(model, older)
        resumed = attach(model, older, resume="service")
        return str(refused.value), resumed.iteration, len(older.state)

    for line, iteration, left in run_members(2, body):
        assert line.startswith("this rank comes with iteration 1, and the job is at iteration 2; resume=")
        assert (iteration, left) == (2, 0)


def test_a_model_that_was_trained_alone_since_is_not_taken_for_the_jobs() -> None:
    """SGD does not count its steps: by the number alone it is where the job is."""

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        trained(rank, model, optimizer, steps=2)
        handle.detach()
        if rank:
            return ""
        trained(rank, model, optimizer, steps=1)
        with pytest.raises(ConfigError) as refused:
            attach(model, optimizer)
        return str(refused.value)

    line = run_members(2, body)[0]

    assert line.startswith(
        "'convolution.weight' is not what the job has at iteration 2, at which this rank says it is;"
    )


def test_a_job_that_goes_on_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def body(rank: int, attach: Any) -> None:
        for _start in range(2):
            model = made(Convolutions, 0)
            optimizer = OPTIMIZERS["sgd"](model.parameters())
            handle = attach(model, optimizer)
            trained(rank, model, optimizer, steps=2)
            handle.wait()
            end(handle)

    run_members(2, body)

    assert caplog.text.count("goes on at iteration 2 with what the Aggregators have kept of it; to begin anew") == 1


def test_a_parameter_whose_gradients_were_zeros_has_a_state() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        attach(model, optimizer)
        (0.0 * model.loss(rank, 0)).backward()
        optimizer.step()
        return sorted(optimizer.state_dict()["state"]), len(list(model.parameters()))

    for kept, count in run_members(2, body):
        assert kept == list(range(count))


def state_of_one_step(model: Any) -> Any:
    other = copy.deepcopy(model)
    optimizer = OPTIMIZERS["adam"](other.parameters())
    other.loss(0, 0).backward()
    optimizer.step()
    return optimizer.state_dict()


@pytest.mark.parametrize("what", ["model", "optimizer"])
def test_a_checkpoint_that_is_loaded_after_attach_is_refused(what: str) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        attach(model, optimizer)
        with pytest.raises(ConfigError) as refused:
            (model if what == "model" else optimizer).load_state_dict(kept[0 if what == "model" else 1])
        return str(refused.value)

    assert run_members(2, body)[0].endswith(
        "load checkpoints before farside.attach; rank 0's counts for all. After training, call handle.detach() first"
    )


def test_parameters_with_other_numbers_of_steps_are_refused() -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        model.loss(0, 0).backward()
        optimizer.step()
        model.head.bias.grad = torch.ones_like(model.head.bias)
        model.wide.weight.grad = None
        optimizer.step()
        with pytest.raises(ConfigError) as refused:
            attach(model, optimizer)
        assert len(optimizer.state) == 8
        return str(refused.value)

    assert "the server counts one for all" in run_members(2, body)[0]


def test_training_goes_on_after_a_state_dict_that_failed() -> None:
    def body(rank: int, attach: Any) -> int:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        handle = attach(model, optimizer)
        trained(rank, model, optimizer, steps=1)

        def fail(*_arguments: Any) -> None:
            raise RuntimeError("no room")

        hook = optimizer.register_state_dict_pre_hook(fail)
        with pytest.raises(RuntimeError, match="no room"):
            optimizer.state_dict()
        hook.remove()
        trained(rank, model, optimizer, first=1, steps=1)
        handle.wait()
        return int(handle.iteration)

    assert run_members(2, body) == [2, 2]

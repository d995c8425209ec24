"""The server's optimizer behind an unchanged training loop: equal to one process, to the bit."""

import operator
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

import pytest

from farside.errors import ConfigError
from tests.training.members import run_members
from tests.training.models import (
    CLASSES,
    Convolutions,
    Module,
    Transformer,
    differing,
    made,
    mean_of,
    needs_torch,
    parameters_of,
    torch,
    train_alone,
)

pytestmark = needs_torch
STEPS = 12

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
}


def train(kind: Any, make: Callable[[Any], Any], *, members: int = 2, steps: int = STEPS, **options: Any) -> list[Any]:
    """The parameters of each member after the plainest of loops."""

    def body(rank: int, attach: Any) -> Any:
        model = made(kind, seed=rank)
        optimizer = make(model.parameters())
        handle = attach(model, optimizer, **options)
        for iteration in range(steps):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        assert handle.iteration == steps
        return parameters_of(model)

    return run_members(members, body)


def alone(kind: Any, make: Callable[[Any], Any], *, members: int = 2, steps: int = STEPS, **options: Any) -> Any:
    model = made(kind, seed=0)
    return train_alone(model, make(model.parameters()), members=members, steps=steps, **options)


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("kind", [Convolutions, Transformer])
@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_sgd_on_the_server_is_one_process_bit_for_bit(name: str, kind: Any, members: int) -> None:
    make = OPTIMIZERS[name]

    found = train(kind, make, members=members, find_unused_parameters=kind is Transformer)

    assert differing(found[0], alone(kind, make, members=members)) == {}
    assert all(differing(found[0], other) == {} for other in found[1:])


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_on_the_server_is_within_1e_6_of_one_process(name: str) -> None:
    found = train(Convolutions, OPTIMIZERS[name])

    assert differing(found[0], found[1]) == {}
    # The bias before a norm has a true gradient of zero: Adam steps on what rounding leaves of it.
    apart = differing(found[0], alone(Convolutions, OPTIMIZERS[name]))
    assert max(by for name, by in apart.items() if name != "convolution.bias") <= 1e-6


def twice(model: Any, rank: int, iteration: int) -> Any:
    """The second of two losses whose gradients add up; the first is differentiated."""
    model.loss(rank, 100 + iteration).backward()
    return model.loss(rank, iteration)


def test_gradients_accumulate_and_leave_with_the_last_backward() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Transformer, seed=0)
        optimizer = OPTIMIZERS["nesterov"](model.parameters())
        handle = attach(model, optimizer, find_unused_parameters=True)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            with handle.accumulate():
                model.loss(rank, 100 + iteration).backward()
            model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    assert differing(found[0], alone(Transformer, OPTIMIZERS["nesterov"], loss=twice)) == {}


def grouped(model: Any) -> Any:
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    weights = [one for name, one in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.SGD(
        [{"params": weights}, {"params": biases, "lr": 0.01, "momentum": 0.0, "weight_decay": 0.0}],
        lr=0.1,
        momentum=0.9,
        weight_decay=1e-3,
    )


def test_groups_have_their_own_numbers_and_a_schedule_changes_them() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = grouped(model)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
        handle = attach(model, optimizer)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
            schedule.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    optimizer = grouped(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    wanted = train_alone(model, optimizer, members=2, steps=STEPS, after_step=schedule.step)
    assert differing(found[0], wanted) == {}


def test_a_state_dict_has_every_update_though_no_forward_has_run_since() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        attach(model, optimizer)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        return {name: kept[name] for name, _parameter in model.named_parameters()}

    found = run_members(2, body)

    assert differing(found[0], alone(Convolutions, OPTIMIZERS["sgd"])) == {}


def test_the_optimizer_has_nothing_to_do_and_gradients_stay_until_zero_grad() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        attach(model, optimizer)
        model.loss(rank, 0).backward()
        before = [one.grad for one in model.parameters()]
        optimizer.step()
        after = [one.grad for one in model.parameters()]
        optimizer.zero_grad()
        return (
            len(optimizer.state), all(map(operator.is_, before, after)), {one.grad for one in model.parameters()}
        )  # fmt: skip

    assert run_members(2, body) == [(0, True, {None})] * 2


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_zeros_that_zero_grad_leaves_count_as_a_gradient(name: str) -> None:
    """As in PyTorch: decay, momentum and moments go on of a parameter that an iteration does not use."""

    def body(rank: int, attach: Any) -> Any:
        model = made(Heads, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle = attach(model, optimizer, find_unused_parameters=True)
        for iteration, used in enumerate(USED):
            optimizer.zero_grad(set_to_none=False)
            model.loss(rank, iteration, used[rank]).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Heads, 0)
    optimizer = OPTIMIZERS[name](model.parameters())
    for iteration, used in enumerate(USED):
        gradients = []
        for rank in (0, 1):
            optimizer.zero_grad(set_to_none=False)
            model.loss(rank, iteration, used[rank]).backward()
            gradients.append([one.grad.clone() for one in model.parameters()])
        for parameter, each in zip(model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad.copy_(mean_of(each))
        optimizer.step()
    apart = [by for one in found for by in differing(one, parameters_of(model)).values()]
    assert max(apart, default=0.0) <= (0.0 if name == "sgd" else 1e-6)


def test_gradients_add_up_over_steps_until_zero_grad() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        for iteration in range(4):
            if iteration % 2 == 0:
                optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    sums: dict[int, list[Any]] = {}
    for iteration in range(4):
        for rank in (0, 1):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            now = [one.grad.clone() for one in model.parameters()]
            sums[rank] = now if iteration % 2 == 0 else [one + more for one, more in zip(sums[rank], now, strict=True)]
        for parameter, each in zip(model.parameters(), zip(sums[0], sums[1], strict=True), strict=True):
            parameter.grad.copy_(mean_of(each))
        optimizer.step()
    assert [differing(one, parameters_of(model)) for one in found] == [{}, {}]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_models_of_half_the_width_are_updated_in_float32_and_equal_on_all_members(name: str) -> None:
    dtype = getattr(torch, name)

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0).to(dtype)
        optimizer = OPTIMIZERS["nesterov"](model.parameters())
        handle = attach(model, optimizer)
        first = model.loss(0, 0).item()
        for _iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(0, 0).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model), first, model.loss(0, 0).item()

    found = run_members(2, body)

    assert differing(found[0][0], found[1][0]) == {}
    assert found[0][2] < found[0][1] / 2


@pytest.mark.parametrize("kind", [Convolutions, Transformer])
def test_parameters_that_are_waited_for_at_once_are_the_same(kind: Any) -> None:
    found = train(kind, OPTIMIZERS["nesterov"], overlap=False, find_unused_parameters=kind is Transformer)

    assert differing(found[1], alone(kind, OPTIMIZERS["nesterov"])) == {}


def test_an_evaluation_right_after_a_step_sees_its_update() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Transformer, seed=0)
        optimizer = OPTIMIZERS["nesterov"](model.parameters())
        attach(model, optimizer, find_unused_parameters=True)
        losses = []
        for iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
            model.eval()
            with torch.inference_mode():
                losses.append(model.loss(9, 9).item())
            model.train()
        return losses

    found = run_members(2, body)

    model, losses = made(Transformer, seed=0), []
    optimizer = OPTIMIZERS["nesterov"](model.parameters())

    def evaluate() -> None:
        model.eval()
        with torch.inference_mode():
            losses.append(model.loss(9, 9).item())
        model.train()

    train_alone(model, optimizer, members=2, steps=STEPS, after_step=evaluate)
    assert found == [losses, losses]


def test_training_goes_on_alone_after_a_detach() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer)
        model.loss(rank, 0).backward()
        optimizer.step()
        handle.detach()
        handle.detach()
        optimizer.zero_grad()
        model.loss(5, 1).backward()
        optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    assert differing(found[0], found[1]) == {}


def test_a_member_without_a_gradient_takes_part_with_zeros() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            if rank == 0 or iteration % 2:
                model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    def sometimes(model: Any, rank: int, iteration: int) -> Any:
        return model.loss(rank, iteration) * (1 if rank == 0 or iteration % 2 else 0)

    wanted = alone(Convolutions, lambda parameters: torch.optim.SGD(parameters, lr=0.1), loss=sometimes)
    assert differing(found[0], found[1]) == {}
    assert differing(found[0], wanted) == {}


class Heads(Module):  # type: ignore[misc]
    """A trunk with two heads, of which an iteration uses one, both or none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = torch.nn.Linear(8, 8)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(8, 2) for _ in range(2))

    def loss(self, rank: int, iteration: int, used: Any) -> Any:
        """By the heads that are used; the trunk has a gradient in any case."""
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * iteration + rank))
        hidden = torch.relu(self.trunk(inputs))
        return hidden.square().mean() + sum(self.heads[number](hidden).square().mean() for number in used)


# By iteration and rank, the heads that are used: by all, by one rank, by none, and again.
USED: list[list[set[int]]] = [
    [{0, 1}, {0, 1}],
    [{0}, {0}],
    [{0}, {0, 1}],
    [set(), set()],
    [{1}, set()],
    [{0}, {1}],
    [{0, 1}, {0, 1}],
]


def train_heads(name: str) -> list[Any]:
    def body(rank: int, attach: Any) -> Any:
        model = made(Heads, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle = attach(model, optimizer, find_unused_parameters=True)
        for iteration, used in enumerate(USED):
            optimizer.zero_grad()
            model.loss(rank, iteration, used[rank]).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    return run_members(2, body)


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_a_parameter_that_no_member_used_stays_as_it_is_and_its_momentum_too(name: str) -> None:
    found = train_heads(name)

    model = made(Heads, 0)
    wanted = train_alone(
        model, OPTIMIZERS[name](model.parameters()), members=2, steps=len(USED),
        loss=lambda model, rank, iteration: model.loss(rank, iteration, USED[iteration][rank]),
    )  # fmt: skip
    assert [differing(one, wanted) for one in found] == [{}, {}]


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("sgd", {}, "'heads.1.weight' has no gradient in this iteration; use farside.attach(..., find_unused_"),
        ("adam", {"find_unused_parameters": True}, "'heads.1.bias' has a gradient now, and had none in an iteration"),
    ],
)
def test_where_a_parameter_without_a_gradient_can_not_be_passed_over_it_is_refused(
    name: str, options: dict[str, Any], line: str
) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Heads, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        attach(model, optimizer, **options)

        def train() -> None:
            for iteration, used in enumerate(({0, 1}, {0}, {0, 1})):
                optimizer.zero_grad()
                model.loss(rank, iteration, used).backward()
                optimizer.step()

        with pytest.raises(ConfigError) as refused:
            train()
        return str(refused.value)

    for found in run_members(2, body):
        assert line in found
        assert "\n" not in found


def test_zeros_are_a_gradient_like_any_where_they_change_nothing() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Heads, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer)
        model.loss(rank, 0, {0}).backward()
        optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    assert torch.equal(found[0]["heads.1.weight"], parameters_of(made(Heads, 0))["heads.1.weight"])


def test_adam_passes_over_what_is_never_used_and_keeps_no_state_of_it() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Heads, 0)
        optimizer = OPTIMIZERS["adamw"](model.parameters())
        handle = attach(model, optimizer, find_unused_parameters=True)
        for iteration in range(3):
            optimizer.zero_grad()
            model.loss(rank, iteration, {0}).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model), sorted(optimizer.state_dict()["state"])

    (found, kept), _other = run_members(2, body)

    assert torch.equal(found["heads.1.weight"], parameters_of(made(Heads, 0))["heads.1.weight"])
    assert kept == [0, 1, 2, 3]


def clamped(model: Any) -> None:
    for parameter in model.parameters():
        parameter.data.clamp_(-0.01, 0.01)


def replaced(model: Any) -> None:
    model.head.bias.data = torch.ones(10)


def changed_in_one_place(model: Any) -> None:
    with torch.no_grad():
        model.wide.weight[3, 4] += 1


@pytest.mark.parametrize("change", [clamped, replaced, changed_in_one_place])
@pytest.mark.parametrize("waits", [True, False])
def test_parameters_that_are_changed_by_hand_are_noticed(change: Callable[[Any], None], waits: bool) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)

        def train(first: int) -> None:
            for iteration in range(first, first + 2):
                optimizer.zero_grad()
                model.loss(rank, iteration).backward()
                optimizer.step()

        train(0)
        if waits:
            handle.wait()
        change(model)
        with pytest.raises(ConfigError) as refused:
            train(2)
        return str(refused.value)

    line = run_members(2, body)[0]

    assert "was changed by hand since farside.attach; the server has it as it was" in line


class Joined(Module):  # type: ignore[misc]
    """Two parameters that are used as one: their gradients are parts of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.rand(3, 4))
        self.other = torch.nn.Parameter(torch.rand(5, 4))

    def forward(self, inputs: Any) -> Any:
        """As by one layer."""
        return torch.nn.functional.linear(inputs, torch.cat([self.one, self.other]))

    def loss(self, rank: int, iteration: int) -> Any:
        """Loss of inputs that are this rank's own."""
        return self(torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * iteration + rank))).square().mean()


@pytest.mark.parametrize("update", ["server", "worker"])
def test_gradients_that_are_parts_of_one_tensor_may_accumulate(update: str) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Joined, seed=0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer, update=update)
        for iteration in range(4):
            optimizer.zero_grad(set_to_none=False)
            with handle.accumulate():
                model.loss(rank, 100 + iteration).backward()
            model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    wanted = alone(Joined, OPTIMIZERS["sgd"], loss=twice, steps=4)
    assert [differing(one, wanted) for one in found] == [{}, {}]


def test_parameters_that_are_exchanged_for_an_evaluation_and_put_back_are_not_changed() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        for iteration in range(4):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
            handle.wait()
            with torch.no_grad():
                kept = parameters_of(model)
                for parameter in model.parameters():
                    parameter.zero_()
                for name, parameter in model.named_parameters():
                    parameter.copy_(kept[name])
        return parameters_of(model)

    found = run_members(2, body)

    assert differing(found[0], alone(Convolutions, OPTIMIZERS["sgd"], steps=4)) == {}


def test_a_model_whose_halves_run_in_threads_is_one_process() -> None:
    """Two threads find the same result new; only one copies it."""

    def halves(model: Any, rank: int, iteration: int) -> Any:
        with ThreadPoolExecutor(2) as threads:
            first, second = threads.map(lambda at: model.loss(rank, 2 * iteration + at), (0, 1))
        return first + second

    class Plain(torch.nn.Linear):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(8, 4)

        def loss(self, rank: int, iteration: int) -> Any:
            inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * iteration + rank))
            return self(inputs).square().mean()

    def body(rank: int, attach: Any) -> Any:
        model = made(Plain, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        handle = attach(model, optimizer)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            halves(model, rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Plain, 0)
    wanted = train_alone(
        model, OPTIMIZERS["sgd"](model.parameters()), members=2, steps=STEPS, loss=halves
    )  # fmt: skip
    assert [differing(one, wanted) for one in found] == [{}, {}]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_trace_right_after_a_step_is_that_of_a_model_that_is_not_attached() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        attach(model, optimizer)
        model.loss(rank, 0).backward()
        optimizer.step()
        if rank:  # members are threads here, and PyTorch traces one model at a time
            return True
        images = torch.ones(2, 3, 8, 8)
        traced = torch.jit.trace(model.eval(), images)
        return bool(torch.equal(traced(images), model(images)))

    assert run_members(2, body) == [True, True]


def test_a_parameter_that_the_optimizer_does_not_have_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def body(rank: int, attach: Any) -> None:
        model = made(Convolutions, 0)
        attach(model, OPTIMIZERS["sgd"](model.head.parameters()))

    run_members(2, body)

    assert "the optimizer does not have 'convolution.weight' and 5 others: each rank keeps its own" in caplog.text


def test_a_new_module_that_the_optimizer_does_not_have_is_told_of_when_it_trains(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def body(rank: int, attach: Any) -> None:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        attach(model, optimizer)
        model.probe = torch.nn.Linear(CLASSES, 1)
        model.idle = torch.nn.Linear(1, 1)
        for iteration in range(3):
            optimizer.zero_grad()
            (model.loss(rank, iteration) + model.probe(torch.ones(CLASSES)).sum()).backward()
            optimizer.step()

    run_members(2, body)

    line = "parameter 'probe.weight' has come into the model since farside.attach, and is not aggregated: each rank"
    assert caplog.text.count(line) == 2
    assert "idle" not in caplog.text


@pytest.mark.parametrize("early", [True, False])
def test_gradients_that_a_hook_clears_after_each_step_do_not_count_again(early: bool) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS["sgd"](model.parameters())

        def clear(*_arguments: Any) -> None:
            assert all(one.grad is not None for one in model.parameters())
            optimizer.zero_grad()

        if early:
            optimizer.register_step_post_hook(clear)
        handle = attach(model, optimizer)
        if not early:
            optimizer.register_step_post_hook(clear)
        for iteration in range(STEPS):
            model.loss(rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    assert [differing(one, alone(Convolutions, OPTIMIZERS["sgd"])) for one in found] == [{}, {}]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_state_that_torch_distributed_checkpoint_asks_for_costs_no_iteration(name: str) -> None:
    state_dicts: Any = import_module("torch.distributed.checkpoint.state_dict")

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle, kept = attach(model, optimizer), {}
        for iteration in range(STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
            optimizer.zero_grad()
            kept = state_dicts.get_optimizer_state_dict(model, optimizer)["state"]
        handle.wait()
        return handle.iteration, len(kept), parameters_of(model)

    found = run_members(2, body)

    wanted = alone(Convolutions, OPTIMIZERS[name])
    for iterations, kept, parameters in found:
        assert (iterations, kept) == (STEPS, len(wanted))
        apart = [by for one, by in differing(parameters, wanted).items() if one != "convolution.bias"]
        assert max(apart, default=0.0) <= (0.0 if name == "sgd" else 1e-6)

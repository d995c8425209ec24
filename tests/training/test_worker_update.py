"""The mean of all members' gradients in `grad` when `backward()` returns: any optimizer, clipping and scaling."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.training.members import run_members
from tests.training.models import (
    Convolutions,
    Module,
    Transformer,
    differing,
    made,
    needs_torch,
    parameters_of,
    torch,
    train_alone,
)

pytestmark = needs_torch
STEPS = 8

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, weight_decay=0.1),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-2),
}


def clipped(model: Any) -> Callable[[], None]:
    return lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("kind", [Convolutions, Transformer])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_any_optimizer_with_clipping_is_one_process_bit_for_bit(name: str, kind: Any, members: int) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(kind, seed=rank)
        optimizer = OPTIMIZERS[name](model.parameters())
        handle = attach(model, optimizer, update="worker")
        for iteration in range(handle.iteration, STEPS):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            clipped(model)()
            optimizer.step()
        assert handle.iteration == handle.stats().iterations == STEPS
        return parameters_of(model)

    found = run_members(members, body)

    model = made(kind, seed=0)
    optimizer = OPTIMIZERS[name](model.parameters())
    wanted = train_alone(model, optimizer, members=members, steps=STEPS, before_step=clipped(model))
    assert all(differing(one, wanted) == {} for one in found)


def test_a_parameter_that_no_member_used_has_no_gradient() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Transformer, seed=0)
        attach(model, OPTIMIZERS["adam"](model.parameters()), update="worker")
        model.loss(rank, 0).backward()
        return [name for name, one in model.named_parameters() if one.grad is None and one.requires_grad]

    assert run_members(2, body) == [["unused.weight", "unused.bias"]] * 2


def test_a_parameter_that_one_member_used_has_a_gradient_on_all() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Transformer, seed=0)
        attach(model, OPTIMIZERS["adam"](model.parameters()), update="worker")
        loss = model.loss(rank, 0)
        (loss if rank == 0 else loss + model.unused(torch.ones(3)).sum()).backward()
        return model.unused.weight.grad

    found = run_members(2, body)

    assert torch.equal(found[0], torch.full((3, 3), 0.5))
    assert torch.equal(found[1], found[0])


def test_a_checkpoint_that_all_ranks_load_after_attach_counts() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        attach(model, optimizer, update="worker")
        model.load_state_dict(made(Convolutions, seed=7).state_dict())
        optimizer.zero_grad()
        model.loss(rank, 0).backward()
        optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=7)
    wanted = train_alone(model, OPTIMIZERS["adam"](model.parameters()), members=2, steps=1)
    assert [differing(one, wanted) for one in found] == [{}, {}]


def test_a_scaler_that_skips_a_step_skips_it_on_all_members() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attach(model, optimizer, update="worker")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        for iteration in range(STEPS):
            optimizer.zero_grad()
            loss = model.loss(rank, iteration) * (float("inf") if iteration == 2 and rank == 1 else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        return parameters_of(model), scaler.get_scale()

    found = run_members(2, body)

    assert differing(found[0][0], found[1][0]) == {}
    assert found[0][1] == found[1][1]
    assert all(bool(one.isfinite().all()) for one in found[0][0].values())


def test_gradients_accumulate_within_the_handles_block() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Transformer, seed=0)
        optimizer = OPTIMIZERS["rmsprop"](model.parameters())
        handle = attach(model, optimizer, update="worker")
        for iteration in range(STEPS):
            optimizer.zero_grad()
            with handle.accumulate():
                model.loss(rank, 100 + iteration).backward()
            model.loss(rank, iteration).backward()
            optimizer.step()
        return parameters_of(model), handle.stats().iterations

    found = run_members(2, body)

    def twice(model: Any, rank: int, iteration: int) -> Any:
        model.loss(rank, 100 + iteration).backward()
        return model.loss(rank, iteration)

    model = made(Transformer, seed=0)
    wanted = train_alone(model, OPTIMIZERS["rmsprop"](model.parameters()), members=2, steps=STEPS, loss=twice)
    assert differing(found[0][0], wanted) == {}
    assert found[0][1] == STEPS


def test_checkpointed_layers_that_run_a_backward_of_their_own_are_one_process_too() -> None:
    def loss(model: Any, rank: int, iteration: int) -> Any:
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(10 * iteration + rank))
        found = torch.relu(model.norm(model.convolution(images.requires_grad_()))).flatten(1)
        hidden = torch.utils.checkpoint.checkpoint(model.wide, found, use_reentrant=True)
        return torch.nn.functional.cross_entropy(model.head(hidden), torch.arange(4))

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = OPTIMIZERS["rmsprop"](model.parameters())
        attach(model, optimizer, update="worker")
        for iteration in range(STEPS):
            optimizer.zero_grad()
            loss(model, rank, iteration).backward()
            optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    wanted = train_alone(model, OPTIMIZERS["rmsprop"](model.parameters()), members=2, steps=STEPS, loss=loss)
    assert all(differing(one, wanted) == {} for one in found)


def test_parameters_that_are_frozen_after_attach_are_trained_when_they_are_unfrozen_again() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=rank)
        optimizer = OPTIMIZERS["adam"](model.parameters())
        attach(model, optimizer, update="worker")
        for iteration in range(STEPS):
            model.wide.requires_grad_(iteration >= STEPS // 2)
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    def loss(model: Any, rank: int, iteration: int) -> Any:
        model.wide.requires_grad_(iteration >= STEPS // 2)
        return model.loss(rank, iteration)

    model = made(Convolutions, seed=0)
    wanted = train_alone(model, OPTIMIZERS["adam"](model.parameters()), members=2, steps=STEPS, loss=loss)
    assert [differing(one, wanted) for one in found] == [{}, {}]


class Pair(Module):  # type: ignore[misc]
    """A network that makes numbers, and one that tells these from others: an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = torch.nn.Linear(4, 6)
        self.judge = torch.nn.Linear(6, 1)

    def losses(self, rank: int, iteration: int) -> tuple[Any, Any]:
        """The judge's, and the maker's."""
        random = torch.Generator().manual_seed(100 * iteration + rank)
        made, real = self.maker(torch.randn(5, 4, generator=random)), torch.randn(5, 6, generator=random)
        judged = self.judge(made.detach()).square().mean() + (self.judge(real) - 1).square().mean()
        return judged, (self.judge(made) - 1).square().mean()


def test_two_models_with_an_optimizer_each_are_one_process_when_both_are_attached_as_one() -> None:
    def optimizers(pair: Any) -> list[Any]:
        return [torch.optim.Adam(one.parameters(), lr=1e-2) for one in (pair.judge, pair.maker)]

    def body(rank: int, attach: Any) -> Any:
        pair = made(Pair, seed=rank)
        both = torch.nn.ModuleDict({"judge": pair.judge, "maker": pair.maker})
        steps = optimizers(pair)
        attach(both, steps[0], update="worker")
        for iteration in range(STEPS):
            for number, optimizer in enumerate(steps):
                optimizer.zero_grad()
                pair.losses(rank, iteration)[number].backward()
                optimizer.step()
        return parameters_of(pair)

    found = run_members(2, body)

    pair = made(Pair, seed=0)
    steps = optimizers(pair)
    for iteration in range(STEPS):
        for number, optimizer in enumerate(steps):
            own = list((pair.judge, pair.maker)[number].parameters())
            each = [torch.autograd.grad(pair.losses(rank, iteration)[number], own) for rank in (0, 1)]
            for parameter, one, other in zip(own, *each, strict=True):
                parameter.grad = (one + other) / 2
            optimizer.step()
    assert [differing(one, parameters_of(pair)) for one in found] == [{}, {}]


def test_one_model_may_gather_gradients_while_the_other_steps() -> None:
    def body(rank: int, attach: Any) -> Any:
        both = torch.nn.ModuleDict({"one": made(Convolutions, 0), "other": made(Convolutions, 1)})
        optimizers = [torch.optim.SGD(both[name].parameters(), lr=0.1) for name in ("one", "other")]
        handle = attach(both, optimizers[0], update="worker")
        both["one"].loss(rank, 0).backward()
        with handle.accumulate():
            both["other"].loss(rank, 1).backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        both["other"].loss(rank, 2).backward()
        optimizers[1].step()
        return parameters_of(both)

    found = run_members(2, body)

    assert differing(found[0], found[1]) == {}


def test_a_mean_may_be_clipped_and_replaced_between_several_steps() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        attach(model, optimizer, update="worker")
        model.loss(rank, 0).backward()
        with torch.inference_mode():
            for parameter in model.parameters():
                parameter.grad = parameter.grad * 0.5
        optimizer.step()
        optimizer.zero_grad()
        model.loss(rank, 1).backward()
        for _step in range(2):
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    assert differing(found[0], found[1]) == {}


Optimizer: Any = torch.optim.Optimizer if torch is not None else object


class Wrapper(Optimizer):  # type: ignore[misc]
    """An optimizer around another one, as libraries have them: it is none itself, and takes no hooks."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:
        """The other one's."""
        return self.inner.param_groups

    def step(self) -> None:
        """The other one's."""
        self.inner.step()


def test_an_optimizer_inside_of_a_wrapper_steps_with_the_means() -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=rank)
        inner = OPTIMIZERS["adam"](model.parameters())
        optimizer = Wrapper(inner)
        attach(model, optimizer, update="worker")
        model.loss(rank, 0).backward()
        optimizer.step()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    wanted = train_alone(model, OPTIMIZERS["adam"](model.parameters()), members=2, steps=1)
    assert [differing(one, wanted) for one in found] == [{}, {}]

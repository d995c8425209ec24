"""What can't be aggregated is refused with one line, before anything has changed or while training."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from farside.errors import ConfigError, FarsideError
from tests.training.members import run_members
from tests.training.models import Convolutions, made, needs_torch, parameters_of, torch

pytestmark = needs_torch


def nobody() -> Any:
    raise AssertionError("it was to be refused before the service is looked for")


def attach(model: Any, optimizer: Any, *, update: str = "server") -> Any:
    from farside.training.door import open_door

    return open_door(
        model,
        optimizer,
        update=update,
        overlap=True,
        resume=None,
        find_unused_parameters=False,
        source_of=nobody,
        session_of=nobody,
    )


def sgd(model: Any, **options: Any) -> Any:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def own_optimizer(model: Any) -> Any:
    return type("OwnSGD", (torch.optim.SGD,), {})(model.parameters(), lr=0.1)


def sharded() -> Any:
    return type("FullyShardedDataParallel", (torch.nn.Module,), {})()


AT_ATTACH: dict[str, tuple[Callable[[], tuple[Any, Any]], str]] = {
    "no-model": (lambda: ([], None), "the model is a list"),
    "no-optimizer": (lambda: (made(Convolutions, 0), "sgd"), "the optimizer is a str"),
    "sparse": (lambda: with_sgd(torch.nn.Embedding(9, 9, sparse=True)), "sparse gradients; make it with sparse=False"),
    "double": (lambda: with_sgd(torch.nn.Linear(3, 3).double()), "is of torch.float64; float32, float16"),
    "lazy": (lambda: with_sgd(torch.nn.LazyLinear(3)), "only ordinary parameters can be aggregated"),
    "meta": (lambda: with_sgd(torch.nn.Linear(3, 3, device="meta")), "is on device meta"),
    "wrapped": (lambda: with_sgd(torch.nn.DataParallel(torch.nn.Linear(3, 3))), "wrapped by DataParallel"),
    "sharded": (lambda: (sharded(), sgd(torch.nn.Linear(3, 3))), "is sharded (FullyShardedDataParallel)"),
    "rmsprop": (lambda: with_optimizer(torch.optim.RMSprop), 'no optimizer RMSprop, only SGD, Adam and AdamW; use'),
    "own": (lambda: (model := made(Convolutions, 0), own_optimizer(model)), "no optimizer OwnSGD"),
    "dampening": (lambda: with_optimizer(torch.optim.SGD, momentum=0.9, dampening=0.1), "the option dampening"),
    "maximize": (lambda: with_optimizer(torch.optim.Adam, maximize=True), "the option maximize"),
    "amsgrad": (lambda: with_optimizer(torch.optim.AdamW, amsgrad=True), "the option amsgrad"),
    "expanded": (lambda: with_sgd(holding(torch.zeros(3, 1).expand(3, 4))), "several elements in the same memory"),
    "overlapping": (lambda: with_sgd(one_memory()), "'0.weight' and '1.weight' are in the same memory; make them one"),
    "stranger": (lambda: (made(Convolutions, 0), sgd(torch.nn.Linear(3, 3))), "the model does not have"),
    "frozen": (lambda: with_sgd(made(Convolutions, 0).requires_grad_(False)), "no parameter wants a gradient"),
}  # fmt: skip


def holding(values: Any) -> Any:
    model = torch.nn.Module()
    model.values = torch.nn.Parameter(values)
    return model


def one_memory() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight.data = model[0].weight.data
    return model


def with_sgd(model: Any) -> tuple[Any, Any]:
    return model, sgd(model)


def with_optimizer(kind: Any, **options: Any) -> tuple[Any, Any]:
    model = made(Convolutions, 0)
    return model, kind(model.parameters(), lr=0.1, **options)


@pytest.mark.parametrize("case", AT_ATTACH)
def test_what_cannot_be_aggregated_is_refused_before_the_service_is_looked_for(case: str) -> None:
    make, line = AT_ATTACH[case]
    model, optimizer = make()

    with pytest.raises(ConfigError) as refused:
        attach(model, optimizer)

    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_with_nothing_to_train_is_refused_where_workers_update_too() -> None:
    with pytest.raises(ConfigError, match=r"no parameter wants a gradient, .*unfreeze what is to be trained before"):
        attach(*with_sgd(made(Convolutions, 0).requires_grad_(False)), update="worker")


def test_another_kind_of_update_is_refused() -> None:
    with pytest.raises(ConfigError, match='update is "both"'):
        attach(*with_optimizer(torch.optim.SGD), update="both")


def test_a_resume_that_is_none_says_how_to_begin_from_a_checkpoint() -> None:
    from farside.training.door import open_door

    model, optimizer = with_optimizer(torch.optim.SGD)
    with pytest.raises(ConfigError, match=r'resume is "mine".*load it at rank 0 and name another job'):
        open_door(
            model, optimizer, update="server", overlap=True, resume="mine", find_unused_parameters=False,
            source_of=nobody, session_of=nobody,
        )  # fmt: skip


def test_decoupled_decay_in_some_groups_only_is_refused() -> None:
    model = made(Convolutions, 0)
    groups = [
        {"params": list(model.wide.parameters()), "decoupled_weight_decay": True},
        {"params": list(model.head.parameters())},
    ]

    with pytest.raises(ConfigError, match="decoupled_weight_decay differs"):
        attach(model, torch.optim.Adam(groups))


# While training: what is done between attach and the refusal, on both members.


def clip(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()


def clip_a_few(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    gradient = model.wide.weight.grad
    few = float(gradient.abs().flatten().topk(3).values[-1])
    torch.nn.utils.clip_grad_value_([model.wide.weight], few)
    optimizer.step()


def clip_none(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()


def hook_late(model: Any, optimizer: Any, handle: Any) -> None:
    def add(parameter: Any) -> None:
        parameter.grad[5, 7] += 100

    model.wide.weight.register_post_accumulate_grad_hook(add)
    model.loss(0, 0).backward()
    optimizer.step()


def exchange(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    model.wide.weight.grad = model.wide.weight.grad.clone()
    optimizer.step()


def unscale(model: Any, optimizer: Any, handle: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(model.loss(0, 0)).backward()
    scaler.step(optimizer)


def unscale_within_the_step(model: Any, optimizer: Any, handle: Any) -> None:
    """As GradScaler does with a fused optimizer: the gradients themselves stay as they are."""
    model.loss(0, 0).backward()
    optimizer.grad_scale, optimizer.found_inf = torch.full((), 8.0), torch.zeros(())
    optimizer.step()


def clip_in_a_late_hook_of_the_step(model: Any, optimizer: Any, handle: Any) -> None:
    def clip_all(*_arguments: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)

    optimizer.register_step_pre_hook(clip_all)
    model.loss(0, 0).backward()
    optimizer.step()


def hook_the_step_after_backward(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    optimizer.register_step_pre_hook(lambda *_arguments: None)
    optimizer.step()


def take_one_out(model: Any, optimizer: Any, handle: Any) -> None:
    optimizer.param_groups[0]["params"].pop()
    model.loss(0, 0).backward()


def move_one_to_another_group(model: Any, optimizer: Any, handle: Any) -> None:
    moved = optimizer.param_groups[0]["params"].pop()
    optimizer.add_param_group({"params": [moved], "lr": 0.5})
    model.loss(0, 0).backward()


def set_momentum(model: Any, optimizer: Any, handle: Any) -> None:
    optimizer.state[model.wide.weight]["momentum_buffer"] = torch.ones_like(model.wide.weight)
    model.loss(0, 0).backward()


def restart_momentum(model: Any, optimizer: Any, handle: Any) -> None:
    optimizer.state = {}
    model.loss(0, 0).backward()


def drop(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    optimizer.zero_grad()
    optimizer.step()


def twice(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    model.loss(0, 1).backward()


def graph(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward(create_graph=True)


def closure(model: Any, optimizer: Any, handle: Any) -> None:
    optimizer.step(lambda: 0.0)


def schedule_early(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    optimizer.param_groups[0]["lr"] = 0.01
    optimizer.step()


def new_option(model: Any, optimizer: Any, handle: Any) -> None:
    optimizer.param_groups[0]["dampening"] = 0.5
    model.loss(0, 0).backward()


def new_group(model: Any, optimizer: Any, handle: Any) -> None:
    model.more = torch.nn.Linear(2, 2)
    optimizer.add_param_group({"params": list(model.more.parameters())})
    model.loss(0, 0).backward()


def unfreeze(model: Any, optimizer: Any, handle: Any) -> None:
    model.norm.bias.requires_grad_(True)
    model.loss(0, 0).backward()


def convert(model: Any, optimizer: Any, handle: Any) -> None:
    model.double().loss(0, 0).backward()


def step_within(model: Any, optimizer: Any, handle: Any) -> None:
    with handle.accumulate():
        model.loss(0, 0).backward()
        optimizer.step()


def again(model: Any, optimizer: Any, handle: Any) -> None:
    attach(model, optimizer)


def again_with_another(model: Any, optimizer: Any, handle: Any) -> None:
    attach(model, sgd(model), update="worker")


WHILE_TRAINING = {
    clip: "was changed after backward(), as clipping and GradScaler do; the server has it as it was; use farside",
    clip_a_few: "the gradient of 'wide.weight' was changed after backward()",
    clip_none: "was changed after backward()",
    hook_late: "the gradient of 'wide.weight' was changed after backward()",
    exchange: "the gradient of 'wide.weight' was changed after backward()",
    unscale: "was changed after backward()",
    unscale_within_the_step: "a GradScaler wants optimizer.step() to unscale the gradients; the server has them as",
    clip_in_a_late_hook_of_the_step: "was changed after backward()",
    hook_the_step_after_backward: "a hook was set before optimizer.step() that would find no gradients any more; set",
    take_one_out: "the optimizer's parameters or the kind of a group are other ones than at farside.attach",
    move_one_to_another_group: "the optimizer's parameters or the kind of a group are other ones",
    set_momentum: "optimizer.state was changed by hand since farside.attach, and the server has the state; change it",
    restart_momentum: "optimizer.state was changed by hand",
    drop: "was changed after backward()",
    twice: "twice without optimizer.step(); put all but the last one into `with handle.accumulate():`",
    graph: "without create_graph=True",
    closure: "optimizer.step() has a closure",
    schedule_early: "changed between backward() and step()",
    new_option: "the option dampening",
    new_group: "parameter 'more.weight' was added to the optimizer after farside.attach, and is not aggregated; add",
    unfreeze: "parameter 'norm.bias' was unfrozen after farside.attach, and is not aggregated; unfreeze it before",
    convert: "is of torch.float64 on cpu now; it was of torch.float32 on cpu when it was attached",
    step_within: "optimizer.step() within handle.accumulate()",
    again: "attached already; call handle.detach() first",
    again_with_another: "attached already",
}


@pytest.mark.parametrize("wrong", WHILE_TRAINING, ids=lambda wrong: str(wrong.__name__))
def test_what_would_be_ignored_silently_is_refused_with_one_line(wrong: Callable[..., None]) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        model.norm.bias.requires_grad_(False)
        optimizer = sgd(model)
        handle = attach(model, optimizer)
        with pytest.raises(FarsideError) as refused:
            wrong(model, optimizer, handle)
        return str(refused.value)

    lines = run_members(2, body)

    assert WHILE_TRAINING[wrong] in lines[0]
    assert "\n" not in lines[0]
    assert lines[0] == lines[1]


def test_a_second_model_in_the_same_place_of_a_job_is_refused_and_the_first_one_goes_on() -> None:
    def body(rank: int, attach: Any) -> str:
        model, second = made(Convolutions, 0), made(Convolutions, 1)
        optimizer = sgd(model)
        handle = attach(model, optimizer)
        with pytest.raises(ConfigError) as refused:
            attach(second, sgd(second))
        model.loss(rank, 0).backward()
        optimizer.step()
        handle.wait()
        assert handle.iteration == 1
        return str(refused.value)

    line = run_members(2, body)[0]

    assert (
        "with another model already; call detach() of its handle first; to train both, attach them as one torch" in line
    )
    assert "\n" not in line


def hook_in_backward(model: Any, optimizer: Any, handle: Any) -> None:
    def add(parameter: Any) -> None:
        parameter.grad[5, 7] += 100

    model.wide.weight.register_post_accumulate_grad_hook(add)
    model.loss(0, 0).backward()


def step_in_backward(model: Any, optimizer: Any, handle: Any) -> None:
    def step(parameter: Any) -> None:
        parameter.grad = None

    model.wide.weight.register_post_accumulate_grad_hook(step)
    model.loss(0, 0).backward()


def unfreeze_one(model: Any, optimizer: Any, handle: Any) -> None:
    model.norm.bias.requires_grad_(True)
    model.loss(0, 0).backward()


def unfreeze_one_alone(model: Any, optimizer: Any, handle: Any) -> None:
    for parameter in model.parameters():
        parameter.requires_grad_(parameter is model.norm.bias)
    model.loss(0, 0).backward()
    optimizer.step()


def add_one(model: Any, optimizer: Any, handle: Any) -> None:
    model.more = torch.nn.Linear(2, 2)
    optimizer.add_param_group({"params": list(model.more.parameters())})
    model.loss(0, 0).backward()


def step_after_gathering(model: Any, optimizer: Any, handle: Any) -> None:
    with handle.accumulate():
        model.loss(0, 0).backward()
    optimizer.step()


def gradients_by_hand(model: Any, optimizer: Any, handle: Any) -> None:
    for _iteration in range(2):
        wanted = [one for one in model.parameters() if one.requires_grad]
        for parameter, gradient in zip(wanted, torch.autograd.grad(model.loss(0, 0), wanted), strict=True):
            parameter.grad = gradient
        optimizer.step()


def gradients_by_hand_after_a_step(model: Any, optimizer: Any, handle: Any) -> None:
    model.loss(0, 0).backward()
    optimizer.step()
    model.wide.weight.grad.neg_()
    optimizer.step()  # with what is left of the means, on all ranks
    model.wide.weight.grad = torch.ones_like(model.wide.weight)
    optimizer.step()


def step_by_another_optimizer(model: Any, optimizer: Any, handle: Any) -> None:
    other = torch.optim.Adam(model.wide.parameters())
    model.wide.weight.grad = torch.ones_like(model.wide.weight)
    other.step()


def train_a_new_module(model: Any, optimizer: Any, handle: Any) -> None:
    model.average = copy.deepcopy(model.wide)  # may be there: it is not trained
    model.loss(0, 0).backward()
    optimizer.step()
    model.more = torch.nn.Linear(96, 1)
    (model.loss(0, 1) + model.more(torch.ones(96)).sum()).backward()


def go_on_after_a_failed_backward(model: Any, optimizer: Any, handle: Any) -> None:
    def fail(_gradient: Any) -> None:
        raise RuntimeError("no luck")

    hook = model.norm.weight.register_hook(fail)
    with pytest.raises(RuntimeError, match="no luck"):
        model.loss(0, 0).backward()
    hook.remove()
    optimizer.step()


def load_others(model: Any, optimizer: Any, handle: Any) -> None:
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)


WITH_MEANS = {
    step_after_gathering: "optimizer.step() with gradients that were only accumulated: they are this rank's own; leave",
    gradients_by_hand: "was not made by backward(), which sends gradients to the other ranks; call backward()",
    gradients_by_hand_after_a_step: "the gradient of 'wide.weight' was not made by backward()",
    go_on_after_a_failed_backward: "backward() has failed after some of its gradients had left, and the iteration",
    step_by_another_optimizer: "the gradient of 'wide.weight' was not made by backward()",
    train_a_new_module: "parameter 'more.weight' has come into the model since farside.attach, and is not aggregated",
    load_others: "is another one than at farside.attach, and is not aggregated; load with assign=True before",
    hook_in_backward: "the gradient of 'wide.weight' was changed within backward(), after it had left; change it after",
    step_in_backward: "the gradient of 'wide.weight' was changed within backward(), after it had left",
    unfreeze_one: "parameter 'norm.bias' was unfrozen after farside.attach, and is not aggregated",
    unfreeze_one_alone: "parameter 'norm.bias' was unfrozen after farside.attach, and is not aggregated",
    add_one: "parameter 'more.weight' was added to the optimizer after farside.attach, and is not aggregated",
}


@pytest.mark.parametrize("wrong", WITH_MEANS, ids=lambda wrong: str(wrong.__name__))
def test_what_would_differ_between_ranks_is_refused_where_they_get_means(wrong: Callable[..., None]) -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        model.norm.bias.requires_grad_(False)
        optimizer = sgd(model)
        handle = attach(model, optimizer, update="worker")
        with pytest.raises(ConfigError) as refused:
            wrong(model, optimizer, handle)
        return str(refused.value)

    lines = run_members(2, body)

    assert WITH_MEANS[wrong] in lines[0]
    assert "\n" not in lines[0]
    assert lines[0] == lines[1]


def test_a_hook_that_has_taken_the_gradient_away_before_it_left_is_refused() -> None:
    def take(parameter: Any) -> None:
        parameter.grad = None

    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, 0)
        model.wide.weight.register_post_accumulate_grad_hook(take)
        attach(model, sgd(model), update="worker")
        with pytest.raises(ConfigError) as refused:
            model.loss(0, 0).backward()
        return str(refused.value)

    assert "a hook has taken away the gradient of 'wide.weight'" in run_members(2, body)[0]


def test_a_world_of_one_trains_and_says_that_nothing_is_shared(caplog: pytest.LogCaptureFixture) -> None:
    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, 0)
        optimizer = sgd(model)
        handle = attach(model, optimizer)
        with handle.accumulate():
            model.loss(0, 0).backward()
        optimizer.step()
        handle.wait()
        handle.detach()
        return parameters_of(model), handle.stats().iterations

    found, iterations = run_members(1, body)[0]

    model = made(Convolutions, 0)
    optimizer = sgd(model)
    model.loss(0, 0).backward()
    optimizer.step()
    assert all(torch.equal(found[name], one) for name, one in parameters_of(model).items())
    assert iterations == 0
    assert "a world of one: it trains, and nothing is shared" in caplog.text


def test_a_world_of_one_counts_its_iterations_from_those_of_its_checkpoint() -> None:
    def body(rank: int, attach: Any) -> tuple[int, int, int]:
        model = made(Convolutions, 0)
        optimizer = torch.optim.Adam(model.parameters())
        step(model, optimizer)
        handle = attach(model, optimizer)
        began = handle.iteration
        step(model, optimizer)
        step(model, optimizer)
        went = handle.iteration
        handle.detach()
        step(model, optimizer)
        return began, went, handle.iteration

    def step(model: Any, optimizer: Any) -> None:
        model.loss(0, 0).backward()
        optimizer.step()

    assert run_members(1, body)[0] == (1, 3, 3)

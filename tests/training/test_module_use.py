"""Parameters come back before the module that uses them, whichever module that is."""

from typing import Any

import pytest

from farside.errors import FarsideError
from tests.training.members import run_members
from tests.training.models import (
    Convolutions,
    Transformer,
    differing,
    made,
    needs_torch,
    parameters_of,
    torch,
    train_alone,
)

pytestmark = needs_torch


class Waits:
    """A model's uses, and what was needed when."""

    def __init__(self, model: Any) -> None:
        from farside.training.module_use import LEARNED_ITERATIONS, ModuleUse

        self.model = model
        self.names = [name for name, _parameter in model.named_parameters()]
        self.needed: list[str] = []
        self._learned = LEARNED_ITERATIONS
        self.use = ModuleUse(model, model.parameters(), need=self._need, overlap=True)

    def _need(self, numbers: Any) -> None:
        self.needed.extend(name for name in (self.names[number] for number in numbers) if name not in self.needed)

    def learn(self, *inputs: Any) -> None:
        for done in range(1, self._learned + 1):
            self.model(*inputs)
            self.use.begin_iteration(done)
        self.needed.clear()

    def needed_before(self, module: Any) -> list[str]:
        """Filled in the next forward, when this module's begins: what has been waited for by then."""
        seen: list[str] = []
        module.register_forward_pre_hook(lambda *_arguments: seen.extend(self.needed))
        return seen


def waits_of(model: Any, *inputs: Any) -> Waits:
    waits = Waits(model)
    waits.learn(*inputs)
    return waits


def words() -> Any:
    return torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(0))


def test_attention_waits_for_the_projection_that_it_uses_without_calling_it() -> None:
    model = made(Transformer, 0)
    waits = waits_of(model, words())

    before = waits.needed_before(model.attention)
    model(words())

    assert {"attention.in_proj_weight", "attention.out_proj.weight", "attention.out_proj.bias"} <= set(before)
    assert not {"recurrent.weight_ih_l0", "decoder.bias"} & set(before)


def test_a_tied_embedding_is_waited_for_by_whoever_uses_it_first() -> None:
    model = made(Transformer, 0)
    waits = waits_of(model, words())

    before = waits.needed_before(model.embedding)
    model(words())

    # What no module was seen to use is waited for by the first one.
    assert set(before) == {"embedding.weight", "frozen", "unused.weight", "unused.bias"}


def test_a_recurrent_layer_waits_for_all_its_weights() -> None:
    model = made(Transformer, 0)
    waits = waits_of(model, words())

    before = waits.needed_before(model.recurrent)
    model(words())

    assert {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0", "recurrent.bias_ih_l0"} <= set(before)
    assert "decoder.bias" not in before


def test_a_weight_that_a_hook_makes_of_others_is_made_of_new_ones() -> None:
    with pytest.warns(FutureWarning):
        normed = torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))
    waits = waits_of(torch.nn.Sequential(torch.nn.Linear(3, 3), normed), torch.ones(1, 3))
    seen: list[list[str]] = []
    made_by = next(one for one in normed._forward_pre_hooks.values() if type(one).__name__ == "WeightNorm")
    compute = made_by.compute_weight

    def compute_and_look(module: Any) -> Any:
        seen.append(list(waits.needed))
        return compute(module)

    made_by.compute_weight = compute_and_look

    waits.model(torch.ones(1, 3))

    assert {"1.weight_g", "1.weight_v"} <= set(seen[0])


def test_a_module_that_runs_otherwise_than_it_was_learned_waits_for_everything() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    waits = waits_of(layer, torch.ones(1, 4, 32))
    layer.eval()

    # In evaluation it calls one function with all its weights, none of its modules.
    with torch.no_grad():
        layer(torch.ones(1, 4, 32))

    assert set(waits.needed) == set(waits.names)


def test_a_module_that_fails_while_it_is_learned_leaves_nothing_behind() -> None:
    model = made(Transformer, 0)
    waits = Waits(model)

    with pytest.raises(IndexError):
        model(torch.full((1, 2), 1000))
    waits.learn(words())

    assert torch.overrides._len_torch_function_stack() == 0
    assert waits.use.waits_late


def test_compiled_models_wait_for_everything_before_they_run() -> None:
    from farside.training.module_use import ModuleUse

    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), backend="eager")
    needed: list[list[int]] = []
    use = ModuleUse(model, model.parameters(), need=lambda numbers: needed.append(list(numbers)), overlap=True)
    use.begin_iteration(5)

    model(torch.ones(1, 3))

    assert needed[0] == [0, 1]
    assert not use.waits_late


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # dynamo hides it, but not among threads
@pytest.mark.parametrize("early", [True, False], ids=["compiled-before", "compiled-after"])
def test_a_compiled_model_trains_to_the_same_bits(early: bool) -> None:
    loss: Any = Convolutions.loss

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        # What is compiled belongs to the process, not to a member that is a thread of it.
        compiled = torch.compile(model, backend="eager") if rank == 0 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        handle = attach(compiled if early else model, optimizer)
        for iteration in range(6):
            optimizer.zero_grad()
            loss(Called(compiled, model), rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wanted = train_alone(model, optimizer, members=2, steps=6)
    assert differing(found[0], found[1]) == {}
    assert differing(found[0], wanted) == {}


class Called:
    """Calls one model, and has the parameters of another."""

    def __init__(self, ran: Any, model: Any) -> None:
        self._ran, self.parameters = ran, model.parameters

    def __call__(self, images: Any) -> Any:
        return self._ran(images)


def test_a_weight_that_comes_back_after_its_use_fails_the_backward() -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer)
        for iteration in range(3):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        # Past every module: nothing waits for it, and it is used as it was.
        loss = torch.nn.functional.linear(torch.ones(1, 96, requires_grad=True), model.head.weight).sum()
        handle.wait()
        with pytest.raises((RuntimeError, FarsideError)) as refused:
            loss.backward()
        return str(refused.value)

    assert all("modified by an inplace operation" in line for line in run_members(2, body))

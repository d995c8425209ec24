"""A parameter's result is there before the parameter is used, whoever uses it."""

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from farside.errors import ConfigError
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


class Behind:
    """A model whose parameters are NaN from `step` on, each until it is needed."""

    made: ClassVar[list["Behind"]] = []

    def __init__(self, model: Any, *, overlap: bool = True) -> None:
        from farside.training.module_use import ModuleUse

        self.made.append(self)
        self.names = [name for name, _parameter in model.named_parameters()]
        self._parameters = list(model.parameters())
        self._new = [parameter.detach().clone() for parameter in self._parameters]
        self.behind: set[str] = set()
        self.use = ModuleUse(
            model, self._parameters, need=self._bring, is_behind=lambda: bool(self.behind), overlap=overlap
        )

    def _bring(self, numbers: Any) -> None:
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            for number in numbers:
                if self.names[number] in self.behind:
                    self._parameters[number].copy_(self._new[number])
                    self.behind.remove(self.names[number])

    def step(self) -> None:
        """A result is to come for every parameter."""
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.fill_(float("nan"))
        self.behind = set(self.names)
        self.use.begin_iteration()

    def behind_before(self, module: Any) -> set[str]:
        """Filled in the next forward, when this module's begins: what has not been brought by then."""
        seen: set[str] = set()
        module.register_forward_pre_hook(lambda *_arguments: seen.update(self.behind))
        return seen


@pytest.fixture(autouse=True)
def nobody_looks_on_after_a_test() -> Iterator[None]:
    yield
    while Behind.made:
        Behind.made.pop().use.remove()
    assert modes() == 0


def modes() -> int:
    return int(torch.overrides._len_torch_function_stack())


def behind(model: Any, **options: Any) -> Behind:
    found = Behind(model, **options)
    found.step()
    return found


def words() -> Any:
    return torch.randint(0, 50, (2, 5), generator=torch.Generator().manual_seed(0))


def test_each_parameter_comes_before_its_first_use_and_not_before_others_need_theirs() -> None:
    model = made(Transformer, 0)
    wanted = model(words())
    waits = Behind(model)
    for _iteration in range(3):
        model(words())
        waits.step()
    at_attention, at_norm = waits.behind_before(model.attention), waits.behind_before(model.norm)

    found = model(words())

    assert torch.equal(found, wanted)
    assert {"attention.out_proj.weight", "recurrent.weight_ih_l0", "decoder.bias"} <= at_attention
    # Attention has used the projection without calling it, and the embedding's weight is the decoder's too.
    assert not {"embedding.weight", "attention.out_proj.weight", "attention.out_proj.bias"} & at_norm
    assert {"recurrent.weight_ih_l0", "decoder.bias"} <= at_norm
    # What was never seen is brought by the first module: something that PyTorch does not show may use it.
    assert not {"unused.weight", "unused.bias"} & at_attention


def test_a_weight_that_a_hook_makes_of_others_is_made_of_new_ones() -> None:
    with pytest.warns(FutureWarning):
        normed = torch.nn.utils.weight_norm(torch.nn.Linear(3, 3))
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), normed)
    wanted = model(torch.ones(1, 3))
    behind(model)

    assert torch.equal(model(torch.ones(1, 3)), wanted)


def by_function(weight: Any) -> Any:
    return torch.nn.functional.linear(torch.ones(1, 3), weight=weight)


READS: dict[str, Callable[[Any], Any]] = {
    "a-function": by_function,
    "an-operator": lambda weight: torch.ones(1, 3) @ weight,
    "an-operator-by-name": lambda weight: torch.ops.aten.mm.default(weight, weight),
    "many-at-once": lambda weight: torch._foreach_add([torch.zeros(3, 3)], [weight])[0],
    "a-vector-of-all": lambda weight: torch.nn.utils.parameters_to_vector([weight]),
    "without-gradients": lambda weight: torch.no_grad()(by_function)(weight),
    "in-inference": lambda weight: torch.inference_mode()(by_function)(weight),
    "numbers": lambda weight: torch.tensor(weight.tolist()),
    "numpy": lambda weight: torch.from_numpy(weight.detach().numpy()),
    "its-data": lambda weight: weight.data + 0,
    "its-address": lambda weight: weight.data_ptr() and weight.detach(),
    "a-transform": lambda weight: torch.func.grad(lambda one: (one * one).sum())(weight),
    "a-map": lambda weight: torch.vmap(lambda row: row.sum())(weight),
    "a-copy": copy.deepcopy,
    "a-file": lambda weight: pickle.loads(pickle.dumps(weight)),
}


@pytest.mark.parametrize("read", READS)
def test_a_parameter_is_new_for_whoever_reads_it_outside_of_all_modules(read: str) -> None:
    model = torch.nn.Linear(3, 3)
    wanted = READS[read](model.weight)
    behind(model)

    assert torch.equal(READS[read](model.weight), wanted)


def test_a_view_that_was_made_an_iteration_ago_shows_the_new_parameter() -> None:
    model = torch.nn.Linear(3, 3)
    row, data = model.weight.detach()[2], model.weight.data
    wanted = row.sum(), data.sum()
    waits = behind(model)

    assert row.sum() == wanted[0]
    assert waits.behind == {"bias"}
    waits.step()
    assert data.sum() == wanted[1]


def test_what_is_not_in_a_parameter_s_memory_and_its_shape_bring_nothing() -> None:
    model = torch.nn.Linear(3, 3)
    waits = behind(model)

    assert (model.weight.shape, model.weight.dtype, model.weight.grad) == ((3, 3), torch.float32, None)
    torch.stack([torch.ones(3), torch.zeros(3)]).sum()

    assert waits.behind == {"weight", "bias"}


def test_a_branch_that_begins_late_reads_new_parameters() -> None:
    class Late(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(3, 4), torch.nn.Linear(4, 3)

        def forward(self, inputs: Any, iteration: int) -> Any:
            if iteration < 4:
                return self.last(self.first(inputs))
            return by_function(self.first.weight.t() @ self.last.weight.t())

    model = made(Late, 0)
    wanted = [model(torch.ones(1, 3), iteration) for iteration in range(6)]
    waits = Behind(model)

    found = []
    for iteration in range(6):
        waits.step()
        found.append(model(torch.ones(1, 3), iteration))

    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_a_parameter_that_code_in_c_uses_past_its_module_is_new() -> None:
    class Fused(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, inputs: Any) -> Any:
            found = self.first(inputs)
            with torch._C.DisableTorchFunction():
                return torch.nn.functional.linear(found, self.inner.weight)

    model = made(Fused, 0)
    waits = Behind(model)
    wanted = model(torch.ones(1, 3))

    for iteration in range(3):
        waits.step()
        if not iteration:
            torch.nn.utils.parameters_to_vector(model.parameters())  # as an average now and then
        assert torch.equal(model(torch.ones(1, 3)), wanted)


def test_a_forward_in_another_thread_reads_new_parameters() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    wanted = model(torch.ones(1, 3))
    behind(model)

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(model, torch.ones(1, 3)).result()
        left = pool.submit(modes).result()

    assert torch.equal(found, wanted)
    assert left == 0


def test_evaluation_waits_for_everything_and_runs_as_if_nobody_had_looked() -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    waits = behind(layer)
    layer.eval()

    with torch.no_grad():
        layer(torch.ones(1, 4, 32))

    assert waits.behind == set()
    assert modes() == 0


def test_without_overlap_the_first_module_waits_for_all() -> None:
    model = made(Transformer, 0)
    waits = behind(model, overlap=False)
    before = waits.behind_before(model.embedding)

    model(words())

    assert before == set()


def test_nothing_looks_on_once_all_is_there_and_after_the_end() -> None:
    model = torch.nn.Linear(3, 3)
    waits = behind(model)
    assert modes() == 1

    model(torch.ones(1, 3))
    assert modes() == 0

    waits.step()
    waits.use.remove()
    assert modes() == 0
    assert not model._forward_pre_hooks


def test_a_step_waits_for_nothing_though_the_one_before_has_left_results_behind() -> None:
    model = torch.nn.Linear(3, 3)
    waits = behind(model)
    waits.step()

    assert waits.behind == {"weight", "bias"}


def test_a_device_for_new_tensors_may_begin_and_end_at_any_time() -> None:
    model = torch.nn.Linear(3, 3)
    waits = Behind(model)

    with torch.device("meta"):
        waits.step()
        assert torch.ones(1).is_meta
    assert not torch.ones(1).is_meta
    with torch.device("meta"):
        model.weight.sum()
        assert torch.ones(1).is_meta
    torch.set_default_device("meta")
    waits.step()
    torch.set_default_device(None)
    model(torch.ones(1, 3))

    assert modes() == 0


def test_a_module_that_fails_leaves_nothing_behind() -> None:
    model = made(Transformer, 0)
    behind(model)

    with pytest.raises(IndexError):
        model(torch.full((1, 2), 1000))
    for _time in range(2):
        model.unused(torch.ones(3))
        model(words())

    assert modes() == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_a_compiled_function_within_a_module_is_compiled_as_a_whole() -> None:
    @torch.compile(backend="eager", fullgraph=True)  # type: ignore[untyped-decorator]
    def compiled(inputs: Any) -> Any:
        return torch.relu(inputs) + 1

    class Within(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

        def forward(self, inputs: Any) -> Any:
            return self.last(compiled(self.first(inputs)))

    model = made(Within, 0)
    wanted = model(torch.ones(1, 3))
    waits = Behind(model)

    for _iteration in range(2):
        waits.step()
        assert torch.equal(model(torch.ones(1, 3)), wanted)


def test_compiled_models_wait_for_everything_before_they_run() -> None:
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU()), backend="eager")
    wanted = model(torch.ones(1, 3))
    waits = behind(model)

    assert torch.equal(model(torch.ones(1, 3)), wanted)
    assert not waits.use.waits_late


def test_a_forked_process_is_told_that_results_cannot_come_to_it() -> None:
    model = torch.nn.Linear(3, 3)
    behind(model)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _ = torch.ones(1).to_sparse() * 2  # of no parameter
            model.weight.sum()
        except BaseException as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)

    with open(reader) as told:
        assert "forked after optimizer.step() uses parameters whose results were still to come" in told.read()
    model(torch.ones(1, 3))


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


def test_a_branch_that_begins_late_trains_to_the_bits_of_one_process() -> None:
    def loss(model: Any, rank: int, iteration: int) -> Any:
        if iteration < 5:
            return model.loss(rank, iteration)
        images = torch.randn(6, 96, generator=torch.Generator().manual_seed(100 * iteration + rank))
        return (by_weight(by_weight(images, model.head.weight), model.head.weight.t()) ** 2).mean()

    def by_weight(inputs: Any, weight: Any) -> Any:
        return torch.tanh(torch.nn.functional.linear(inputs, weight))

    def body(rank: int, attach: Any) -> Any:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer, find_unused_parameters=True)
        for iteration in range(10):
            optimizer.zero_grad()
            loss(model, rank, iteration).backward()
            optimizer.step()
        handle.wait()
        return parameters_of(model)

    found = run_members(2, body)

    model = made(Convolutions, seed=0)
    wanted = train_alone(model, torch.optim.SGD(model.parameters(), lr=0.1), members=2, steps=10, loss=loss)
    assert [differing(one, wanted) for one in found] == [{}, {}]


def test_a_use_that_pytorch_does_not_show_is_refused_by_the_backward() -> None:
    def body(rank: int, attach: Any) -> str:
        model = made(Convolutions, seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        handle = attach(model, optimizer)
        for iteration in range(3):
            optimizer.zero_grad()
            model.loss(rank, iteration).backward()
            optimizer.step()
        with torch._C.DisableTorchFunction():  # as code in C++ does
            loss = torch.nn.functional.linear(torch.ones(1, 96), model.head.weight).sum()
        with pytest.raises(ConfigError) as refused:
            loss.backward()
        assert handle.iteration == 3
        return str(refused.value)

    assert all("'head.weight' was used before its result had come" in line for line in run_members(2, body))

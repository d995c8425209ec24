"""Which module uses which parameter, and waits in that module's forward pre-hooks.

How it works
  Results of an iteration arrive while the next one begins. A parameter is waited for as late as can be: by the
  innermost module in whose forward it is used. That is not always the module that has it: attention uses the weight of
  its output projection without calling that module, and a decoder uses the weight of an embedding.
  So it is learned. In the first iterations everything is waited for before the outermost forward, and a
  `TorchFunctionMode` sees every call of PyTorch's with its arguments. Later a module waits for what was used in it, and
  for its own parameters; the first module of an iteration waits for what was never seen.
  A module whose `training` flag differs from when it was learned, or which runs without gradients, may use others: it
  waits for everything. Hooks come before those that are there, such as one of `weight_norm`.
  What is used outside of every forward is not seen at all, and needs the handle's `wait`.
"""

from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

torch: Any = import_module("torch")
_Mode: Any = import_module("torch.overrides").TorchFunctionMode

LEARNED_ITERATIONS = 2
"""Iterations in which uses are noted: the second sees what a lazy start of the first did not."""


class ModuleUse:
    """Hooks on the modules of a model that call ``need`` with parameters, by number, before they are used."""

    def __init__(
        self, model: Any, parameters: Iterable[Any], *, need: Callable[[Iterable[int]], None], overlap: bool
    ) -> None:
        """Without ``overlap`` the outermost module waits for everything."""
        self._numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self._need = need
        compiled = [module for module in model.modules() if _is_compiled(module)]
        inside = {id(one) for module in compiled for one in module.modules() if one is not module}
        self._overlap = overlap and not compiled
        # Within a compiled module hooks would cut it into pieces; it waits for everything before it runs.
        self._modules = [module for module in model.modules() if id(module) not in inside]
        self._uses: dict[int, set[int]] = {id(module): self._own(module) for module in self._modules}
        self._was_training: dict[int, bool] = {}
        self._never_seen: tuple[int, ...] = tuple(self._numbers.values())
        self._seen: set[int] = set()
        self._is_learning = self._overlap
        self._is_first = False  # no module has run in this iteration
        self._stack: list[Any] = []
        self._mode: Any = None
        self._hooks = [module.register_forward_pre_hook(self._before, prepend=True) for module in self._modules]
        self._learning_hooks = (
            [module.register_forward_hook(self._after, always_call=True) for module in self._modules]
            if self._is_learning
            else []
        )

    def _own(self, module: Any) -> set[int]:
        own = (self._numbers.get(id(parameter)) for parameter in module.parameters(recurse=False))
        return {number for number in own if number is not None}

    @property
    def waits_late(self) -> bool:
        """Whether parameters are waited for by the modules that use them, or all at once."""
        return self._overlap and not self._is_learning

    def begin_iteration(self, done: int) -> None:
        """Parameters are behind from now on; ``done``: iterations since the hooks were set."""
        self._is_first = True
        if self._is_learning and done >= LEARNED_ITERATIONS and not self._stack:
            self._is_learning = False
            self._never_seen = tuple(sorted(set(self._numbers.values()) - self._seen))
            for hook in self._learning_hooks:
                hook.remove()
            self._learning_hooks = []

    def remove(self) -> None:
        """Take all hooks off."""
        for hook in (*self._hooks, *self._learning_hooks):
            hook.remove()
        self._hooks = self._learning_hooks = []

    def _before(self, module: Any, _inputs: Any) -> None:
        if self._is_learning:
            self._before_learning(module)
        elif not self.waits_late or self._is_changed(module):
            self._need(self._numbers.values())
        else:
            if self._is_first:
                self._is_first = False
                self._need(self._never_seen)
            self._need(self._uses[id(module)])

    def _is_changed(self, module: Any) -> bool:
        return not torch.is_grad_enabled() or self._was_training.get(id(module)) is not module.training

    def _before_learning(self, module: Any) -> None:
        if not self._stack:
            self._need(self._numbers.values())
            self._mode = _Uses(self._note)
            self._mode.__enter__()
        self._stack.append(module)
        if torch.is_grad_enabled():
            self._was_training[id(module)] = module.training

    def _after(self, module: Any, _inputs: Any, _outputs: Any) -> None:
        # A module that failed in a pre-hook of its own has no place on the stack.
        if not any(one is module for one in self._stack):
            return
        while self._stack.pop() is not module:
            pass
        if not self._stack:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _note(self, tensors: Iterable[Any]) -> None:
        for tensor in tensors:
            number = self._numbers.get(id(tensor))
            if number is not None and self._stack:
                self._seen.add(number)
                self._uses[id(self._stack[-1])].add(number)


class _Uses(_Mode):  # type: ignore[misc] # PyTorch is not there where types are checked
    """Tells the tensors among the arguments of every call that makes a tensor."""

    def __init__(self, note: Callable[[Iterable[Any]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call itself, noted before it runs."""
        self._note(_tensors_in((args, kwargs or {})))
        return func(*args, **(kwargs or {}))


def _tensors_in(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))


def _is_compiled(module: Any) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
    )

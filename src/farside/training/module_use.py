"""Which parameters are used next: their results are waited for, and nobody computes with old ones.

How it works
  Results of an iteration arrive while the next one begins. A parameter is waited for as late as can be, at two places:
  * A `TorchFunctionMode` sees every call of PyTorch's with its arguments. One that is given a parameter whose result is
    on its way, or a tensor in the same memory, waits first; wherever it is made, within a module or between two. So
    attention waits for the projection that it uses past its module, and an average of weights for all of them.
    The mode is there only while results are on their way.
  * A module waits for its own parameters before its forward: it may give them to code that PyTorch does not see, such
    as a kernel in C++. Its hook comes before those that are there, such as one of `weight_norm`. What was at neither of
    both in all iterations before may be given to such code by another module; the first module waits for it.
  A module that runs without gradients waits for everything, and then runs without the mode, in whose presence PyTorch
  takes none of its fast paths. (Hooks keep TransformerEncoderLayer from its own.) So does a compiled module.
  What neither sees has its own check where gradients come (`ServerUpdate`).
"""

import contextlib
import os
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any

from farside.errors import ConfigError

torch: Any = import_module("torch")
_overrides: Any = import_module("torch.overrides")
_temporarily_no_transforms: Any = import_module("torch._functorch.pyfunctorch").temporarily_clear_interpreter_stack
_is_compiling: Any = torch.compiler.is_compiling
_length, _push, _pop = _overrides._len_torch_function_stack, _overrides._push_mode, _overrides._pop_mode

_SHAPES = frozenset(
    getattr(getattr(torch.Tensor, name), how)
    for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "grad", "grad_fn", "is_leaf",
                 "is_cuda", "is_sparse", "is_meta", "is_nested", "is_quantized", "_version")
    for how in ("__get__", "__set__")
) | frozenset(
    getattr(torch.Tensor, name)
    for name in ("size", "dim", "numel", "nelement", "stride", "storage_offset", "element_size", "is_contiguous",
                 "is_floating_point", "is_complex", "get_device", "requires_grad_", "register_hook",
                 "register_post_accumulate_grad_hook", "__len__")
) | {torch.is_floating_point, torch.is_complex, torch.numel}  # fmt: skip
"""Calls that do not read a parameter's elements, and whose results can't be used to."""


class ModuleUse:
    """Calls ``need`` with parameters, by number, before they are used."""

    def __init__(
        self,
        model: Any,
        parameters: Iterable[Any],
        *,
        need: Callable[[Iterable[int]], None],
        is_behind: Callable[[], bool],
        overlap: bool,
    ) -> None:
        """``is_behind``: whether any result is still to come. Without ``overlap`` the first module waits for all."""
        self._parameters = tuple(parameters)
        self._need, self.is_behind = need, is_behind
        self._all = range(len(self._parameters))
        self._numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        compiled = [module for module in model.modules() if _is_compiled(module)]
        inside = {id(one) for module in compiled for one in module.modules() if one is not module}
        self.waits_late = overlap and not compiled
        # Within a compiled module hooks would cut it into pieces; it waits for everything before it runs.
        modules = [module for module in model.modules() if id(module) not in inside]
        self._own = {id(module): self._own_of(module) for module in modules}
        self._seen: set[int] = set()
        self._never_seen: list[int] = []
        self._has_run = False  # a module, in this iteration
        self._process = os.getpid()
        self._mode = _Uses(self)
        # A function that is compiled around a module breaks there; the optimizer has loaded the compiler in any case.
        before = ModuleHook(torch.compiler.disable(self._before))
        self._hooks = [module.register_forward_pre_hook(before, prepend=True) for module in modules]
        self._addresses: list[int] = []
        self._starts: list[int] = []
        self._spans: list[tuple[int, list[int]]] = []

    def _own_of(self, module: Any) -> list[int]:
        own = (self._numbers.get(id(parameter)) for parameter in module.parameters(recurse=False))
        return [number for number in own if number is not None]

    def begin_iteration(self) -> None:
        """Parameters are behind from now on."""
        self._has_run = False
        self._never_seen = [number for number in self._all if number not in self._seen]
        with torch._C.DisableTorchFunction():  # the mode may be here still, and no parameter is used
            self._note_places()
        self._mode.enter()

    def remove(self) -> None:
        """Take all hooks off."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._mode.leave()

    def before_call(self, arguments: Iterable[Any]) -> None:
        """Brings what a call of PyTorch's is given."""
        used: list[int] = []
        try:
            self._find(arguments, used)
        except (RuntimeError, TypeError):
            # A tensor without an address, such as a sparse one or a transform's: whose memory it has can't be told.
            if self._process == os.getpid():
                self._bring(self._all)
            return
        if used:
            if self._has_run:  # before the first module it is some reader of parameters, such as an average
                self._seen.update(used)
            self._bring(used)

    def _before(self, module: Any, _inputs: Any) -> None:
        own = self._own[id(module)]
        self._seen.update(own)
        self._has_run = True
        if self.is_behind():
            self._mode.enter()  # the forward may run in another thread than the step
            # What is traced is to look as it does without the mode.
            if self.waits_late and torch.is_grad_enabled() and torch._C._get_tracing_state() is None:
                never_seen, self._never_seen = self._never_seen, []
                self._bring([*never_seen, *own])
            else:
                self._bring(self._all)
        if not self.is_behind():
            self._mode.leave()

    def _bring(self, numbers: Iterable[int]) -> None:
        if self._process != os.getpid():
            raise ConfigError(
                "a process that was forked after optimizer.step() uses parameters whose results were still to come",
                hint="call handle.wait() before it is forked",
            )
        # Within a transform, such as `torch.func.grad`, a parameter could not be written.
        with _temporarily_no_transforms(), _untraced():
            self._need(numbers)

    def _find(self, values: Iterable[Any], used: list[int]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                number = self._numbers.get(id(value))
                if number is not None:
                    used.append(number)
                    continue
                address = value.data_ptr()
                if not address and type(value) is not torch.Tensor:
                    raise RuntimeError("a tensor made of others")
                at = bisect_right(self._starts, address) - 1
                if at >= 0 and address < self._spans[at][0]:
                    used.extend(self._spans[at][1])
            elif isinstance(value, list | tuple):
                self._find(value, used)
            elif isinstance(value, dict):
                self._find(value.values(), used)

    def _note_places(self) -> None:
        """Where the parameters' memory is: a view that was made in an iteration before reads from there."""
        addresses = [parameter.data_ptr() for parameter in self._parameters]
        if addresses == self._addresses:
            return
        self._addresses = addresses
        spans: dict[int, tuple[int, list[int]]] = {}
        for number, parameter in enumerate(self._parameters):
            storage = parameter.untyped_storage()
            start = storage.data_ptr()
            spans.setdefault(start, (start + storage.nbytes(), []))[1].append(number)
        self._starts = sorted(spans)
        self._spans = [spans[start] for start in self._starts]


class ModuleHook:
    """A hook of one attached model. In a copy of the module, or a file, it is one that does nothing."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        """What the hook does."""
        return self._call(*arguments)

    def __reduce__(self) -> Any:
        """The `__init__` of a tuple takes any arguments and does nothing; and is there where Farside is not."""
        return getattr, ((), "__init__")


class _Uses(_overrides.TorchFunctionMode):  # type: ignore[misc] # PyTorch is not there where types are checked
    """Tells the arguments of every call of PyTorch's."""

    def __init__(self, use: ModuleUse) -> None:
        super().__init__()
        self._use = weakref.ref(use)  # an attachment that nobody has any more is not kept by a mode

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The call itself, after what it uses has been brought."""
        # A function that is compiled is traced as it is without us.
        if not _is_compiling() and (use := self._use()) is not None and use.is_behind() and func not in _SHAPES:
            use.before_call((args, kwargs) if kwargs else args)
        return func(*args, **kwargs) if kwargs else func(*args)

    def enter(self) -> None:
        """In this thread, below the modes that are there: these end before it, whenever they began."""
        above = _popped()
        if self not in above:
            # That of `torch.set_default_device` has to be the lowest.
            default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
            if default is not None and above and above[-1] is default:
                _push(above.pop())
            _push(self)
        _push_all(above)

    def leave(self) -> None:
        """In this thread; within a call that it sees it stays, and does nothing."""
        if _length():
            _push_all([mode for mode in _popped() if mode is not self])


@contextlib.contextmanager
def _untraced() -> Iterator[None]:
    """Nothing in here is recorded by `torch.jit.trace`."""
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)
    try:
        yield
    finally:
        torch._C._set_tracing_state(state)


def _popped() -> list[Any]:
    """All modes of this thread, taken off; the last one is the lowest."""
    return [_pop() for _mode in range(_length())]


def _push_all(modes: list[Any]) -> None:
    for mode in reversed(modes):
        _push(mode)


def _is_compiled(module: Any) -> bool:
    return (
        isinstance(module, torch.jit.ScriptModule)
        or type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None
    )

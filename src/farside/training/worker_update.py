"""The door for any optimizer: when `backward()` returns, `grad` holds the mean of all members' gradients.

Optimizer, clipping and GradScaler then work as they do with one process, and all members do the same. A tensor of the
door's own says which parameters had a gradient here; where no member had one, `grad` stays None, as PyTorch leaves it.
"""

import threading
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from farside.agent.aggregator.layout import WORKERS_OWN, Tensor
from farside.errors import ConfigError
from farside.training.attachment import Attachment
from farside.training.module_use import ModuleHook
from farside.training.region_place import RegionPlaces
from farside.training.trainable import LaterParameters, Trainable, grouped

torch: Any = import_module("torch")
_register_step_pre_hook: Any = import_module("torch.optim.optimizer").register_optimizer_step_pre_hook
_engine: Any = import_module("torch.autograd").Variable._execution_engine

USED = 0
"""Number of the door's own tensor. Members push in descending order, and it is known last."""


def tensors_of(trainables: Sequence[Trainable]) -> tuple[Tensor, ...]:
    """What is declared: the door's own tensor, in a group and thus in a chunk of its own, then the parameters."""
    return (Tensor(WORKERS_OWN, len(trainables), "f32", 1), *(one.tensor for one in trainables))


class WorkerUpdate(Attachment):
    """A model whose mean gradients come back into `grad`."""

    def __init__(
        self, session: Any, source: Any, trainables: Sequence[Trainable], *, model: Any, optimizer: Any
    ) -> None:
        """Connects; rank 0's parameters are everybody's when it returns."""
        super().__init__(session, source, trainables, first=USED + 1)
        self._later = LaterParameters(model, optimizer, is_server=False)
        places = RegionPlaces(session.layout, session.member)
        count = len(self._trainables)
        self._used_here = [torch.frombuffer(places.gradients(parity)[USED], dtype=torch.float32) for parity in (0, 1)]
        self._used = torch.frombuffer(places.results[USED], dtype=torch.float32)
        self._lock = threading.Lock()  # GPUs have a thread each in backward()
        self._is_called_back = False
        self._numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._unsent: set[int] = set()  # whose gradients only accumulated
        self._fresh: set[int] = set()  # whose means have come since the last step with them
        self._left: dict[int, Any] = {}  # gradients at that step
        self._connect()
        self._begin()
        self._copy.give(range(count))
        self._hook_gradients()
        # With assign=True that makes other parameters of all, which no hook of these would notice.
        loaded = ModuleHook(lambda *_arguments: self._later.check_kept())
        self._hooks.append(model.register_load_state_dict_post_hook(loaded))
        # Other optimizers may have some of the parameters; and wrappers have an optimizer inside.
        self._hooks.append(_register_step_pre_hook(self._before_step))

    def _on_gradient(self, number: int, parameter: Any) -> None:
        if self._is_accumulating:
            self._unsent.add(number)
            return
        with self._lock:
            is_first, self._is_called_back = not self._is_called_back, True
        if is_first:
            _engine.queue_callback(self._after_backward)
        self._push(number, parameter)

    def _after_backward(self) -> None:
        self._is_called_back = False
        self._later.check()
        self._copy.drain()
        self._check_unchanged()
        # 1. What no hook has pushed, and which parameters had a gradient.
        absent = self._push_missing()
        self._copy.drain()
        exchange = self._exchange
        exchange.begin(USED)
        used_here = self._used_here[exchange.iteration & 1].fill_(1)
        used_here[absent] = 0
        exchange.fill(USED)
        exchange.finish()
        self._taken.clear()
        self._unsent.clear()
        # 2. The means, which have come back meanwhile from the last layer on.
        self._take_means()
        self._measure()

    def _take_means(self) -> None:
        self._exchange.wait([USED])
        self._exchange.arrived([USED])
        is_used = (self._used > 0).tolist()
        for number in range(len(self._parameters) - 1, -1, -1):
            tensor, parameter = number + self._first, self._parameters[number]
            self._exchange.wait([tensor])
            if is_used[number]:
                self._fresh.add(number)
                with torch.no_grad():
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(self._copy.result(number), non_blocking=True)
            self._exchange.arrived([tensor])

    def _before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = (self._numbers.get(id(parameter)) for _group, parameter in grouped(optimizer))
        numbers = [number for number in found if number is not None]
        if not numbers:
            return
        self._later.check()
        if self._is_called_back:
            raise ConfigError(
                "backward() has failed after some of its gradients had left, and the iteration can't be completed",
                hint="start all ranks again",
            )
        if kwargs.get("closure") is not None or any(one is not None for one in args[1:]):
            return  # that calls backward() itself
        if any(_is_there(self._parameters[number].grad) for number in self._unsent.intersection(numbers)):
            raise ConfigError(
                "optimizer.step() with gradients that were only accumulated: they are this rank's own",
                hint="leave `with handle.accumulate():` before the last backward()",
            )
        for number in numbers:
            gradient = self._parameters[number].grad
            if number not in self._fresh:
                self._check_left(number, gradient)
            if gradient is None:
                self._left.pop(number, None)
            else:
                self._left[number] = weakref.ref(gradient)
        self._fresh.difference_update(numbers)

    def _check_left(self, number: int, gradient: Any) -> None:
        """No backward() has brought a mean since the last step: refuses a gradient that was not there then."""
        if gradient is not self._left.get(number, lambda: None)() and _is_there(gradient):
            raise ConfigError(
                f"the gradient of '{self._trainables[number].name}' was not made by backward(), which sends gradients "
                "to the other ranks",
                hint="call backward(), not torch.autograd.grad or torch.func.grad",
            )

    def _second_backward(self, number: int) -> ConfigError:
        return ConfigError(
            f"backward() came to '{self._trainables[number].name}' twice before it ended",
            hint="give checkpoint() use_reentrant=False; if a backward() has failed before, start all ranks again",
        )

    def _need(self, numbers: Any) -> None:
        """Nothing is behind: `backward()` has brought all means."""

    def _check_unchanged(self) -> None:
        """Refuses gradients that a hook has changed after they were pushed: the means would come over that."""
        for number in self._taken:
            if not self._is_as_taken(number):
                raise ConfigError(
                    f"the gradient of '{self._trainables[number].name}' was changed within backward(), after it had "
                    "left",
                    hint="change it after backward(), when it is the mean, or by a hook set before farside.attach",
                )


def _is_there(gradient: Any) -> bool:
    """Whether there is one, and it is not what `zero_grad` leaves."""
    return gradient is not None and bool(gradient.any())

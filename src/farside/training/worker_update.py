"""The door for any optimizer: when `backward()` returns, `grad` holds the mean of all members' gradients.

Optimizer, clipping and GradScaler then work as they do with one process, and all members do the same. A tensor of the
door's own says which parameters had a gradient here; where no member had one, `grad` stays None, as PyTorch leaves it.
"""

import contextlib
import threading
import weakref
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from farside.agent.aggregator.layout import Tensor
from farside.errors import ConfigError
from farside.training.attachment import Attachment
from farside.training.module_use import ModuleHook
from farside.training.region_place import RegionPlaces
from farside.training.trainable import LaterParameters, Trainable

torch: Any = import_module("torch")
_engine: Any = import_module("torch.autograd").Variable._execution_engine

USED = 0
"""Number of the door's own tensor. Members push in descending order, and it is known last."""


def tensors_of(trainables: Sequence[Trainable]) -> tuple[Tensor, ...]:
    """What is declared: the door's own tensor, in a group and thus in a chunk of its own, then the parameters."""
    return (Tensor("farside.used", len(trainables), "f32", 1), *(one.tensor for one in trainables))


class WorkerUpdate(Attachment):
    """A model whose mean gradients come back into `grad`."""

    def __init__(
        self, session: Any, source: Any, trainables: Sequence[Trainable], *, model: Any, optimizer: Any
    ) -> None:
        """Connects; rank 0's parameters are everybody's when it returns."""
        super().__init__(session, source, trainables, first=USED + 1)
        self._later = LaterParameters(model, optimizer, counts_others=True)
        places = RegionPlaces(session.layout, session.member)
        count = len(self._trainables)
        self._used_here = [torch.frombuffer(places.gradients(parity)[USED], dtype=torch.float32) for parity in (0, 1)]
        self._used = torch.frombuffer(places.results[USED], dtype=torch.float32)
        self._lock = threading.Lock()  # GPUs have a thread each in backward()
        self._is_called_back = False
        self._has_unsent = False  # gradients that only accumulated
        self._has_means = False  # since the last step
        self._left: dict[int, tuple[Any, int]] = {}  # gradients at the last step, and what PyTorch counted of them
        self._connect()
        self._begin()
        self._copy.give(range(count))
        self._hook_gradients()
        # With assign=True that makes other parameters of all, which no hook of these would notice.
        loaded = ModuleHook(lambda *_arguments: self._later.check())
        self._hooks += [module.register_load_state_dict_post_hook(loaded) for module in model.modules()]
        # Where all that is aggregated is frozen no gradient leads to a check. Wrappers may have no hooks.
        with contextlib.suppress(AttributeError):
            self._hooks.append(optimizer.register_step_pre_hook(self._before_step))

    def _on_gradient(self, number: int, parameter: Any) -> None:
        if self._is_accumulating:
            self._has_unsent = True
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
        self._has_unsent, self._has_means = False, True
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
                with torch.no_grad():
                    if parameter.grad is None:
                        parameter.grad = torch.empty_like(parameter)
                    parameter.grad.copy_(self._copy.result(number), non_blocking=True)
            self._exchange.arrived([tensor])

    def _before_step(self, _optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._later.check()
        if self._is_called_back:
            raise ConfigError(
                "backward() has failed after some of its gradients had left, and the iteration can't be completed",
                hint="start all ranks again",
            )
        if kwargs.get("closure") is not None or any(one is not None for one in args[1:]):
            return  # that calls backward() itself
        if self._has_unsent:
            raise ConfigError(
                "optimizer.step() with gradients that were only accumulated: they are this rank's own",
                hint="leave `with handle.accumulate():` before the last backward()",
            )
        if not self._has_means:
            self._check_left()
        self._has_means = False
        self._left = {
            number: (weakref.ref(parameter.grad), parameter.grad._version)
            for number, parameter in enumerate(self._parameters)
            if parameter.grad is not None
        }

    def _check_left(self) -> None:
        """No backward() has come since the last step: refuses gradients that were not there then."""
        for number, parameter in enumerate(self._parameters):
            gradient = parameter.grad
            before, version = self._left.get(number, (lambda: None, -1))
            if gradient is None or (gradient is before() and gradient._version == version) or not gradient.any():
                continue
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

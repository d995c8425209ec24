"""The door for any optimizer: when `backward()` returns, `grad` holds the mean of all members' gradients.

Optimizer, clipping and GradScaler then work as they do with one process, and all members do the same. A tensor of the
door's own says which parameters had a gradient here; where no member had one, `grad` stays None, as PyTorch leaves it.
"""

import contextlib
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from farside.agent.aggregator.layout import Tensor
from farside.errors import ConfigError
from farside.training.attachment import Attachment
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
        self._connect()
        self._begin()
        self._copy.give(range(count))
        self._hook_gradients()
        # Where all that is aggregated is frozen no gradient leads to a check. Wrappers may have no hooks.
        with contextlib.suppress(AttributeError):
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_arguments: self._later.check()))

    def _on_gradient(self, number: int, parameter: Any) -> None:
        if self._is_accumulating:
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

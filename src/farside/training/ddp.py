"""The door of DistributedDataParallel: a communication hook, whose gradients go to the shared Aggregators.

    ddp.register_comm_hook(farside.training.ddp.state(ddp), farside.training.ddp.hook)

What is pushed are parameters' gradients, never buckets: DDP makes these anew after the first iteration. A process group
of one rank will do, since `state` gives every rank rank 0's parameters; but with find_unused_parameters or static_graph
DDP asks its group who used what, and then all ranks have to be in it. `state` sees that if it is given the DDP itself.
"""

import os
import queue
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from farside.errors import ConfigError, FarsideError
from farside.training.attachment import Attachment, check_place, closed_on_error
from farside.training.member import MemberSession
from farside.training.service import source_of
from farside.training.trainable import Trainable, trainable_in

torch: Any = import_module("torch")


class _Awaited(NamedTuple):
    tensors: list[int]
    gradients: list[Any]
    buffer: Any
    iteration: int
    future: Any


class DDPState(Attachment):
    """What `hook` needs of a model. Its thread waits for results, and completes DDP's futures."""

    def __init__(self, session: Any, source: Any, trainables: Sequence[Trainable]) -> None:
        """Connects; rank 0's parameters are everybody's when it returns."""
        super().__init__(session, source, trainables)
        self._tensors = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._connect()
        self._begin()
        self._copy.give(range(len(self._parameters)))
        self._awaited: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._complete, name="farside-ddp", daemon=True)
        self._thread.start()

    def reduce(self, bucket: Any) -> Any:
        """Push a bucket's gradients; a future of its buffer with the means."""
        tensors, gradients = [], []
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            number = self._tensors.get(id(parameter))
            if number is None:
                raise ConfigError(
                    "a bucket of DistributedDataParallel has a parameter that farside.training.ddp.state was not given",
                    hint="give it the model that DistributedDataParallel wraps, after all parameters are made",
                )
            if gradient.dtype is not parameter.dtype:
                raise ConfigError(
                    f"the gradient of '{self._trainables[number].name}' is of {gradient.dtype}, the parameter of "
                    f"{parameter.dtype}"
                )
            self._check_format(number, parameter)
            tensors.append(number)
            gradients.append(gradient)
        iteration = self._exchange.iteration
        for number, gradient in zip(reversed(tensors), reversed(gradients), strict=True):
            self._exchange.begin(number)
            self._copy.take(number, gradient, iteration, lambda number=number: self._exchange.fill(number))  # type: ignore[misc]
        future = torch.futures.Future(devices=[bucket.buffer().device] if bucket.buffer().is_cuda else [])
        if bucket.is_last():
            self._end_iteration()
        self._awaited.put(_Awaited(tensors, gradients, bucket.buffer(), iteration, future))
        return future

    def _end_iteration(self) -> None:
        # Every parameter is in a bucket, unless DDP was told to leave it out.
        for number in reversed(self._exchange.missing()):
            self._exchange.begin(number)
            self._copy.take_zeros(number, self._exchange.iteration)
            self._exchange.fill(number)
        self._copy.drain()
        self._exchange.finish()
        self._measure()

    def _complete(self) -> None:
        while (one := self._awaited.get()) is not None:
            try:
                self._exchange.wait(one.tensors, one.iteration)
                for tensor, gradient in zip(one.tensors, one.gradients, strict=True):
                    gradient.copy_(self._copy.result(tensor))
                one.future.set_result(one.buffer)
            except FarsideError as problem:
                # PyTorch shows an exception of a future as one of a cast; a RuntimeError keeps its line.
                one.future.set_exception(RuntimeError(str(problem)))

    def _need(self, numbers: Any) -> None:
        """Nothing is behind: DDP waits for the means."""

    def _leave(self) -> None:
        self._awaited.put(None)
        self._thread.join()
        super()._leave()


class DDPAlone:
    """The state of a world of one: the mean is the gradient itself."""

    def reduce(self, bucket: Any) -> Any:
        """The bucket as it is."""
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future


def state(
    model: Any,
    *,
    service: Sequence[str] | str = (),
    key_file: str | os.PathLike[str] | None = None,
    job: str | None = None,
    rank: int | None = None,
    members: int | None = None,
) -> DDPState | DDPAlone:
    """The state of `hook` for a model, on every rank.

    Args:
        model: The DistributedDataParallel, or the model inside.
        service: As for `farside.attach`, like what follows.
        key_file: The service's key.
        job: The job's name.
        rank: Which rank this is.
        members: How many ranks there are.

    Raises:
        FarsideError: this can't be aggregated, or the service can't be had: one line.
    """
    is_ddp = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    trainables = trainable_in(model.module if is_ddp else model)
    found = source_of(service, key_file, job=job, rank=rank, members=members)
    asks = [name for name in ("find_unused_parameters", "static_graph") if is_ddp and getattr(model, name)]
    if asks and model.process_group.size() < found.members:
        found.close()
        raise ConfigError(
            f"DistributedDataParallel has {asks[0]}=True, and its process group has "
            f"{model.process_group.size()} of {found.members} ranks: one with a parameter unused drops its mean",
            hint="make the process group of all ranks",
        )
    if found.members == 1:
        found.close()
        return DDPAlone()
    with closed_on_error(found):
        check_place(found)
    session = MemberSession(found, rule="mean", tensors=[one.tensor for one in trainables])
    with closed_on_error(session):
        return DDPState(session, found, trainables)


# DDP looks at the names and annotations of its hooks' arguments.
def hook(state, bucket):  # type: ignore[no-untyped-def]
    """DDP's communication hook: the mean of a bucket's gradients over all members."""
    return state.reduce(bucket)

"""Opens the door that a training script asked for: everything that can be refused is, before anything is changed."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from msgspec.structs import replace

from farside.errors import ConfigError
from farside.training.attachment import Attachment, TrainingStats, check_place, closed_on_error
from farside.training.optimizer_rule import rule_of
from farside.training.optimizer_state import iteration_of
from farside.training.server_update import ServerUpdate
from farside.training.trainable import check_optimizer, optimized_in, trainable_in, untrained_in
from farside.training.worker_update import WorkerUpdate, tensors_of

_log = logging.getLogger(__name__)
_attached: "weakref.WeakKeyDictionary[Any, weakref.ref[Attachment]]" = weakref.WeakKeyDictionary()


class Handle(Protocol):
    """What `farside.attach` returns."""

    @property
    def iteration(self) -> int:
        """Iterations that are complete: where the training loop goes on."""
        ...

    def wait(self) -> None:
        """Wait until every parameter is up to date; for uses that PyTorch does not show."""

    def accumulate(self) -> contextlib.AbstractContextManager[None]:
        """Gradients of a backward pass in here stay in `grad`, and leave with those of the next one outside."""
        ...

    def stats(self) -> TrainingStats:
        """Counters since `attach`."""
        ...

    def detach(self) -> None:
        """Bring the parameters up to date, take the hooks off, and leave the job."""


def open_door(
    model: Any,
    optimizer: Any,
    *,
    update: str,
    overlap: bool,
    resume: str | None,
    find_unused_parameters: bool,
    source_of: Callable[[], Any],
    session_of: Callable[..., Any],
) -> Handle:
    """Attach a model and its optimizer; arguments as of `farside.attach`.

    Args:
        model: A torch.nn.Module.
        optimizer: Its torch.optim.Optimizer.
        update: "server" or "worker".
        overlap: Bring each parameter before its first use.
        resume: "service" or None.
        find_unused_parameters: Each parameter is in chunks of its own.
        source_of: Where plans come from.
        session_of: Makes a `MemberSession` of a source, a rule and tensors.

    Raises:
        FarsideError: this can't be aggregated, or the service can't be had: one line.
    """
    _check_words(update, resume)
    if update == "server":
        trainables, rule = optimized_in(model, optimizer), rule_of(optimizer)
        _tell_of_untrained(model, optimizer)
        tensors = tuple(replace(one.tensor, is_apart=find_unused_parameters) for one in trainables)
    else:
        trainables, rule = trainable_in(model), "mean"
        check_optimizer(model, optimizer)
        tensors = tensors_of(trainables)
    if any(_is_attached(one) for one in (model, optimizer)):
        raise ConfigError("this model or optimizer is attached already", hint="call handle.detach() first")
    source = source_of()
    if source.members == 1:
        source.close()
        _log.warning("farside.attach: a world of one: it trains, and nothing is shared")
        return Alone(optimizer, iteration=iteration_of(optimizer) if update == "server" else 0)
    with closed_on_error(source):
        check_place(source)
    session = session_of(source, rule=rule, tensors=tensors)
    with closed_on_error(session):
        handle: Attachment
        if update == "server":
            handle = ServerUpdate(
                session, source, trainables, model=model, optimizer=optimizer, rule=rule, overlap=overlap,
                takes_service=resume == "service",
            )  # fmt: skip
        else:
            handle = WorkerUpdate(session, source, trainables, model=model, optimizer=optimizer)
    for one in (model, optimizer):
        _attached[one] = weakref.ref(handle)
    return handle


def _tell_of_untrained(model: Any, optimizer: Any) -> None:
    if alone := untrained_in(model, optimizer):
        others = f" and {len(alone) - 1} others" if alone[1:] else ""
        _log.warning(
            f"farside.attach: the optimizer does not have '{alone[0]}'{others}: each rank keeps its own; to have all "
            'ranks train it, give it to the optimizer, or use update="worker"; to train it nowhere, freeze it'
        )


def _check_words(update: str, resume: str | None) -> None:
    if update not in ("server", "worker"):
        raise ConfigError(f'farside.attach: update is "{update}"; it is "server" or "worker"')
    if resume not in (None, "service"):
        raise ConfigError(
            f'farside.attach: resume is "{resume}"; it is "service", or left out',
            hint="to begin from a checkpoint of your own, load it at rank 0 and name another job",
        )


def _is_attached(one: Any) -> bool:
    handle = _attached.get(one, lambda: None)()
    return handle is not None and handle.is_open


class Alone:
    """The handle of a world of one: every step is the optimizer's own."""

    def __init__(self, optimizer: Any, *, iteration: int) -> None:
        """``iteration``: what the optimizer has made; its steps from here on are counted."""
        self.iteration = iteration
        self._hooks: list[Any] = []
        with contextlib.suppress(AttributeError):  # a wrapper may have no hooks
            self._hooks.append(optimizer.register_step_post_hook(self._after_step))

    def _after_step(self, *_arguments: Any) -> None:
        self.iteration += 1

    def wait(self) -> None:
        """Nothing is ever behind."""

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gradients accumulate in any case."""
        yield

    def stats(self) -> TrainingStats:
        """Nothing has been counted."""
        return TrainingStats(iterations=0, tensors=0, chunks=0, pushed_bytes=0, waited_s=0.0, waits_late=False)

    def detach(self) -> None:
        """Nothing to leave; nothing is counted any more."""
        for hook in self._hooks:
            hook.remove()

"""What both doors of PyTorch share: a session, gradients that leave in hooks, and the handle that the user gets."""

import atexit
import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from farside.errors import ConfigError, FarsideError
from farside.training.exchange import Exchange, Refilled
from farside.training.iteration_report import IterationReport
from farside.training.region_place import RegionPlaces
from farside.training.tensor_copy import TensorCopy, has_bits_of
from farside.training.trainable import Trainable

torch: Any = import_module("torch")

_attached: "weakref.WeakSet[Attachment]" = weakref.WeakSet()

EXIT_LIMIT_S = 5.0
"""For the last results when a process ends; another rank may have died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStats:
    """Counters of one member since it attached.

    Attributes:
        iterations: Iterations that it has completed.
        tensors, chunks: Of the model.
        pushed_bytes: Gradients that it has pushed.
        waited_s: Time for which the training loop has waited for results.
        waits_late: Whether each parameter is waited for before its first use, or all at once.
    """

    iterations: int
    tensors: int
    chunks: int
    pushed_bytes: int
    waited_s: float
    waits_late: bool


@contextlib.contextmanager
def closed_on_error(one: Any) -> Iterator[None]:
    """Close a session, or a source of plans, if what is done here fails."""
    try:
        yield
    except BaseException:
        one.close()
        raise


def check_place(source: Any) -> None:
    """Whether this process may still take the place in the job that ``source`` names.

    Raises:
        ConfigError: a model of this process has it, which would lose it.
    """
    wanted = source.job, source.start, source.rank
    if any(one.is_open and one.place == wanted for one in tuple(_attached)):
        raise ConfigError(
            f"this process takes part in job '{source.job}' with another model already",
            hint="call detach() of its handle first; to train both, attach them as one torch.nn.ModuleDict (with "
            'update="worker" for an optimizer each), or where no manager runs the job, give another job="NAME"',
        )


class _Taken(NamedTuple):
    """A gradient that was taken, and what PyTorch counted of its changes by then."""

    gradient: Any
    version: int


class Attachment:
    """A model whose gradients leave in hooks. The handle of `farside.attach`."""

    # Where the service only sums, rank 0's parameters go to all as the result of an iteration of their own.
    _versions_before = 1

    def __init__(self, session: Any, source: Any, trainables: Sequence[Trainable], *, first: int = 0) -> None:
        """``first``: number of the first parameter among the session's tensors, which may have others before it."""
        self._session, self._source, self._trainables, self._first = session, source, tuple(trainables), first
        self._parameters = [one.parameter for one in self._trainables]
        self._formats = [(one.parameter.dtype, one.parameter.device) for one in self._trainables]
        self._copy = TensorCopy(self._parameters, RegionPlaces(session.layout, session.member), first=first)
        self._exchange: Exchange
        self._hooks: list[Any] = []
        self._taken: dict[int, _Taken] = {}
        self._started_at = 0
        self._waited_s = 0.0
        self._last_finish_s: float | None = None
        self._report = IterationReport()
        self._is_accumulating = False
        # A model may run in several threads, which find the same result new; held while that is copied.
        self._giving = threading.RLock()
        self.is_open = True

    def _connect(self, contents: Callable[[], Any] | None = None) -> None:
        """``contents`` is called at rank 0 of a job that begins: puts the parameters where results are."""
        self._session.connect(self._copy.put_parameters if contents is None else contents)
        self._session.wait(0, len(self._session.layout.chunks), self._session.first_version)

    def _begin(self, begins: Callable[[int], None] | None = None) -> None:
        """From here on iterations are counted; ``begins`` as of `Exchange`."""
        self._exchange = Exchange(self._session, version=self._session.first_version, begins=begins)
        self._started_at = self._exchange.version
        _attached.add(self)
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        # A process that ends at once may take its last pushes along, which the other ranks wait for.
        with contextlib.suppress(FarsideError, TimeoutError):
            self._session.wait(0, len(self._session.layout.chunks), self._exchange.version, EXIT_LIMIT_S)

    @property
    def place(self) -> tuple[Any, int, int] | None:
        """Job, start and rank; None: the job can't go on, and nobody loses a place in it."""
        source = self._source
        return None if self._session.problem is not None else (source.job, source.start, source.rank)

    # What users call

    @property
    def iteration(self) -> int:
        """Iterations that are complete: where the training loop goes on. After a resumed start it is not 0."""
        return self._exchange.version - self._versions_before

    def wait(self) -> None:
        """Wait until every parameter is up to date; for uses that PyTorch does not show."""
        self._need(range(len(self._parameters)))

    @contextlib.contextmanager
    def accumulate(self) -> Iterator[None]:
        """Gradients of a backward pass in here stay in `grad`, and leave with those of the next one outside."""
        before, self._is_accumulating = self._is_accumulating, True
        try:
            yield
        finally:
            self._is_accumulating = before

    def stats(self) -> TrainingStats:
        """Counters since `attach`."""
        iterations = self._exchange.version - self._started_at
        layout = self._session.layout
        return TrainingStats(
            iterations=iterations,
            tensors=len(self._parameters),
            chunks=len(layout.chunks),
            pushed_bytes=iterations * sum(layout.sizes_bytes),
            waited_s=self._waited_s,
            waits_late=self._waits_late,
        )

    def detach(self) -> None:
        """Bring the parameters up to date, take the hooks off, and leave the job. A second call does nothing."""
        if self.is_open:
            self.wait()
            self._leave()

    # Gradients

    @property
    def _waits_late(self) -> bool:
        return False

    def _hook_gradients(self) -> None:
        for number, parameter in enumerate(self._parameters):
            self._hooks.append(
                parameter.register_post_accumulate_grad_hook(
                    lambda parameter, number=number: self._on_gradient(number, parameter)
                )
            )

    def _on_gradient(self, number: int, parameter: Any) -> None:
        if not self._is_accumulating:
            self._push(number, parameter)

    def _push(self, number: int, parameter: Any) -> None:
        gradient, tensor = parameter.grad, number + self._first
        self._check_gradient(number, parameter, gradient)
        try:
            self._exchange.begin(tensor)
        except Refilled:
            raise self._second_backward(number) from None
        self._taken[number] = _Taken(gradient, gradient._version)
        self._copy.take(number, gradient.detach(), self._exchange.iteration, lambda: self._exchange.fill(tensor))

    def _push_missing(self) -> list[int]:
        """Push what no hook has pushed: a gradient that only accumulated, or zeros. The numbers of those."""
        absent = []
        for tensor in reversed(self._exchange.missing()):
            number = tensor - self._first
            if number < 0:
                continue
            parameter = self._parameters[number]
            if parameter.grad is not None:
                self._push(number, parameter)
            else:
                self._exchange.begin(tensor)
                self._copy.take_zeros(number, self._exchange.iteration)
                self._exchange.fill(tensor, is_absent=True)
                absent.append(number)
        return absent

    def _is_as_taken(self, number: int) -> bool:
        """Whether a gradient of this iteration, which is in place, is what was taken, as far as PyTorch counts."""
        taken, gradient = self._taken[number], self._parameters[number].grad
        if gradient is not taken.gradient:
            return False
        if gradient._version == taken.version:
            return True
        # Gradients that are parts of one tensor, as `cat` leaves them, have one counter, and are summed one by one.
        is_part = gradient.untyped_storage().nbytes() != gradient.numel() * gradient.element_size()
        return is_part and has_bits_of(gradient, self._copy.gradient(number, self._exchange.iteration))

    def _check_gradient(self, number: int, parameter: Any, gradient: Any) -> None:
        name = self._trainables[number].name
        if gradient is None:
            raise ConfigError(
                f"a hook has taken away the gradient of '{name}' within backward()",
                hint="let optimizer.step() run after backward()",
            )
        if gradient.layout is not torch.strided:
            raise ConfigError(f"the gradient of '{name}' is sparse", hint="make its module with sparse=False")
        if gradient.requires_grad:
            raise ConfigError(f"the gradient of '{name}' has a graph", hint="call backward() without create_graph=True")
        self._check_format(number, parameter)
        if gradient.dtype is not parameter.dtype:
            raise ConfigError(f"the gradient of '{name}' is of {gradient.dtype}, the parameter of {parameter.dtype}")

    def _check_format(self, number: int, parameter: Any) -> None:
        if (parameter.dtype, parameter.device) != self._formats[number]:
            before = "{} on {}".format(*self._formats[number])
            raise ConfigError(
                f"parameter '{self._trainables[number].name}' is of {parameter.dtype} on {parameter.device} now; "
                f"it was of {before} when it was attached",
                hint="move and convert the model before farside.attach",
            )

    def _second_backward(self, number: int) -> ConfigError:
        return ConfigError(
            f"backward() came to '{self._trainables[number].name}' twice without optimizer.step()",
            hint="put all but the last one into `with handle.accumulate():`; freeze what another model's loss only "
            "goes through; where it was one backward(), give checkpoint() use_reentrant=False; where a GradScaler "
            'skips steps, use farside.attach(..., update="worker")',
        )

    # Results

    def _need(self, numbers: Any) -> None:
        """Bring these parameters up to date, waiting for their results."""
        exchange, first = self._exchange, self._first
        if not exchange.has_stale:
            return
        with self._giving:
            stale = exchange.stale([number + first for number in numbers])
            if stale:
                began_s = time.monotonic()
                exchange.wait(stale)
                self._waited_s += time.monotonic() - began_s
                self._give(stale)

    def _give(self, tensors: Sequence[int]) -> None:
        self._copy.give([tensor - self._first for tensor in tensors])
        self._exchange.arrived(tensors)

    def _measure(self) -> None:
        now_s = time.monotonic()
        if self._last_finish_s is not None:
            self._source.measured(self._exchange.version, now_s - self._last_finish_s)
        self._last_finish_s = now_s
        self._report.over(now_s)

    def _leave(self) -> None:
        self.is_open = False
        atexit.unregister(self._at_exit)
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._copy.close()
        self._report.close()
        self._session.close()

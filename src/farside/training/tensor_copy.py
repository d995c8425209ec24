"""Gradients into a member's region, and results out of it: one call of PyTorch's for many tensors, without the GIL.

A tensor in a GPU's memory is copied by a stream of its own, through region pages that CUDA has pinned. Its gradient is
in place when that copy's event has happened, and a thread waits for that.
"""

import ctypes
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from farside.errors import FarsideError
from farside.training.region_place import Place, RegionPlaces

torch: Any = import_module("torch")

PAGE_BYTES = 4096
PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every GPU of the process."""


class TensorCopy:
    """Copies between a model's parameters and their places."""

    def __init__(self, parameters: Sequence[Any], places: RegionPlaces, *, first: int = 0) -> None:
        """``first``: number of the first parameter among the layout's tensors."""
        self._parameters = parameters
        self._gradients = tuple(_views(parameters, places.gradients(parity)[first:]) for parity in (0, 1))
        self._results = _views(parameters, places.results[first:])
        devices = {parameter.device for parameter in parameters if parameter.device.type == "cuda"}
        self._device_copies = {device: _DeviceCopies(device) for device in devices}
        self._pinned = _Pinned(places) if devices else None

    def gradient(self, number: int, iteration: int) -> Any:
        """Where a gradient goes, as a tensor of the parameter's shape."""
        return self._gradients[iteration & 1][number]

    def result(self, number: int) -> Any:
        """Where a result is, as a tensor of the parameter's shape."""
        return self._results[number]

    def take(self, number: int, gradient: Any, iteration: int, done: Callable[[], None]) -> None:
        """Copy a gradient into its place; ``done`` is called when it is there, perhaps by another thread."""
        place = self.gradient(number, iteration)
        copies = self._device_copies.get(gradient.device)
        if copies is None:
            place.copy_(gradient)
            done()
        else:
            copies.take(place, gradient, done)

    def take_zeros(self, number: int, iteration: int) -> None:
        """Put a gradient of zeros in place."""
        self.gradient(number, iteration).zero_()

    def drain(self) -> None:
        """Wait until every gradient that was taken is in place.

        Raises:
            FarsideError: what `done` raised in another thread.
        """
        for copies in self._device_copies.values():
            copies.drain()

    @property
    def has_devices(self) -> bool:
        """Whether any of the parameters is in a GPU's memory."""
        return bool(self._device_copies)

    def join(self) -> None:
        """Let what comes next on the GPUs wait for the copies that are under way: it may change these gradients."""
        for copies in self._device_copies.values():
            copies.join()

    def give(self, numbers: Iterable[int]) -> None:
        """Copy results into the parameters. Autograd then refuses a backward through one that was used before."""
        chosen = tuple(numbers)
        if chosen:
            with torch.inference_mode(False), torch.no_grad():
                torch._foreach_copy_(
                    [self._parameters[number] for number in chosen],
                    [self._results[number] for number in chosen],
                    non_blocking=bool(self._device_copies),
                )

    def put_parameters(self) -> None:
        """Copy the parameters to where results are, as the contents of a start."""
        with torch.no_grad():
            for parameter, result in zip(self._parameters, self._results, strict=True):
                result.copy_(parameter)

    def close(self) -> None:
        """Let the region go; nothing may be copied any more."""
        for copies in self._device_copies.values():
            copies.close()
        self._gradients = ((), ())
        self._results = ()
        if self._pinned is not None:
            self._pinned.close()


def has_bits_of(one: Any, other: Any) -> bool:
    """Whether two tensors of one shape and format have the same bits, wherever they are."""
    kind = {2: torch.int16, 4: torch.int32}[one.element_size()]
    return bool(torch.equal(one.detach().cpu().view(kind), other.detach().cpu().view(kind)))


def _views(parameters: Sequence[Any], places: Sequence[Place]) -> tuple[Any, ...]:
    return tuple(
        torch.frombuffer(place, dtype=parameter.dtype).view(parameter.shape)
        for parameter, place in zip(parameters, places, strict=True)
    )


class _DeviceCopies:
    """One GPU's copies: a stream that makes them, and a thread that waits for their events in order."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._waiting: queue.SimpleQueue[tuple[Any, Callable[[], None]] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._open = 0
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="farside-copies", daemon=True)
        self._thread.start()

    def take(self, place: Any, gradient: Any, done: Callable[[], None]) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(gradient.device))
        with torch.cuda.stream(self._stream):
            place.copy_(gradient, non_blocking=True)
            event = self._stream.record_event()
        # The allocator gives the gradient's memory to nobody else before the copy is over.
        gradient.record_stream(self._stream)
        with self._changed:
            self._open += 1
        self._waiting.put((event, done))

    def _watch(self) -> None:
        while (item := self._waiting.get()) is not None:
            event, done = item
            try:
                event.synchronize()
                done()
            except Exception as problem:  # `drain` raises it; a thread that ended here would leave that waiting
                self._problem = problem
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def drain(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._open)
        if self._problem is not None:
            raise self._problem

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()


class _Pinned:
    """The region's pages, known to CUDA: a copy from and to them needs no bounce and no waiting."""

    def __init__(self, places: RegionPlaces) -> None:
        every = [*places.gradients(0), *places.gradients(1), *places.results]
        first = min(ctypes.addressof(place) for place in every) // PAGE_BYTES * PAGE_BYTES
        end = max(ctypes.addressof(place) + ctypes.sizeof(place) for place in every)
        count = -(-(end - first) // PAGE_BYTES) * PAGE_BYTES
        error = int(torch.cuda.cudart().cudaHostRegister(first, count, PORTABLE))
        if error:
            raise FarsideError(
                f"CUDA can't pin {(end - first) >> 20} MiB of shared memory (error {error})",
                hint="raise the limit of locked memory (ulimit -l)",
            )
        self._first = first

    def close(self) -> None:
        torch.cuda.cudart().cudaHostUnregister(self._first)

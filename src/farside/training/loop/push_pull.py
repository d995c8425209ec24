"""Sums of what all workers push: within one process, or by Aggregators, in the order of ranks and with the same bits.

Aggregators only add (`sum`) and hold results until they are asked for, so that a worker is on the network when it means
to be. The update is the worker's own: any rule that Python can say [harmony §IV-A].
"""

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from farside.agent.aggregator.layout import Tensor
from farside.errors import ConfigError, EngineError, PeerError
from farside.kmod_shim.time_slice import short_time_slice
from farside.training.loop.block import Arrays
from farside.training.member import MemberSession, PlanSource
from farside.training.region_place import RegionPlaces

_FORMATS = {"float64": "f64", "float32": "f32", "int64": "i64", "int32": "i32"}
STILL_S = 0.1
"""A network on which nothing moves for so long is left to others."""

Still = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One array that is pushed and pulled."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        """Number of its elements."""
        return int(np.prod(self.shape, dtype=np.int64))


class PushPull(Protocol):
    """Pushes of one worker, and the sums of all."""

    def push(self, parts: Arrays, still: Still) -> None:
        """Returns when the parts are out of this worker's hands; calls ``still`` where nothing moves for a while."""

    def pull(self, still: Still) -> Arrays:
        """The sums of the last push of all workers, in arrays of the caller's own."""
        ...

    def close(self) -> None:
        """Ends it; nothing can be pushed any more."""


def keys_of(declared: Mapping[str, Any]) -> tuple[Key, ...]:
    """Keys as a program declares them: a shape for float64, or an array of that shape and format.

    Raises:
        ConfigError: a key has no elements, or is of a format that is not summed.
    """
    keys = []
    for name, given in declared.items():
        like = given if isinstance(given, np.ndarray) else np.empty(given)
        key = Key(name=name, shape=like.shape, dtype=like.dtype)
        if key.dtype.name not in _FORMATS:
            raise ConfigError(f"key '{name}' is of {key.dtype}; {', '.join(_FORMATS)} can be summed")
        if key.size < 1:
            raise ConfigError(f"key '{name}' has no elements; its shape is {key.shape}")
        keys.append(key)
    if not keys:
        raise ConfigError("there is no key to push", hint="name at least one array, such as keys={'loss': ()}")
    return tuple(keys)


def checked(parts: Mapping[str, Any], keys: Sequence[Key]) -> Arrays:
    """The parts of a push as arrays of their keys' shape and format.

    Raises:
        ConfigError: one is missing, unknown, or of another shape or format.
    """
    unknown = sorted(set(parts) - {key.name for key in keys})
    if unknown:
        raise ConfigError(f"push has '{unknown[0]}', which is no key of this job", hint="name it in keys")
    found: Arrays = {}
    for key in keys:
        if key.name not in parts:
            raise ConfigError(f"push lacks '{key.name}'", hint="push all keys in each iteration")
        array = np.asarray(parts[key.name])
        if array.shape != key.shape or not np.can_cast(array.dtype, key.dtype, "same_kind"):
            raise ConfigError(f"push of '{key.name}': {array.dtype} {array.shape}; declared {key.dtype} {key.shape}")
        found[key.name] = np.ascontiguousarray(array, key.dtype).reshape(key.shape)
    return found


class OneWorker:
    """A job of one worker, whose parts are the sums."""

    def __init__(self) -> None:
        self._last: Arrays = {}

    def push(self, parts: Arrays, still: Still) -> None:
        """Keeps the parts."""
        self._last = {name: part.copy() for name, part in parts.items()}

    def pull(self, still: Still) -> Arrays:
        """What was pushed last."""
        return {name: part.copy() for name, part in self._last.items()}

    def close(self) -> None:
        """Nothing is open."""


class ByAggregators:
    """A worker's lanes to the Aggregators of its job."""

    def __init__(self, source: PlanSource, keys: Sequence[Key]) -> None:
        """Connects; blocks until all Aggregators have answered.

        Raises:
            FarsideError: the job can't be served, in one line.
        """
        tensors = [Tensor(key.name, key.size, _FORMATS[key.dtype.name]) for key in keys]
        self._keys = keys
        with short_time_slice():  # its thread receives while another job computes
            self._session = MemberSession(source, rule="sum", tensors=tensors, hold=True)
        try:
            self._session.connect(None)
            # A job that has begun is at a later version, and this worker lacks what the others have pulled.
            if self._session.iteration:
                hint = "start all of its workers again, under another name (FARSIDE_AGGREGATION_JOB)"
                raise PeerError(f"job {source.job} has begun without this worker", hint=hint)
        except BaseException:
            self._session.close()
            raise
        self._places = RegionPlaces(self._session.layout, self._session.member)
        self._chunks = len(self._session.layout.chunks)
        self._iteration = 0

    def push(self, parts: Arrays, still: Still) -> None:
        """Puts the parts into the region, and returns when the Aggregators have them."""
        self._iteration += 1
        for key, place in zip(self._keys, self._places.gradients(self._iteration), strict=True):
            np.frombuffer(place, key.dtype).reshape(key.shape)[...] = parts[key.name]
        self._session.push(0, self._chunks, self._iteration)
        self._each(lambda chunk: self._session.member.wait_taken(chunk, 1, self._iteration, STILL_S), still)

    def pull(self, still: Still) -> Arrays:
        """Asks for the sums, and returns when all are here."""
        self._session.member.ask(0, self._chunks, self._iteration)
        self._each(lambda chunk: self._session.member.wait(chunk, 1, self._iteration, STILL_S), still)
        pairs = zip(self._keys, self._places.results, strict=True)
        return {key.name: np.frombuffer(place, key.dtype).reshape(key.shape).copy() for key, place in pairs}

    def _each(self, wait: Callable[[int], None], still: Still) -> None:
        """Waits for one chunk after the other, as they move: each that comes shows that something does."""
        for chunk in reversed(range(self._chunks)):
            while True:
                try:
                    wait(chunk)
                    break
                except EngineError as error:
                    if error.errno != errno.ETIMEDOUT:
                        raise self._session.problem or error from error
                if self._session.problem is not None:
                    raise self._session.problem
                still()

    def close(self) -> None:
        """Ends lanes and region."""
        self._session.close()

"""Device files of a node's GPUs, and which of them a task may open. PURE."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import Struct


class DeviceRange(Struct, frozen=True):
    """Character devices of one driver, by their numbers, first and last included."""

    major: int
    first: int
    last: int


class DeviceRules(Struct, frozen=True, kw_only=True):
    """What a task may open: ``opened`` whatever ``closed`` says, nothing else of ``closed``, and all other devices."""

    opened: tuple[DeviceRange, ...] = ()
    closed: tuple[DeviceRange, ...] = ()

    def allows(self, major: int, minor: int) -> bool:
        """Whether the kernel opens this character device for the task."""
        return _has(self.opened, major, minor) or not _has(self.closed, major, minor)


def _has(ranges: Sequence[DeviceRange], major: int, minor: int) -> bool:
    return any(one.major == major and one.first <= minor <= one.last for one in ranges)


NO_RULES = DeviceRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFiles:
    """Device files of a node's GPUs.

    Attributes:
        own: Those of each GPU, by its index.
        closed: All that a task without GPUs may not open.
        names: What CUDA calls each GPU whatever it can open: it counts the others only, so that an index names another
            GPU behind a fence. Without a name the index stands.
        problem: Why nothing can be fenced here; empty: it can.
        counts_own: Programs count only the GPUs that they can open, and take no names: a task's own are 0 and so on.
    """

    own: Mapping[int, tuple[DeviceRange, ...]]
    closed: tuple[DeviceRange, ...] = ()
    names: Mapping[int, str]
    problem: str = ""
    counts_own: bool = False

    def named(self, gpus: Sequence[int]) -> dict[int, str]:
        """What programs of a task with these GPUs call them behind its fence; those that lack have their index."""
        mine = sorted({*gpus})
        if self.counts_own:
            return {gpu: str(at) for at, gpu in enumerate(mine)}
        return {gpu: self.names[gpu] for gpu in mine if gpu in self.names}

    def rules(self, gpus: Sequence[int]) -> DeviceRules:
        """The rules of a task with these GPUs. The parts of one GPU share its files: between them there is no fence."""
        opened = tuple(one for gpu in dict.fromkeys(gpus) for one in self.own.get(gpu, ()))
        return DeviceRules(opened=opened, closed=self.closed)

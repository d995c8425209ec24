"""What every partition driver offers: parts of a device, and how a process gets into one."""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device as its driver knows it: a number, and the CPU cores that it consists of, or a GPU's UUID."""

    number: int = 0
    cores: tuple[int, ...] = ()
    uuid: str = ""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """How a process gets into a part: it writes 0 to each file, and takes these variables, cores and threads.

    ``host``: the socket of a process that computes for it, by the number ``part``; empty: it computes itself.
    ``daemon``: the folder of an MPS control daemon that has to answer before; empty: it needs none.
    """

    files: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    threads: int = 1
    environment: dict[str, str] = {}
    computes_on: Literal["cpu", "cuda"] = "cpu"
    host: str = ""
    part: int = 0
    daemon: str = ""


class Measured(NamedTuple):
    """What a part has used since it was opened: seconds of the device, 1 being the whole of it for a second."""

    device_s: float


class Identity(NamedTuple):
    """What a device is, and the memory that its parts have together."""

    name: str
    memory_mb: float


class Conditions(NamedTuple):
    """How a device is while it is measured; None: it has no such sensor."""

    clock_mhz: float | None
    temperature_c: float | None


class Place(Protocol):
    """An open part of a device."""

    part_pct: int
    entry: Entry

    def resize(self, part_pct: int) -> bool:
        """Changes its size under the running executor; False: it can't, a new executor is needed, nothing changed."""
        ...

    def hold(self, prepare_pct: int) -> bool:
        """Until `let_go` it has so much of the device at most, beside what all parts have; False: it can't be held."""
        ...

    def let_go(self) -> None:
        """Gives the part its size again."""
        ...

    def measured(self) -> Measured | None:
        """What its executor has used; None: nobody counts it."""
        ...

    def close(self) -> None:
        """Gives it back; its executor has ended."""
        ...


@runtime_checkable
class SharedFate(Protocol):
    """A place where what one executor does to the device may keep executors of other places from using it.

    ``on_spoilt``: ends the executor here; its user sets it.
    """

    on_spoilt: Callable[[], None]

    def spoilt(self) -> None:
        """Has the others end too: the executor here has ended, since it could not use the device any longer."""
        ...


class Traits(NamedTuple):
    """What a driver does wherever it works, so that it is known also of a device elsewhere.

    ``on_gpu``: its devices are GPUs; otherwise CPU cores. ``can_cut``: it has parts below 100 %. ``can_resize``: a part
    gets another size under its executor, and so is held to less while that loads.
    """

    on_gpu: bool
    can_cut: bool = True
    can_resize: bool = False


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver can do on this machine. ``problem``: why it can do nothing here; empty: it works."""

    problem: str = ""
    parts: str = ""
    isolation: str = ""


class Driver(Protocol):
    """One way to cut devices."""

    traits: ClassVar[Traits]

    def capabilities(self) -> Capabilities:
        """Looks at this machine."""
        ...

    def check(self, device: Device, part_pct: int) -> None:
        """Whether a device that has no other parts can have one of this size; nothing is started for it.

        Raises:
            Unavailable: It can't; the line says why.
        """
        ...

    def open(self, device: Device, part_pct: int) -> Place:
        """A part of a device.

        Raises:
            Unavailable: This machine can't; the line names the file or library that it lacks.
        """
        ...

    def identity(self, device: Device) -> Identity:
        """What a device is: a profile of another one is refused."""
        ...

    def conditions(self, device: Device) -> Conditions:
        """How it is now."""
        ...

    def process_bytes(self, device: Device, pid: int) -> int | None:
        """The device's memory that an executor's process uses; None: nobody counts it."""
        ...

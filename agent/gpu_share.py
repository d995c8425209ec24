"""Share: the record that says which start of a job holds which GPU, or which part of a GPU. PURE.

The event log, the task ledger of a node and the web page use it.

How it works
  A GPU is a device, or is cut into parts, each of which is a device that its driver has a name for (MIG instances).
  What is counted, given and held are devices. A whole GPU and a part of it are never held at the same time.

  What a holder does inside its device is its own: no fraction of a device is in any ledger.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import Struct

WHOLE = ""
"""The part that is the whole GPU."""
PARTS_MAX = 16
"""Parts of one GPU: NVIDIA makes up to 7, AMD up to 8."""

Holder: TypeAlias = tuple[str, int]
"""Owner of a device: a job and the number of its start; on the node itself a task and the number of its start."""


class Device(NamedTuple):
    """One device that a holder may have: a GPU by its index, or a part of it by the name its driver gives it."""

    gpu: int
    part: str = WHOLE


class Share(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One device of a node, held by one holder. ``node``: empty on the node itself."""

    gpu: int
    holder: Holder
    part: str = WHOLE
    node: str = ""

    @property
    def device(self) -> Device:
        """The device that is held."""
        return Device(self.gpu, self.part)


def devices_of(gpus: Iterable[int], parts: Sequence[str] = ()) -> tuple[Device, ...]:
    """Devices from the two lists of a record; without parts all are whole GPUs."""
    return tuple(Device(gpu, parts[at] if parts else WHOLE) for at, gpu in enumerate(gpus))


def parts_of(devices: Sequence[Device]) -> tuple[str, ...]:
    """Parts of the devices, as records list them; empty when all are whole GPUs."""
    parts = tuple(device.part for device in devices)
    return parts if any(parts) else ()


def shares_of(devices: Iterable[Device], holder: Holder, node: str = "") -> tuple[Share, ...]:
    """Shares in which one holder has all of these devices."""
    return tuple(Share(node=node, gpu=device.gpu, part=device.part, holder=holder) for device in devices)


def free_devices(devices: Iterable[Device], held: Iterable[Share]) -> Iterator[Device]:
    """Devices of which no part is held."""
    taken = {share.device for share in held}
    gpus = {device.gpu for device in taken}
    for device in devices:
        # Where a part is held, other parts are free, and the whole is not.
        is_free = device.gpu not in gpus
        if is_free or (device.part and not {device, Device(device.gpu)} & taken):
            yield device


def clash(devices: Sequence[Device], held: Iterable[Share]) -> Share | None:
    """The first share that overlaps with these devices; None: there is none."""
    gpus = {device.gpu for device in devices}
    for share in held:
        if share.gpu in gpus:
            for device in devices:
                if device.gpu == share.gpu and (device.part == share.part or WHOLE in (device.part, share.part)):
                    return share
    return None


def is_twice(devices: Sequence[Device]) -> bool:
    """True when a device, or a part of it, is named more than once."""
    whole = {device.gpu for device in devices if not device.part}
    return len({*devices}) < len(devices) or any(device.part and device.gpu in whole for device in devices)

"""Capabilities of each RDMA device, read with Debian's pyverbs, and advice for each one that is missing.

The engine uses libibverbs itself for pages. This module is for people: `farside doctor` shows what a card lacks before
anybody swaps over it.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from farside.errors import Unavailable
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.rdma.devices import RdmaDevice
from farside.units import format_bytes

READS_WANTED = 16  # outstanding READs of a queue pair: what the engine asks for
MTU_WANTED_BYTES = 4096  # a page in one packet
_PORT_ACTIVE = 4  # enum ibv_port_state
_MEM_WINDOW_2B = 1 << 24  # enum ibv_device_cap_flags: IBV_DEVICE_MEM_WINDOW_TYPE_2B


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """One device with its first port.

    Attributes:
        is_active: The port can send.
        mtu_bytes: Largest packet now; 0 when the port is down.
        reads_outstanding: READs that a queue pair may have in flight.
        region_bytes: Largest memory region.
        has_windows: Type-2B memory windows, by which a key is revoked without registering again.
    """

    name: str
    is_active: bool
    mtu_bytes: int
    reads_outstanding: int
    region_bytes: int
    has_windows: bool


def read_capabilities(name: str) -> Capabilities:
    """Asks a device by its name.

    Raises:
        Unavailable: pyverbs is not installed, or the device can't be opened.
    """
    try:
        # Debian's package, compiled and without stubs, so that pyright finds no module. Imported here, because most
        # machines have neither the package nor a card.
        with _log_kept():
            from pyverbs.device import Context
            from pyverbs.pyverbs_error import PyverbsError
    except ImportError as error:
        raise Unavailable("pyverbs is not installed", hint="apt-get install python3-pyverbs") from error
    try:
        with Context(name=name) as context:
            return _capabilities(name, context.query_device(), context.query_port(1))
    except PyverbsError as error:
        hint = "run it as a user who may open /dev/infiniband/uverbs*"
        raise Unavailable(f"{name} can't be opened: {' '.join(str(error).split())}", hint=hint) from error


@contextmanager
def _log_kept() -> Iterator[None]:
    """The root logger stays as it is. The library sets it up for itself, and shows what others note from then on."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def _capabilities(name: str, device: Any, port: Any) -> Capabilities:
    is_active = port.state == _PORT_ACTIVE
    return Capabilities(
        name=name,
        is_active=is_active,
        mtu_bytes=128 << port.active_mtu if is_active else 0,  # enum ibv_mtu: 1 is 256
        reads_outstanding=device.max_qp_rd_atom,
        region_bytes=device.max_mr_size,
        has_windows=bool(device.device_cap_flags & _MEM_WINDOW_2B),
    )


def capability_checks(found: Sequence[Capabilities], slab_bytes: int) -> Iterator[Check]:
    """One line for each device: what it can do, or the first thing that it lacks. Pure."""
    for one in found:
        lack, advice = next(_lacks(one, slab_bytes), ("", ""))
        can = (
            f"{one.name}: packets of {one.mtu_bytes} bytes, {one.reads_outstanding} reads in flight, "
            f"{'windows' if one.has_windows else 'no windows: slabs are registered for each borrower'}"
        )
        outcome = Outcome.WARNING if lack else Outcome.OK
        yield Check(name="rdma device", outcome=outcome, found=f"{one.name}: {lack}" if lack else can, advice=advice)


def device_checks(devices: Sequence[RdmaDevice], slab_bytes: int) -> Iterator[Check]:
    """`capability_checks` of this machine's devices; a device that can't be asked is a note."""
    for device in devices:
        try:
            yield from capability_checks([read_capabilities(device.name)], slab_bytes)
        except Unavailable as error:
            found, _, advice = str(error).partition("; ")
            yield Check(name="rdma device", outcome=Outcome.WARNING, found=found, advice=advice)


# What a device lacks, and what to do: the gravest first, as only the first is shown.
def _lacks(one: Capabilities, slab_bytes: int) -> Iterator[tuple[str, str]]:
    if not one.is_active:
        yield "its port is down: nothing goes by it", "ip link set DEVICE up, and look at the cable"
    if one.region_bytes < slab_bytes:
        yield (
            f"registers {format_bytes(one.region_bytes)} at most, a slab has {format_bytes(slab_bytes)}",
            "set a smaller slab_bytes on all machines",
        )
    if one.reads_outstanding < READS_WANTED:
        yield (
            f"{one.reads_outstanding} reads in flight for each queue pair, {READS_WANTED} are wanted: reads queue up",
            "look for a newer firmware; nothing is lost by it but speed",
        )
    if one.mtu_bytes < MTU_WANTED_BYTES:
        yield (
            f"packets of {one.mtu_bytes} bytes: a page of {MTU_WANTED_BYTES} takes several",
            "ip link set DEVICE mtu 4200, on both machines and the switch between",
        )

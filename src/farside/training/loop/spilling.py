"""What a worker does so that its input need not fit in memory: its shares, what it says of itself, and its model.

The node's executor decides for all jobs that take turns there (`agent/training/alpha.py`); a worker that has no
executor, or finds it gone, decides for itself in the same way.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np

from farside.agent.training import alpha
from farside.agent.training.alpha import Keep, Use
from farside.errors import ConfigError
from farside.log import get_log
from farside.training.loop.block import Arrays, OwnBlocks
from farside.training.loop.memory_meter import MemoryMeter, MemoryUse
from farside.training.loop.parked_model import ParkedModel
from farside.training.loop.peer_device import PeerDevice
from farside.training.loop.spill_file import Store, file_in, peer_at
from farside.training.loop.spilled_blocks import SpilledBlocks, keeps_all, may_leave_memory
from farside.training.loop.turns import Turns
from farside.units import parse_bytes

_log = get_log("training")
T = TypeVar("T")

SPILL_DIR, SPILL_PEER = "FARSIDE_SPILL_DIR", "FARSIDE_SPILL_PEER"
SPILL_MEMORY = "FARSIDE_SPILL_MEMORY"
"""Environment variables: the options of `farside train` have their names."""
SPILL_OFFER, SPILL_OFFER_BYTES = "FARSIDE_SPILL_OFFER", "FARSIDE_SPILL_OFFER_BYTES"
"""Those that an agent sets for a co-located job: a folder of its node, and the memory that the job has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpillPlace:
    """Where a worker's input goes that does not fit in memory.

    Attributes:
        folder: On a disk of this machine.
        peer: A device in a peer's memory; None: there is none.
        memory_bytes: What the worker may have by itself; 0: as its cgroup says.
        offered_bytes: What its node's agent says that it may have, where no cgroup says less; 0: nothing.
        is_offered: The agent names the folder, and not the job's user.
    """

    folder: Path
    peer: Path | None = None
    memory_bytes: int = 0
    offered_bytes: int = 0
    is_offered: bool = False


def spill_place() -> SpillPlace | None:
    """By the environment: what the job's user says, otherwise what its node offers; None: neither says anything.

    Raises:
        ConfigError: What is said makes no sense.
    """
    folder, peer, offer = (os.environ.get(name) for name in (SPILL_DIR, SPILL_PEER, SPILL_OFFER))
    if not folder:
        for name in (SPILL_PEER, SPILL_MEMORY):
            if os.environ.get(name):
                raise ConfigError(f"{name} without {SPILL_DIR}", hint="name a folder on a disk of this machine")
    if not folder and not offer:
        return None
    return SpillPlace(
        folder=Path(folder or offer or ""),
        peer=Path(peer) if peer else None,
        memory_bytes=_bytes_of(SPILL_MEMORY),
        offered_bytes=_bytes_of(SPILL_OFFER_BYTES),
        is_offered=not folder,
    )


def _bytes_of(name: str) -> int:
    text = os.environ.get(name) or "0"
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def spill_place_for(source: Sequence[Any]) -> SpillPlace | None:
    """Where what does not fit of an input goes; None: all of it stays in memory.

    Raises:
        ConfigError: The user asks for what can't be had.
    """
    place = spill_place()
    if place is None:
        return None
    if place.is_offered:
        return place if may_leave_memory(source) else None
    if keeps_all(source):
        raise ConfigError(
            "all input blocks are in memory already, so that spilling them would free nothing",
            hint="give `begin` a sequence that makes or reads block i when it is asked for, or leave out --spill-dir",
        )
    return place


class Spills(Protocol):
    """Called by the loop at the ends of its subtasks."""

    def pulled(self, model: Arrays) -> None:
        """The model is used from now on."""

    def pushed(self, model: Arrays, *, comp_s: float, net_s: float) -> None:
        """An iteration is over: how long it computed, with waiting for blocks, and was on the network."""


class SpillsNothing:
    """All input is in memory."""

    def pulled(self, model: Arrays) -> None:
        """Nothing is elsewhere."""

    def pushed(self, model: Arrays, *, comp_s: float, net_s: float) -> None:
        """Nobody asks."""


class SpillsBlocks:
    """Some input may be on the disk or at a peer."""

    def __init__(self, blocks: SpilledBlocks[Any], meter: MemoryMeter, turns: Turns, *, parks: bool = True) -> None:
        """``parks``: the model may be on the disk between a push and the next pull."""
        self._blocks, self._meter, self._turns, self._parks = blocks, meter, turns, parks
        self._own = alpha.Spilling()
        self._parked = ParkedModel(blocks.disk)
        self._before: MemoryUse | None = None
        self._pushed_s = self._waited_s = 0.0

    def pulled(self, model: Arrays) -> None:
        """Reads the model back, where it is on the disk.

        Raises:
            FarsideError: It can't be read.
        """
        self._parked.bring_back(model)
        self._obey(self._turns.told())

    def pushed(self, model: Arrays, *, comp_s: float, net_s: float) -> None:
        """Says what the iteration took, and learns what is to be on the disk in the next one."""
        now_s, memory, blocks = time.monotonic(), self._meter.read(), self._blocks
        waited_s, self._waited_s = blocks.waited_s - self._waited_s, blocks.waited_s
        before, self._before = self._before, memory
        iteration_s, self._pushed_s = now_s - self._pushed_s, now_s
        if before is None:
            return  # the first push has no iteration before it
        disk, peer = blocks.costs
        use = Use(
            job="", spilled=blocks.spilled, iteration_s=iteration_s, comp_s=max(0.0, comp_s - waited_s), net_s=net_s,
            stall_s=max(0.0, memory.stall_s - before.stall_s), input_bytes=blocks.input_bytes,
            used_bytes=memory.used_bytes, limit_bytes=memory.limit_bytes, disk=disk, peer=peer, wait_s=waited_s,
            disk_bytes=blocks.read_bytes[0], peer_bytes=blocks.read_bytes[1], waited_s=blocks.waited_s,
        )  # fmt: skip
        self._obey(self._decided(use))
        is_all_out = blocks.keep.spilled >= 1 and blocks.spilled >= 1
        if self._parks and is_all_out and alpha.is_full(memory.used_bytes, memory.limit_bytes):
            self._parked.park(model)

    def _obey(self, keep: Keep | None) -> None:
        if keep is not None:
            self._blocks.keep = keep

    def _decided(self, use: Use) -> Keep | None:
        if self._turns.tell(use):
            self._own = alpha.Spilling()
            return None  # the answer comes with the next turn
        self._own, told = alpha.step(self._own, use)
        return told.get(use.job)


def spilled(
    place: SpillPlace | None, source: Sequence[T], numbers: range, turns: Turns
) -> tuple[OwnBlocks[T], Spills]:  # fmt: skip
    """A worker's blocks, and what they need; ``place``: of `spill_place_for`.

    Raises:
        ConfigError: What the user asks for can't be had.
    """
    if place is None:
        return OwnBlocks(source, numbers), SpillsNothing()
    try:
        disk = file_in(place.folder)
    except ConfigError as error:
        if not place.is_offered:
            raise
        _log.warning("input stays in memory: its node's folder for it can't be used", reason=error)
        return OwnBlocks(source, numbers), SpillsNothing()
    try:
        elsewhere = _peer(place.peer) if place.peer is not None else None
    except ConfigError:
        disk.close()
        raise
    meter = _meter_of(place)

    def is_full() -> bool:
        memory = meter.read()
        return alpha.is_full(memory.used_bytes, memory.limit_bytes)

    def first_share(input_bytes: int, buffer_bytes: int) -> float:
        memory = meter.read()
        # One block of the input is in memory by now, and counts as memory of the program's: that is on the safe side.
        return alpha.first_share(
            input_bytes=input_bytes, other_bytes=memory.used_bytes + buffer_bytes, limit_bytes=memory.limit_bytes
        )  # fmt: skip

    blocks = SpilledBlocks(source, numbers, disk=disk, peer=elsewhere, first_share=first_share, is_full=is_full)
    # A program that has asked for nothing may read its model at any time.
    parks = not place.is_offered or not isinstance(source, np.memmap)
    return blocks, SpillsBlocks(blocks, meter, turns, parks=parks)


def _peer(path: Path) -> Store:
    """A device of this worker's own by a borrower's settings, or one that is there."""
    return PeerDevice(path) if path.suffix == ".toml" else peer_at(path)


def _meter_of(place: SpillPlace) -> MemoryMeter:
    """By the cgroup, unless its user says another limit, or no cgroup has one as low as the agent's word."""
    by_cgroup = MemoryMeter(limit_bytes=place.memory_bytes)
    limit_bytes = by_cgroup.read().limit_bytes
    if place.memory_bytes or not place.offered_bytes or 0 < limit_bytes <= place.offered_bytes:
        return by_cgroup
    return MemoryMeter(limit_bytes=place.offered_bytes)

"""What goes between an executor and the process that started it: packets of 64 bytes on a SEQPACKET socketpair. PURE.

Tensors are not in them: they lie in the arena (arena.py), at the slot that a packet names.
"""

import enum
import struct
from typing import NamedTuple

from farside.errors import LocalProtocolError, RemoteProtocolError

VERSION = 1
FRAME_BYTES = 64
_LAYOUT = struct.Struct("<HHIQIIIIQQ16x")
assert _LAYOUT.size == FRAME_BYTES

SLOTS = 2  # of a model: one batch runs, one is staged


class Kind(enum.IntEnum):
    """What a frame says."""

    HELLO = 1  # executor: it lives, and has joined its partition
    LOADED = 2  # executor: a model is in memory
    WARMED = 3  # executor: a model ran a batch of ``rows``, from started to ended
    READY = 4  # executor: all models ran; it takes batches
    RUN = 5  # front: run ``rows`` of a model's slot as batch number ``batch``
    DONE = 6  # executor: that batch ended; ``status`` says how, and a line of why is in the slot
    FAILED = 7  # executor: it can't start; the line of why is in the first slot of ``model``; ``status`` tells SPOILT
    STOP = 8  # front: end after what was asked


class Status(enum.IntEnum):
    """How a batch ended, or a start."""

    OK = 0
    RAISED = 1
    SPOILT = 2  # the model has raised, and the executor can use its device no more


class Frame(NamedTuple):
    """One packet; ``model`` counts the models of the executor from 0. Times are CLOCK_MONOTONIC in ns."""

    kind: Kind
    status: Status = Status.OK
    batch: int = 0
    model: int = 0
    rows: int = 0
    slot: int = 0
    started_ns: int = 0
    ended_ns: int = 0


def encode(frame: Frame) -> bytes:
    """The packet of a frame.

    Raises:
        LocalProtocolError: A number does not fit.
    """
    kind, status, batch, model, rows, slot, started_ns, ended_ns = frame
    try:
        return _LAYOUT.pack(VERSION, kind, status, batch, model, rows, slot, 0, started_ns, ended_ns)
    except struct.error as error:
        raise LocalProtocolError(f"a frame to or from an executor has a number out of bounds: {error}") from error


def decode(packet: bytes) -> Frame:
    """The frame of a packet.

    Raises:
        RemoteProtocolError: It has another size, version, kind or status, or names a slot that there is not.
    """
    if len(packet) != FRAME_BYTES:
        raise RemoteProtocolError(f"an executor's packet has {len(packet)} bytes instead of {FRAME_BYTES}")
    version, kind, status, batch, model, rows, slot, _, started_ns, ended_ns = _LAYOUT.unpack(packet)
    if version != VERSION:
        raise RemoteProtocolError(f"an executor speaks version {version} instead of {VERSION}")
    try:
        found = Frame(Kind(kind), Status(status), batch, model, rows, slot, started_ns, ended_ns)
    except ValueError as error:
        raise RemoteProtocolError(f"an executor's packet can't be read: {error}") from error
    if slot >= SLOTS:
        raise RemoteProtocolError(f"an executor's packet names slot {slot} of {SLOTS}")
    return found

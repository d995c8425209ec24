"""What goes over TCP between a front and a worker on another host. Sans-I/O, PURE.

    front                                    worker
    HELLO(version, key's name, nonce) ->
                                          <- CHALLENGE(nonce, proof)             it has the deployment's key
    PROOF(proof) ->                                                              so has the front
    OPEN(executor wanted) ->
                                          <- OPENED, or FAILED(line)
    RUN(batch, model, rows, slot; tensors) ->
                                          <- DONE(batch, times; tensors or line)
    RESIZE(part), CLOSE ->
                                          <- RESIZED(yes or no), ENDED(line)

A connection is of one executor. From OPEN on each frame is a head of 32 bytes, a code of 16, and a body. The code is of
the head, and of the body unless that is tensors, under a key of this connection and direction: so no frame can be
forged, replayed, reordered or turned round, while tensors are what arrived, as TCP checks them. A RUN has the rows of
all inputs one after the other, a DONE those of all outputs; both ends know their sizes from the models of OPEN.

Before the proof a peer can make the other end keep 80 bytes, later a control frame or the rows that it may send: one
batch that runs and one that is staged.
"""

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec

from farside import proof
from farside.agent.serving.life import IN_FLIGHT_MAX, PREPARE_S, PREPARE_S_MAX
from farside.agent.serving.model_file import ITEM_BYTES, MAX_BATCH, ModelFile, TensorSpec
from farside.agent.serving.partition.policy import Device
from farside.errors import LocalProtocolError, PeerError, RemoteProtocolError

VERSION = 1
NONCE_BYTES = 32
CONTROL_BYTES_MAX = 1 << 20  # OPEN names models with all their tensors
ROW_BYTES_MAX = 64 << 20  # of all tensors together: what a request may have
LINE_BYTES_MAX = 900
_LABEL = b"farside serving"
_HELLO = struct.Struct(f"<4sH{proof.KEY_ID_BYTES}s{NONCE_BYTES}s")
_CHALLENGE = struct.Struct(f"<{NONCE_BYTES}s32s")
_PROOF_BYTES = 32
_MAGIC = b"FSRV"
_HEAD = struct.Struct("<HHIQIIQ")
HEAD_BYTES = _HEAD.size
assert HEAD_BYTES == 32
_TIMES = struct.Struct("<QQ")


class Kind(enum.IntEnum):
    """What a frame says."""

    OPEN = 1
    OPENED = 2  # ``rows`` is the number of its process there
    FAILED = 3
    RUN = 4
    DONE = 5  # the model ran: the body is times and outputs
    RAISED = 6  # it raised: the body is times and a line
    RESIZE = 7  # ``rows`` is the part in percent; the body has seconds of the slowest batches by model, or nothing
    RESIZED = 8  # ``rows`` is 1, or 0 where a new executor is needed
    CLOSE = 9
    ENDED = 10


FROM_FRONT = frozenset({Kind.OPEN, Kind.RUN, Kind.RESIZE, Kind.CLOSE})
_TENSORS = frozenset({Kind.RUN, Kind.DONE})


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """The executor that a front wants: models by the paths that they have at the worker, on a part of its device.

    ``device_name``: what the device has to be, as its profile says; empty: whatever it is.
    ``runtimes``: versions that frameworks have to have, by name, as the profile says; those without one: whatever.
    ``prepare_pct``: of the device, that it gets at most until it is ready, for which it has ``prepare_s`` seconds.
    """

    driver: str
    device_name: str = ""
    device: Device
    part_pct: int
    models: tuple[ModelFile, ...]
    p99_s: dict[str, float] = {}
    runtimes: dict[str, str] = {}
    prepare_pct: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    prepare_s: Annotated[float, msgspec.Meta(gt=0, le=PREPARE_S_MAX)] = PREPARE_S


class Frame(NamedTuple):
    """One frame; ``model`` counts the models of OPEN from 0. The times of DONE and RAISED are by the worker's clock."""

    kind: Kind
    batch: int = 0
    model: int = 0
    rows: int = 0
    slot: int = 0
    body: bytes = b""
    started_ns: int = 0
    ended_ns: int = 0


class Proven(NamedTuple):
    """Both ends have shown that they have the key: frames may be sent."""


def rows_bytes(model: ModelFile, rows: int, *, outputs: bool) -> int:
    """Bytes of a batch's inputs or outputs."""
    return rows * sum(tensor.row_bytes for tensor in (model.outputs if outputs else model.inputs))


def split_rows(tensors: Sequence[TensorSpec], frame: Frame) -> Iterator[memoryview]:
    """The bytes of each tensor of a RUN or DONE, whose length was checked."""
    rest = memoryview(frame.body)
    for tensor in tensors:
        size = frame.rows * tensor.row_bytes
        yield rest[:size]
        rest = rest[size:]


class Wire:
    """One end of a connection: bytes in, events and bytes out.

    Args:
        side: Side.FRONT or Side.WORKER.
        keys: The deployment's: a front proves the first, a worker the one of them that its front names.
        nonce: 32 random bytes of this connection.
    """

    def __init__(self, side: proof.Side, keys: Sequence[bytes], nonce: bytes) -> None:
        assert side in (proof.Side.FRONT, proof.Side.WORKER)
        assert len(nonce) == NONCE_BYTES
        self._side, self._keys, self._key, self._nonce = side, keys, keys[0], nonce
        self._is_front = side is proof.Side.FRONT
        self._buffer = bytearray()
        self._said = b""
        self._mine: proof.Codes | None = None
        self._theirs: proof.Codes | None = None
        self._models: Sequence[ModelFile] = ()
        self._running: dict[int, tuple[int, int]] = {}
        self._head: tuple[Frame, int, bytes] | None = None
        self._to_send = bytearray()
        self._is_broken = False
        if self._is_front:
            self._hello = _HELLO.pack(_MAGIC, VERSION, proof.key_id(self._key), nonce)
            self._to_send += self._hello

    @property
    def is_proven(self) -> bool:
        """Whether frames may be sent."""
        return self._mine is not None

    @property
    def needed(self) -> int:
        """How many bytes to read next: to read these alone keeps memory within the protocol's bounds."""
        if not self.is_proven:
            wanted = _CHALLENGE.size if self._is_front else _PROOF_BYTES if self._said else _HELLO.size
        else:
            wanted = self._head[1] if self._head is not None else HEAD_BYTES + proof.CODE_BYTES
        return wanted - len(self._buffer)

    def data_to_send(self) -> bytes:
        """What is to be sent now, in order; each byte once."""
        data, self._to_send = bytes(self._to_send), bytearray()
        return data

    # ---- out

    def send(self, frame: Frame) -> None:
        """Adds a frame to what is to be sent.

        Raises:
            LocalProtocolError: It is not this end's to say, or not now, or is out of bounds.
        """
        if self._mine is None:
            raise LocalProtocolError(f"a {frame.kind.name} before the proof")
        if (frame.kind in FROM_FRONT) != self._is_front:
            raise LocalProtocolError(f"a {frame.kind.name} is the other end's to say")
        problem = self._problem(frame, len(frame.body))
        if problem:
            raise LocalProtocolError(problem)
        self._note(frame)
        body = frame.body
        if frame.kind in (Kind.DONE, Kind.RAISED):
            body = _TIMES.pack(frame.started_ns, frame.ended_ns) + body
        try:
            head = _HEAD.pack(VERSION, frame.kind, frame.model, frame.batch, frame.rows, frame.slot, len(body))
        except struct.error as error:
            raise LocalProtocolError(f"a {frame.kind.name} has a number out of bounds: {error}") from error
        self._to_send += head + self._mine.code(head + _coded(frame.kind, body)) + body

    # ---- in

    def receive(self, data: bytes) -> Iterator[Proven | Frame]:
        """What these bytes complete.

        Raises:
            PeerError: The peer does not have the key.
            RemoteProtocolError: It breaks the protocol. The connection is of no use afterwards.
        """
        self._buffer += data
        try:
            while not self._is_broken and (event := self._next()) is not None:
                yield event
        except (PeerError, RemoteProtocolError):
            self._is_broken = True
            self._buffer.clear()
            raise

    def _next(self) -> Proven | Frame | None:
        if not self.is_proven:
            return self._greeting()
        if self._head is None and not self._read_head():
            return None
        assert self._head is not None
        frame, size, code = self._head
        body = self._take(size)
        if body is None:
            return None
        assert self._theirs is not None
        head = _HEAD.pack(VERSION, frame.kind, frame.model, frame.batch, frame.rows, frame.slot, size)
        if not proof.is_same(code, self._theirs.code(head + _coded(frame.kind, body))):
            raise RemoteProtocolError(f"a {frame.kind.name} has a wrong code")
        self._head = None
        if frame.kind in (Kind.DONE, Kind.RAISED):
            started_ns, ended_ns = _TIMES.unpack_from(body)
            frame = frame._replace(started_ns=started_ns, ended_ns=ended_ns)
            body = body[_TIMES.size :]
        frame = frame._replace(body=body)
        self._note(frame)
        return frame

    def _read_head(self) -> bool:
        """Takes a head, and refuses before its body arrives what it may not have."""
        if len(self._buffer) < HEAD_BYTES + proof.CODE_BYTES:
            return False
        data = self._take(HEAD_BYTES + proof.CODE_BYTES)
        assert data is not None
        version, kind, model, batch, rows, slot, size = _HEAD.unpack_from(data)
        if version != VERSION:
            raise RemoteProtocolError(f"a frame has version {version} instead of {VERSION}")
        try:
            frame = Frame(Kind(kind), batch, model, rows, slot)
        except ValueError as error:
            raise RemoteProtocolError(f"a frame of kind {kind} is unknown") from error
        if (frame.kind in FROM_FRONT) == self._is_front:
            raise RemoteProtocolError(f"a {frame.kind.name} came from the wrong end")
        times = _TIMES.size if frame.kind in (Kind.DONE, Kind.RAISED) else 0
        problem = self._problem(frame, size - times)
        if problem:
            raise RemoteProtocolError(problem)
        self._head = frame, size, data[HEAD_BYTES:]
        return True

    def _take(self, size: int) -> bytes | None:
        if len(self._buffer) < size:
            return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    # ---- both directions

    def _problem(self, frame: Frame, size: int) -> str:
        """Why a frame may not be, with a body of this size; empty where it may."""
        name = frame.kind.name
        if frame.kind in (Kind.RUN, Kind.DONE, Kind.RAISED):
            if frame.model >= len(self._models):
                return f"a {name} is of model {frame.model} of {len(self._models)}"
            model = self._models[frame.model]
            if not 1 <= frame.rows <= model.max_batch:
                return f"a {name} has {frame.rows} rows of at most {model.max_batch}"
            if frame.kind is Kind.RUN:
                if frame.slot not in (0, 1) or (frame.model, frame.slot) in self._running.values():
                    return f"a RUN is of slot {frame.slot}, which is not free"
                if frame.batch in self._running or len(self._running) >= IN_FLIGHT_MAX:
                    return f"a RUN of batch {frame.batch} is more than may be in flight"
            elif self._running.get(frame.batch) != (frame.model, frame.slot):
                return f"a {name} is of batch {frame.batch}, which does not run"
            if frame.kind is not Kind.RAISED:
                wanted = rows_bytes(model, frame.rows, outputs=frame.kind is Kind.DONE)
                return "" if size == wanted else f"a {name} has {size} bytes of tensors instead of {wanted}"
        if frame.kind is Kind.OPEN and self._models:
            return "a second OPEN"
        most = CONTROL_BYTES_MAX if frame.kind is Kind.OPEN else LINE_BYTES_MAX
        return "" if 0 <= size <= most else f"a {name} has {size} bytes, not 0 to {most}"

    def _note(self, frame: Frame) -> None:
        """What a frame that went or came changes."""
        if frame.kind is Kind.OPEN:
            self._models = opened(frame.body).models
        elif frame.kind is Kind.RUN:
            self._running[frame.batch] = frame.model, frame.slot
        elif frame.kind in (Kind.DONE, Kind.RAISED):
            del self._running[frame.batch]

    # ---- the proof

    def _greeting(self) -> Proven | None:
        if self._is_front:
            return self._challenged()
        if not self._said:
            self._greeted()
            return None
        given = self._take(_PROOF_BYTES)
        if given is None:
            return None
        if not proof.is_same(given, proof.proof(self._key, proof.Side.FRONT, self._said)):
            raise PeerError("a front does not have the deployment's key", hint="give both the same key file")
        return self._begin()

    def _greeted(self) -> None:
        hello = self._take(_HELLO.size)
        if hello is None:
            return
        magic, version, key_id, nonce = _HELLO.unpack(hello)
        if magic != _MAGIC or version != VERSION:
            raise RemoteProtocolError("what came is no front of this version")
        key = proof.key_named(self._keys, key_id)
        if key is None:
            raise PeerError("a front has another deployment's key", hint="give both the same key file")
        self._key = key
        if nonce == self._nonce:
            raise RemoteProtocolError("a front sent our own number back")
        self._said = proof.transcript(_LABEL, hello, self._nonce)
        self._to_send += _CHALLENGE.pack(self._nonce, proof.proof(self._key, proof.Side.WORKER, self._said))

    def _challenged(self) -> Proven | None:
        challenge = self._take(_CHALLENGE.size)
        if challenge is None:
            return None
        nonce, given = _CHALLENGE.unpack(challenge)
        self._said = proof.transcript(_LABEL, self._hello, nonce)
        if not proof.is_same(given, proof.proof(self._key, proof.Side.WORKER, self._said)):
            raise PeerError("a worker does not have the deployment's key", hint="give both the same key file")
        self._to_send += proof.proof(self._key, proof.Side.FRONT, self._said)
        return self._begin()

    def _begin(self) -> Proven:
        self._mine = proof.Codes(self._key, self._side, self._said)
        self._theirs = proof.Codes(self._key, self._side.other, self._said)
        return Proven()


def opened(body: bytes) -> Open:
    """What an OPEN asks for.

    Raises:
        RemoteProtocolError: It can't be read.
    """
    try:
        found = msgspec.msgpack.decode(body, type=Open)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"an OPEN can't be read: {error}") from error
    if not found.models:
        raise RemoteProtocolError("an OPEN has no model")
    for model in found.models:
        tensors = (*model.inputs, *model.outputs)
        if any(one.datatype not in ITEM_BYTES or any(length < 0 for length in one.shape) for one in tensors):
            raise RemoteProtocolError(f"an OPEN has a model {model.name} whose tensors make no sense")
        if not 1 <= model.max_batch <= MAX_BATCH or sum(one.row_bytes for one in tensors) > ROW_BYTES_MAX:
            raise RemoteProtocolError(f"an OPEN has a model {model.name} whose batches are out of bounds")
    return found


def resized(body: bytes) -> dict[str, float] | None:
    """Seconds of the slowest batches by model that a RESIZE has; None: it has none.

    Raises:
        RemoteProtocolError: They can't be read.
    """
    if not body:
        return None
    try:
        return msgspec.msgpack.decode(body, type=dict[str, Annotated[float, msgspec.Meta(ge=0)]])
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"a RESIZE can't be read: {error}") from error


def _coded(kind: Kind, body: bytes) -> bytes:
    """The part of a body that the code is of."""
    return body[: _TIMES.size] if kind is Kind.DONE else b"" if kind in _TENSORS else body

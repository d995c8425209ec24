"""Control messages between borrower and donor. PURE.

Each class is one frame type of ``protocol.py``. They are msgspec Structs, which are frozen keyword-only records like
the project's dataclasses, and which msgspec puts on the wire as an array of the fields in this order.
A later version may append fields with defaults; it never reorders or removes one.

The first eight are the paper's [infiniswap §2.6.1]; the others are ours. What a message may answer, and who may send
it, is the table in ``protocol.py``.
"""

from enum import IntEnum, IntFlag
from typing import Annotated, Literal

from msgspec import Meta, Struct

from farside.proof import KEY_ID_BYTES

LEASES_MAX = 253
"""Leases in one message: as many file descriptors as Linux passes with one sendmsg (SCM_MAX_FD, net/scm.h)."""
NONCE_BYTES = 32
PROOF_BYTES = 32
NODE_CHARS_MAX = 64

U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]  # msgpack has no larger integer
Seconds = Annotated[float, Meta(ge=0, le=86_400)]
Node = Annotated[str, Meta(min_length=1, max_length=NODE_CHARS_MAX, pattern=r"^[A-Za-z0-9_.:-]+$")]
Text = Annotated[str, Meta(max_length=256)]
KeyId = Annotated[bytes, Meta(min_length=KEY_ID_BYTES, max_length=KEY_ID_BYTES)]
Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
LeaseNumbers = Annotated[tuple[U32, ...], Meta(min_length=1, max_length=LEASES_MAX)]

Role = Literal["control", "data"]


class Feature(IntFlag):
    """Features beyond the messages of version 1; a connection uses those that both sides named."""

    NONE = 0
    SHM = 1  # passes slabs as memfds; only ever used over a unix socket
    MIGRATE = 2  # moves a recalled slab to another donor (a borrower without it gets EVICT at once)
    RDMA = 4  # pages by queue pairs beside data connections (verbs.h); named on a data connection, it asks for one
    CODES = 8  # each head on a data connection by TCP carries a code (wire.h)


class ErrorCode(IntEnum):
    """Why a request was refused. The text beside it is for people; this is for programs."""

    VERSION = 1  # no common protocol version
    AUTH = 2  # no common key, a wrong proof, a wrong message code
    MALFORMED = 3  # length, type, order or content is not as the protocol says
    NO_MEMORY = 4  # no slab to lease now
    NO_LEASE = 5  # no such lease of this session
    QUOTA = 6  # this borrower has as many slabs as it may
    SLAB_SIZE = 7  # the borrower wants slabs of another size
    NOT_NOW = 8  # the donor is going away or too busy
    SESSION = 9  # no such session, or it belongs to another node


class Message(Struct, frozen=True, array_like=True, kw_only=True):
    """A control message: immutable, compared by value, encoded as an array of its fields."""


# ---- handshake


class Hello(Message, frozen=True, kw_only=True):
    """Borrower's first frame: its node and the keys it has, not yet proved."""

    version_min: Annotated[int, Meta(ge=0, le=65535)]
    version_max: Annotated[int, Meta(ge=0, le=65535)]
    features: U32
    node: Node
    role: Role
    key_ids: Annotated[tuple[KeyId, ...], Meta(min_length=1, max_length=2)]
    nonce: Nonce
    session: U64 = 0  # 0 asks for a new one; else the one to return to, or the one a data connection serves
    worker: U32 = 0  # data connections: which engine thread will use it
    epoch: U32 = 0  # data connections: a higher one than the session's fences all older ones


class HelloReply(Message, frozen=True, kw_only=True):
    """Donor's answer: the version, features and key to use, and its proof that it has that key."""

    version: Annotated[int, Meta(ge=0, le=65535)]
    features: U32
    node: Node
    key_id: KeyId
    nonce: Nonce
    proof: Proof


class Auth(Message, frozen=True, kw_only=True):
    """Borrower's proof."""

    proof: Proof


class Welcome(Message, frozen=True, kw_only=True):
    """Both are proved. On a data connection the bytes after this frame are not ours any more (wire.h)."""

    session: U64
    slab_bytes: U64
    lease_expiry_s: Seconds


# ---- placement


class QueryMem(Message, frozen=True, kw_only=True):
    """How much could you lend? [infiniswap §2.6.1, 1]"""

    device: Text = ""


class FreeMem(Message, frozen=True, kw_only=True):
    """What a donor has: slabs ready to lease, and its memory. [infiniswap §2.6.1, 2]"""

    free_slabs: U32
    used_bytes: U64  # by everybody, slabs on loan included: what placement compares
    total_bytes: U64
    headroom_bytes: U64
    slab_bytes: U64


class Map(Message, frozen=True, kw_only=True):
    """Lease me `count` slabs for this device. [infiniswap §2.6.1, 3]"""

    device: Text
    count: Annotated[int, Meta(ge=1, le=LEASES_MAX)] = 1


class Lease(Message, frozen=True, kw_only=True):
    """One slab on loan. Over a unix socket its memfd comes beside the frame, in the order of the leases."""

    lease: U32  # the donor's number for it, used on data connections
    token: U64  # proves the lease there
    rkey: U32  # 0: a key belongs to a queue pair, so each asks for its own beside it (verbs.h)
    addr: U64  # 0 too
    length: U64  # bytes
    epoch: U32  # grows with each lease this donor grants, so that (lease, epoch) never comes twice


class MrInfo(Message, frozen=True, kw_only=True):
    """The leases granted, or still held; may be fewer than asked for. [infiniswap §2.6.1, 4]"""

    leases: Annotated[tuple[Lease, ...], Meta(max_length=LEASES_MAX)]


class Resume(Message, frozen=True, kw_only=True):
    """After a restart or a lost connection: which of these (lease, token) do I still hold?"""

    device: Text
    leases: Annotated[tuple[tuple[U32, U64], ...], Meta(max_length=LEASES_MAX)]


# ---- eviction


class CheckActivity(Message, frozen=True, kw_only=True):
    """How busy are these slabs of yours? [infiniswap §2.6.1, 5]"""

    leases: LeaseNumbers


class Activity(Message, frozen=True, kw_only=True):
    """(lease, page I/O per second per GiB) for those of the slabs that the borrower knows. [infiniswap §2.6.1, 6]"""

    activity: Annotated[
        tuple[tuple[U32, Annotated[float, Meta(ge=0, le=1e12)]], ...],
        Meta(max_length=LEASES_MAX),
    ]


class Migrate(Message, frozen=True, kw_only=True):
    """Move these slabs' pages to another donor, and say DONE for each; what is late will be evicted."""

    leases: LeaseNumbers
    deadline_s: Seconds


class Evict(Message, frozen=True, kw_only=True):
    """Let go of these slabs now, and say DONE for each; what is late is taken away. [infiniswap §2.6.1, 7]"""

    leases: LeaseNumbers
    deadline_s: Seconds


class Done(Message, frozen=True, kw_only=True):
    """The borrower no longer uses this recalled slab. [infiniswap §2.6.1, 8]"""

    lease: U32
    moved_pages: U32 = 0  # now on other donors
    dropped_pages: U32 = 0  # now only on the borrower's disk or replica


# ---- and the rest


class Release(Message, frozen=True, kw_only=True):
    """The borrower no longer needs these slabs."""

    leases: LeaseNumbers


class KeepAlive(Message, frozen=True, kw_only=True):
    """Sign of life, which keeps leases valid. Answered with FREE_MEM."""


class Error(Message, frozen=True, kw_only=True):
    """A refusal. Answers a request, or, with sequence 0, ends the connection."""

    code: U32  # an ErrorCode; a number unknown to this version is possible
    message: Text


class Ok(Message, frozen=True, kw_only=True):
    """Done as asked."""


TYPES: dict[int, type[Message]] = {
    1: Hello,
    2: HelloReply,
    3: Auth,
    4: Welcome,
    5: Error,
    6: Ok,
    16: QueryMem,
    17: FreeMem,
    18: Map,
    19: MrInfo,
    20: Resume,
    21: CheckActivity,
    22: Activity,
    23: Migrate,
    24: Evict,
    25: Done,
    26: Release,
    27: KeepAlive,
}
"""Frame types on the wire. A number is never used again for something else."""

TYPE_NUMBERS: dict[type[Message], int] = {kind: number for number, kind in TYPES.items()}

"""Proofs and message codes of two ends that know a key: the cluster's, a job's, or a node's token. PURE.

Everything is HMAC-SHA256 under that key with a label of its own, so that nothing computed for one purpose or by
one side can be used for another.

Connections that have not proved the key yet are counted (`Unproved`), by where they come from.
"""

import enum
import hashlib
import hmac
import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable

KEY_ID_BYTES = 8
CODE_BYTES = 16
"""A message code is cut to this: a forger has one try in 2^128 before the connection ends."""
HEAD_KEY_BYTES = 16
UNPROVED_AN_ADDRESS = 1024
"""All borrowers of a network may come from one address, by way of a translator, and at once after a restart."""
UNPROVED_ALL = 4096
"""Each costs a descriptor and some KiB."""
_SUBNET_BITS = 64  # of IPv6: whoever has one address has at least so many more (RFC 6177)

Close = Callable[[], None]


class Side(enum.Enum):
    """Which end of a connection."""

    BORROWER = "borrower"
    DONOR = "donor"
    AGENT = "agent"
    MANAGER = "manager"
    MEMBER = "member"
    AGGREGATOR = "aggregator"
    EXECUTOR = "executor"
    SYNCHRONIZER = "synchronizer"
    FRONT = "front"
    WORKER = "worker"

    @property
    def other(self) -> "Side":
        """The peer's side."""
        return _PEERS[self]


_PEERS = {
    Side.BORROWER: Side.DONOR,
    Side.DONOR: Side.BORROWER,
    Side.AGENT: Side.MANAGER,
    Side.MANAGER: Side.AGENT,
    Side.MEMBER: Side.AGGREGATOR,
    Side.AGGREGATOR: Side.MEMBER,
    Side.EXECUTOR: Side.SYNCHRONIZER,
    Side.SYNCHRONIZER: Side.EXECUTOR,
    Side.FRONT: Side.WORKER,
    Side.WORKER: Side.FRONT,
}


def key_id(key: bytes) -> bytes:
    """Returns the name under which a key is offered to a peer: 8 bytes that do not reveal the key."""
    return hashlib.sha256(key).digest()[:KEY_ID_BYTES]


def key_named(keys: Iterable[bytes], name: bytes) -> bytes | None:
    """The key that a peer offers by its name; None: it is not among these."""
    return next((key for key in keys if is_same(key_id(key), name)), None)


def transcript(*parts: bytes) -> bytes:
    """Returns a hash of the parts and of where one ends and the next begins."""
    return hashlib.sha256(b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def proof(key: bytes, prover: Side, said: bytes) -> bytes:
    """Returns what shows that `prover` has the key and has seen the transcript `said`; 32 bytes."""
    return hmac.digest(key, b"farside proof " + prover.value.encode() + said, "sha256")


def is_same(left: bytes, right: bytes) -> bool:
    """True when equal; takes the same time wherever they differ."""
    return hmac.compare_digest(left, right)


def head_keys(key: bytes, said: bytes, first: Side = Side.BORROWER) -> bytes:
    """Returns the keys of the heads on a data connection: of those of ``first``, then of its peer's, 16 bytes each."""
    labels = (b"farside heads " + side.value.encode() for side in (first, first.other))
    return b"".join(hmac.digest(key, label + said, "sha256")[:HEAD_KEY_BYTES] for label in labels)


class Codes:
    """The message codes of one direction of one connection; each call counts one frame."""

    def __init__(self, key: bytes, sender: Side, said: bytes) -> None:
        self._key = hmac.digest(key, b"farside codes " + sender.value.encode() + said, "sha256")
        self._count = 0

    def code(self, content: bytes) -> bytes:
        """Returns the code of the next frame, CODE_BYTES long."""
        count = self._count.to_bytes(8, "little")
        self._count += 1
        return hmac.digest(self._key, count + content, "sha256")[:CODE_BYTES]


class Unproved:
    """Connections that have not proved the key yet: how many there may be, the oldest first.

    Each belongs to an address. Where an address has ``an_address`` of them, or all together have ``all_addresses``, one
    more takes the place of the oldest: of that address, or of the one that has most. So who opens many loses its own,
    and who has the key has as long to prove it as it takes to open so many; it needs milliseconds. [M1]
    """

    def __init__(self, an_address: int = UNPROVED_AN_ADDRESS, all_addresses: int = UNPROVED_ALL) -> None:
        self._an_address, self._all_addresses = an_address, all_addresses
        # Not a dict: to find its first member takes the longer the more were taken out before it.
        self._open: dict[str, OrderedDict[object, Close]] = {}
        # Addresses by how many each has, and the most that one has: strangers may have more addresses than can be
        # looked at for each connection.
        self._by_count: dict[int, dict[str, None]] = {}
        self._most = 0
        self.count = 0

    def come(self, address: str, one: object, close: Close) -> bool:
        """One more; False: another one was closed for it, which has left by then."""
        is_crowded = len(self._open.get(address, ())) >= self._an_address
        is_full = is_crowded or self.count >= self._all_addresses
        if is_full:
            self._close_oldest(address if is_crowded else next(iter(self._by_count[self._most])))
        crowd = self._open.setdefault(address, OrderedDict())
        crowd[one] = close
        self._count(address, len(crowd) - 1, len(crowd))
        return not is_full

    def make_room(self) -> bool:
        """Closes the oldest of the address that has most; False: there is none."""
        if not self.count:
            return False
        self._close_oldest(next(iter(self._by_count[self._most])))
        return True

    def leave(self, address: str, one: object) -> None:
        """Stops counting a connection that has proved the key or is closed; harmless for one that has left."""
        crowd = self._open.get(address)
        if crowd is None or crowd.pop(one, None) is None:
            return
        if not crowd:
            del self._open[address]
        self._count(address, len(crowd) + 1, len(crowd))

    def _count(self, address: str, before: int, now: int) -> None:
        self.count += now - before
        if before:
            del self._by_count[before][address]
            if not self._by_count[before]:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, {})[address] = None
        # One more or one less: no other address can have as many as there were, if nobody has.
        if now > self._most or self._most not in self._by_count:
            self._most = now

    def _close_oldest(self, address: str) -> None:
        one, close = next(iter(self._open[address].items()))
        # Out of the books before it is closed, which may call back here.
        self.leave(address, one)
        close()


def subnet(address: str) -> str:
    """What is one stranger's at least: the address, or the first 64 bits of one of IPv6. PURE."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address
    if known.version == 4:
        return address
    assert isinstance(known, ipaddress.IPv6Address)
    if known.ipv4_mapped is not None:
        return str(known.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(known), _SUBNET_BITS), strict=False).network_address)

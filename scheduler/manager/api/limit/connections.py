"""Limits on HTTP connections: how many a user or an address may have, and how long a request may take.

How it works
  Each connection belongs to a user, as a unix socket tells, or to an address. One that is more than its owner may have
  takes the place of the one that has waited longest for its own client: for a header, a body, or another request.
  So who opens many and says nothing on them loses those, and who only comes is let in. Connections that are being
  answered stay; where all are, the new one is closed. An agent's ceases to count when its HELLO has come: until then
  whoever has seen a key's name may have opened it.

  One that is to speak TLS waits for its client from when it is accepted (handshake.py), as one of its address. Of those
  that have not yet got through the handshake there are at most `HANDSHAKES_MAX`, whatever addresses they come from: one
  more takes the place of the one that has taken longest.

  Root, and the user that the manager runs as, are let in however many they are.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from farside.log import Rarely, get_log

# A header comes in one piece; a body of megabytes over a bad line in some.
HEADER_LIMIT_S, BODY_LIMIT_S = 10.0, 30.0
# httptools has no limits of its own. A credential of munge is the longest that a header has.
HEADER_BYTES_MAX = 64 << 10
# Of a body with what frames it: twice what the largest route takes. Beyond that nobody reads on to hear our refusal.
BODY_BYTES_MAX = 16 << 20
CONNECTIONS_A_USER = 256
# All agents of a cluster may come from one address, and at once.
CONNECTIONS_AN_ADDRESS = 4096
# Of all addresses, where the handshake is not over: each takes 0.3 MiB of ours, and a cluster comes back at once.
HANDSHAKES_MAX = 2048
# That files ran out is said so often: asyncio says it for each connection that waits, each second.
SAY_PERIOD_S = 60.0

_OUT_OF_FILES = "socket.accept() out of system resource"
_log = get_log("manager.connections")

Owner = str
Close = Callable[[], None]


class Connections:
    """Open connections by owner; those that wait for their client, the longest first.

    Args:
        unlimited: Owners that may have any number.
        address_max: Connections of an address, handshakes included; None: as many as the manager takes.
    """

    def __init__(self, unlimited: frozenset[Owner] = frozenset(), address_max: int | None = None) -> None:
        self._unlimited, self._address_max = unlimited, address_max
        self._counts: dict[Owner, int] = {}
        self._waiting: dict[Owner, dict[object, Close]] = {}
        # Dicts keep the order of insertion, so the first key is the oldest and no clock is needed.
        self._shaking: dict[int, tuple[Owner, Close]] = {}  # by descriptor, the longest first

    @property
    def handshakes(self) -> int:
        """Number of TLS handshakes that are not over."""
        return len(self._shaking)

    def count(self, owner: Owner) -> int:
        """Number of connections of an owner."""
        return self._counts.get(owner, 0)

    def shake(self, owner: Owner, fd: int, close: Close) -> bool:
        """Whether a connection may begin its handshake; others may have been closed for it.

        It is one of its owner's until `shaken`.
        """
        if len(self._shaking) >= HANDSHAKES_MAX:
            longest = next(iter(self._shaking))
            _, close_longest = self._shaking[longest]
            self.shaken(longest)
            close_longest()
        if not self.admit(owner, self._address_max or CONNECTIONS_AN_ADDRESS):
            return False

        def evict() -> None:
            del self._shaking[fd]
            close()

        self._shaking[fd] = owner, close
        self.waits(owner, fd, evict)
        return True

    def shaken(self, fd: int) -> None:
        """Its handshake is over, or it is closed; who got through comes again by `admit`."""
        owner, _ = self._shaking.pop(fd, ("", None))
        if owner:
            self.leave(owner, fd)

    def admit(self, owner: Owner, limit: int) -> bool:
        """Whether one more may come; another may have been closed for it."""
        if owner in self._unlimited:
            # Counted all the same, so that `leave` needs no exception for them.
            limit = 1 << 30
        if self._counts.get(owner, 0) >= limit:
            waiting = self._waiting.get(owner)
            if not waiting:
                return False
            one = next(iter(waiting))
            close = waiting[one]
            # Counted out before it is closed: closing may call back here, and must find nothing left to count.
            self.leave(owner, one)
            close()
        self._counts[owner] = self._counts.get(owner, 0) + 1
        return True

    def waits(self, owner: Owner, one: object, close: Close) -> None:
        """Counts a connection as waiting for its client, unless it is counted already."""
        self._waiting.setdefault(owner, {}).setdefault(one, close)

    def is_answered(self, owner: Owner, one: object) -> None:
        """Its client has said all, and waits for us."""
        waiting = self._waiting.get(owner, {})
        waiting.pop(one, None)
        if not waiting:
            self._waiting.pop(owner, None)

    def leave(self, owner: Owner, one: object) -> None:
        """Stops counting a connection."""
        self.is_answered(owner, one)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


def say_rarely(loop: asyncio.AbstractEventLoop) -> None:
    """Has a loop say in one line, once in `SAY_PERIOD_S`, that it has no files left for connections."""
    rarely = Rarely(SAY_PERIOD_S, now_s=loop.time)

    def handle(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        if context.get("message") != _OUT_OF_FILES:
            # All other errors of the loop are reported as usual.
            loop.default_exception_handler(dict(context))
        elif rarely.may(_OUT_OF_FILES) is not None:
            _log.error("no more connections can be taken", reason=context.get("exception"), hint="raise LimitNOFILE")

    loop.set_exception_handler(handle)

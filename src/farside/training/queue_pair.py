"""A member's side of RDMA: when it is offered to an Aggregator, and how its end of a queue pair is made."""

import errno
import os
import re
import secrets
import socket
import time
from collections.abc import Callable

from farside.agent.aggregator.door import NONCE_BYTES, Answer, Caller, Feature, Invite, Pair, Welcome
from farside.agent.aggregator.plan import JobPlan
from farside.errors import ConfigError, FarsideError, PeerError
from farside.kmod_shim.engine.aggregation import Member, RegionPair
from farside.kmod_shim.engine.binding import rdma_devices
from farside.log import get_log

_log = get_log("training.rdma")

RDMA = "FARSIDE_AGGREGATION_RDMA"
"""Environment variable: "auto", the default, or "off"."""
DIAL_LIMIT_S = 5.0
"""For a connection and what is said on it first; a server that hangs is replaced sooner."""
SHORT_LIFE_S = 1.0
"""A queue pair that ends sooner counts as one that does not work."""
RETRY_S = 60.0
"""After that, or where none could be made: time until RDMA is tried again, when a lane is made next."""
_REGION_TOKEN_BITS = 62


class RdmaChoice:
    """Which of a member's lanes are to go by RDMA."""

    def __init__(self, rdma: str | None) -> None:
        """``rdma``: "auto" or "off"; None: as the environment says.

        Raises:
            ConfigError: it is neither.
        """
        chosen = os.environ.get(RDMA, "auto") if rdma is None else rdma
        if chosen not in ("auto", "off"):
            raise ConfigError(f"{RDMA}: '{chosen}' is no choice; let it be auto or off")
        self._is_wanted = chosen == "auto"
        self._has_device: bool | None = None
        self._since_s: dict[int, float] = {}
        self._not_before_s: dict[int, float] = {}

    def features(self, number: int, *, is_shm: bool) -> Feature:
        """What an Aggregator is offered on a connection."""
        if is_shm:
            return Feature.NONE
        if not self._is_wanted or time.monotonic() < self._not_before_s.get(number, 0.0):
            return Feature.CODES
        if self._has_device is None:
            self._has_device = rdma_devices() > 0 and _may_fork(os.uname().release)
        return Feature.CODES | Feature.RDMA if self._has_device else Feature.CODES

    def lane_begins(self, number: int) -> None:
        """A lane goes by RDMA."""
        self._since_s[number] = time.monotonic()

    def fell_back(self, number: int, why: str) -> None:
        """A lane that might have gone by RDMA goes by TCP."""
        self._not_before_s[number] = time.monotonic() + RETRY_S
        _log.warning("no queue pair; gradients go by TCP", aggregator=number, reason=why)

    def lane_ended(self, number: int) -> None:
        """A connection has ended: if its queue pair was young, the next one waits."""
        since_s = self._since_s.pop(number, None)
        if since_s is not None and time.monotonic() - since_s < SHORT_LIFE_S:
            self.fell_back(number, "the last one ended at once")


def _may_fork(release: str) -> bool:
    """Whether a process with pages that a device writes may fork: on Linux before 5.12 it may lose them to its child.

    Training processes do, for their data loaders.
    """
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 12)


def answer_of(sock: socket.socket, caller: Caller, *, region: int | None = None) -> Answer:
    """Has a conversation at an Aggregator's door to its end, or to an Invite; ``region``: goes along with the request.

    Raises:
        OSError: the connection ends, or there is no answer in `DIAL_LIMIT_S`.
        FarsideError: that is no Aggregator with the job's key.
    """
    deadline_s = time.monotonic() + DIAL_LIMIT_S
    answer = None
    while answer is None:
        data = caller.to_send()
        if data:
            sock.settimeout(max(0.001, deadline_s - time.monotonic()))
            given = [region] if region is not None and caller.is_proved else []
            sent = socket.send_fds(sock, [data], given) if given else 0
            sock.sendall(data[sent:])
        sock.settimeout(max(0.001, deadline_s - time.monotonic()))
        part = sock.recv(caller.needed)
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the connection ended")
        answer = caller.receive(part)
    sock.settimeout(None)
    return answer


def make_pair(member: Member, plan: JobPlan, invite: Invite, connect: Callable[[], socket.socket]) -> RegionPair | None:
    """This end of a queue pair to which an Aggregator has invited; None: it could not be made, which is logged."""
    token = secrets.randbits(_REGION_TOKEN_BITS)
    nonce = secrets.token_bytes(NONCE_BYTES)
    caller = Caller(plan.key, job=plan.job, start=plan.start, nonce=nonce, request=Pair(invite.number, token))
    try:
        with connect() as sock:
            answer = answer_of(sock, caller)
            if not isinstance(answer, Welcome):
                raise PeerError(getattr(answer, "line", "an answer that is none"))
            pair = member.export(sock.fileno(), token)
            sock.detach()
            return pair
    except (OSError, FarsideError) as error:
        _log.warning("this end of a queue pair could not be made", reason=error)
        return None

"""A control session with a donor: greets it, resumes earlier leases, sends requests and takes notices.

How it works. ``open`` proves the key on both sides and checks that this is the donor we mean. ``resume`` names every
lease that we think we have; what the donor does not know any more is lost. After that any number of tasks may ask.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest

from farside.blockdev.donor.control_connection import Answer, Line
from farside.blockdev.donor.dial import open_control
from farside.blockdev.donor.parts import DonorParts, node_name
from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping.table import DonorRecord, Slab
from farside.blockdev.peers_file import DonorAddress
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.errors import EngineError, PeerError

KEEPALIVE_MAX_S = 2.0  # seldom enough to cost nothing, often enough for a status that people look at


class Session:
    """One control session with one donor.

    Attributes:
        features: What both ends agreed on.
    """

    def __init__(
        self,
        parts: DonorParts,
        record: DonorRecord,
        address: DonorAddress,
        *,
        is_shared: bool,
        on_notice: Callable[[Line, int, m.Message], None],
        mapped_tokens: set[int],
    ) -> None:
        """``is_shared``: slabs are memory of this host. ``mapped_tokens``: leases whose memory the engine has."""
        self.features = m.Feature.NONE
        self._parts = parts
        self._record = record
        self._address = address
        self._is_shared = is_shared
        self._on_notice = on_notice
        self._mapped_tokens = mapped_tokens
        self._line: Line | None = None
        # The donor's lease_expiry_s, from WELCOME: after a silence of that length it takes its slabs back.
        self._expiry_s = 0.0
        self._slow_asks = 0  # MAP and RESUME that have no answer yet

    async def open(self, features: m.Feature) -> None:
        """Greets the donor, offering ``features``, and keeps the session's number for a successor.

        Raises:
            PeerError: it is another donor, has other slabs, or has forgotten our session (code SESSION).
        """
        parts, record = self._parts, self._record
        async with asyncio.timeout(parts.config.deadline_s):
            channel, welcome = await open_control(
                self._address.control, keys=parts.keys.current(), node=node_name(parts.config), session=record.session,
                features=m.Feature.MIGRATE | features,
            )  # fmt: skip
        line = Line(channel, has_fds=self._is_shared, on_notice=self._on_notice, is_known=self._is_known)
        try:
            self._check(channel, welcome)
        except BaseException:
            line.close()
            raise
        self.features = channel.connection.features
        # Saved before anything is leased: a successor finds its leases only under this number.
        record.session, self._expiry_s = welcome.session, welcome.lease_expiry_s
        record.control = self._address.control
        parts.table.save()
        self._line = line

    def close(self) -> None:
        """Ends the session and everything that waits on it."""
        if self._line is not None:
            self._line.close()

    async def read(self) -> None:
        """Handle messages until the connection ends; its end is raised as PeerError or RemoteProtocolError."""
        await self._opened().read()

    async def ask(self, message: m.Message) -> m.Message:
        """The donor's answer to a request. Raises PeerError: it refused, is gone, or is late."""
        # A donor may answer in order. A request behind a MAP or RESUME is then late for that reason alone, and must not
        # end a good session.
        limit_s = self._parts.long_s if self._slow_asks else self._parts.config.deadline_s
        answer, _ = await self._opened().ask(message, limit_s)
        return answer

    async def query(self) -> m.FreeMem:
        """Figures of the donor, within the deadline even while others wait. Raises PeerError. [infiniswap §2.4.2]"""
        request = m.QueryMem(device=self._parts.config.name)
        answer, _ = await self._opened().ask(request, self._parts.config.deadline_s)
        assert isinstance(answer, m.FreeMem)
        return answer

    async def lease(self, *, is_wanted: Callable[[], bool]) -> Grant:
        """One slab, if it ``is_wanted`` still when the donor answers. Raises PeerError."""
        answer, fds = await self._ask_slow(m.Map(device=self._parts.config.name, count=1))
        assert isinstance(answer, m.MrInfo)
        # The donor may have left the peers file while it answered: a slab that is taken now would have to move at once.
        if len(answer.leases) != 1 or not is_wanted():
            self._opened().put_back(answer, fds)
            raise PeerError(
                f"granted {len(answer.leases)} slabs instead of 1, or is retired", code=m.ErrorCode.NO_MEMORY
            )
        lease = answer.leases[0]
        if fds:
            # The engine maps this descriptor; a RESUME in a later session brings another one of the same memory.
            self._mapped_tokens.add(lease.token)
        return Grant(lease=lease.lease, token=lease.token, epoch=lease.epoch, memfd=fds[0] if fds else -1)

    async def keep_alive(self, on_figures: Callable[[m.FreeMem], None]) -> None:
        """Asks for the donor's figures again and again, so that neither end takes the other for dead."""
        clock = self._parts.clock
        # A quarter of the expiry: one KEEPALIVE that is late costs no lease.
        period_s = min(self._expiry_s / 4, KEEPALIVE_MAX_S)
        while True:
            answer = await self.ask(m.KeepAlive())
            assert isinstance(answer, m.FreeMem)
            on_figures(answer)
            await clock.sleep_until_s(clock.now_s() + period_s)

    async def resume(self) -> None:
        """Ask which earlier leases are still valid; the other slabs are lost."""
        # Failed slabs are not named: their pages are given up, and the donor takes the memory back by expiry.
        slabs = [slab for slab in self._parts.table.slabs_of(self._record.donor) if not slab.failed]
        held: dict[tuple[int, int], int] = {}  # (lease, token) -> descriptor, or -1
        try:
            # In parts, because one message passes LEASES_MAX descriptors at most.
            for start in range(0, len(slabs), m.LEASES_MAX):
                await self._confirm(slabs[start : start + m.LEASES_MAX], held)
            lost = []
            for slab in slabs:
                if self._parts.table.slabs.get(slab.slab) is not slab:
                    continue  # emptied and given back while we asked; its number may belong to another slab by now
                memfd = held.pop((slab.lease, slab.token), None)
                if memfd is None:
                    lost.append(slab)
                # Empty already, and waits only for the donor's confirmation: its memory is not needed.
                elif slab.returned:
                    _close(memfd)
                else:
                    self._remap(slab, memfd)
        finally:
            # What the donor has named and we do not use, or what an error has left: a descriptor keeps its memory
            # alive.
            for memfd in held.values():
                _close(memfd)
        if lost:
            self._parts.hooks.slabs_lost(lost)

    def _opened(self) -> Line:
        assert self._line is not None
        return self._line

    async def _ask_slow(self, message: m.Message) -> Answer:
        self._slow_asks += 1
        try:
            return await self._opened().ask(message, self._parts.long_s)
        finally:
            self._slow_asks -= 1

    def _check(self, channel: Channel, welcome: m.Welcome) -> None:
        reply = channel.connection.reply
        assert reply is not None
        if reply.node != self._address.node:
            raise PeerError(f"the donor at this address is {reply.node}; correct the peers file")
        if welcome.slab_bytes != self._parts.config.slab_bytes:
            ours = self._parts.config.slab_bytes
            raise PeerError(f"the donor's slabs have {welcome.slab_bytes} bytes, ours {ours}; set slab_bytes alike")
        if self._is_shared and m.Feature.SHM not in channel.connection.features:
            raise PeerError("the donor does not pass memory by descriptor")
        if self._record.session not in (0, welcome.session):
            raise PeerError("the donor gave another session than ours", code=m.ErrorCode.SESSION)

    async def _confirm(self, slabs: Sequence[Slab], held: dict[tuple[int, int], int]) -> None:
        leases = tuple((slab.lease, slab.token) for slab in slabs)
        answer, fds = await self._ask_slow(m.Resume(device=self._parts.config.name, leases=leases))
        assert isinstance(answer, m.MrInfo)
        for lease, memfd in zip_longest(answer.leases, fds, fillvalue=-1):
            assert isinstance(lease, m.Lease)  # there is no descriptor without a lease
            # A donor that names a lease twice must not cost us its first descriptor.
            _close(held.pop((lease.lease, lease.token), -1))
            held[lease.lease, lease.token] = memfd

    def _remap(self, slab: Slab, memfd: int) -> None:
        # Over the network there is no memory to map. In this process a slab is mapped once: a session that ends and
        # comes back changes nothing of it.
        if memfd < 0 or slab.token in self._mapped_tokens:
            _close(memfd)
            return
        try:
            self._parts.engine.slab_remap(slab.slab, memfd)
        except EngineError:
            _close(memfd)
            raise
        self._mapped_tokens.add(slab.token)

    def _is_known(self, lease: int) -> bool:
        return self._parts.table.slab_by_lease(self._record.donor, lease) is not None


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)

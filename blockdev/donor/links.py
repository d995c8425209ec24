"""Data connections to one donor: opened together under one epoch, and replaced together when one breaks.

How it works. A set of connections, one for each worker, is made under an epoch that is higher than the last, so that
the donor fences what older ones may still carry. ``keep`` waits until one breaks, or until a carrier that is preferred
may be there again, and makes the next set.
"""

import asyncio
import os
from collections.abc import Callable, Sequence

from farside.blockdev.carrier.carrier import Carrier, DataConnection, Target
from farside.blockdev.carrier.choice import Choice, Offer, asked, choose
from farside.blockdev.donor.dial import open_data
from farside.blockdev.donor.parts import EXPECTED, DonorParts, node_name
from farside.blockdev.mapping.table import DonorRecord
from farside.blockdev.peers_file import DonorAddress
from farside.daemon.control import messages as m
from farside.errors import PeerError
from farside.kmod_shim.engine.binding import MOVER
from farside.log import get_log

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0
SETTLE_S = 1.0  # a session that held so long, its pages in reach, was a good one

log = get_log("blockdev.donor")


class Links:
    """The data connections to one donor.

    Attributes:
        address: Where the donor is.
        transport: The carrier that pages travel by, or last did; empty before they could.
        has_codes: Heads on its connections carry codes (wire.h): a donor of this version, by TCP.
        breaks_on: The connections broke again and again for all of ``grace_s``.
    """

    def __init__(
        self, parts: DonorParts, record: DonorRecord, address: DonorAddress, *, on_up: Callable[[], None]
    ) -> None:
        """``on_up`` is called when the engine has a new set of connections."""
        self.address = address
        self.transport = ""
        self.has_codes = False
        self.breaks_on = False
        self._parts = parts
        self._carriers = parts.carriers
        self._record = record
        self._on_up = on_up
        self._fell_back = False  # to a carrier that is not the preferred one
        self._features = m.Feature.NONE  # what the donor agreed to
        # An event and not a call: many workers notice the same end, and one replacement answers them all.
        self._broken = asyncio.Event()
        self._broke_by = 0  # errno of the connection that broke last; 0 where it is not known

    def wanted_features(self) -> m.Feature:
        """Features that HELLO asks of the donor, for the carriers that may be used."""
        wanted = m.Feature.NONE
        for offer in asked(self.address.control, self._parts.config.transport, self._offers()):
            wanted |= self._carriers[offer.name].feature
        return wanted

    def broke(self, error: int = 0) -> None:
        """A connection broke, by this errno where it is known: all of them are to be replaced."""
        self._broke_by = error or self._broke_by
        self._broken.set()

    async def make(self, features: m.Feature) -> None:
        """Gives every worker a connection, of a donor that agreed to ``features``. Raises as carriers do."""
        # Kept for replacements of the connections within this session.
        self._features = features
        choice = self._choice()
        # Empty as long as the preferred carrier works; whatever fills it makes this a fallback.
        reason = choice.missing
        for name in choice.tried:
            carrier = self._carriers[name]
            try:
                await self._make_by(carrier)
                break
            except EXPECTED as error:
                # The last carrier's failure is the session's.
                if name == choice.tried[-1]:
                    raise
                reason = str(error) or f"not within {carrier.limit_s(self._target()):g} s"
        else:
            raise PeerError(reason)  # no carrier that both ends have is allowed
        self._note(name, reason)
        self._on_up()

    async def keep(self) -> None:
        """Replaces the connections whenever it must, until cancelled. Raises PeerError when they keep breaking."""
        clock = self._parts.clock
        pause_s = RETRY_MIN_S
        broke_s = clock.now_s()
        while True:
            # 1. wait for a reason
            began_s = clock.now_s()
            await self._until_broken()
            # 2. give up a donor whose connections do not hold
            # Connections that held for a while were good ones, and both clocks begin anew.
            if clock.now_s() - began_s > SETTLE_S:
                pause_s, broke_s = RETRY_MIN_S, clock.now_s()
            if clock.now_s() - broke_s > self._parts.config.grace_s:
                self.breaks_on = True
                raise PeerError("its data connections keep breaking")
            # 3. replace them, more slowly each time
            log.warning("replacing a donor's data connections", donor=self.address.node, reason=self._reason())
            await clock.sleep_until_s(clock.now_s() + pause_s)
            pause_s = min(RETRY_MAX_S, 2 * pause_s)
            await self.make(self._features)

    def _offers(self) -> Sequence[Offer]:
        return [
            Offer(
                name=carrier.name,
                lacks_here=carrier.lacks_here,
                lacks_there="" if carrier.feature in self._features else f"the donor offers no {carrier.name.upper()}",
            )
            for carrier in self._carriers.values()
            if carrier.has_connections
        ]

    def _choice(self) -> Choice:
        return choose(self.address.control, self._parts.config.transport, self._offers())

    def _note(self, name: str, reason: str) -> None:
        self.transport = name
        self._fell_back = bool(reason)
        if reason:
            self._parts.table.counters.rdma_fallbacks += 1
            self._parts.table.save()
            log.warning("the preferred carrier to a donor failed", donor=self.address.node, used=name, reason=reason)

    async def _make_by(self, carrier: Carrier) -> None:
        if carrier.has_connections:
            # Saved before it is used: a successor must begin with a higher one, or the donor would fence its
            # connections.
            self._record.epoch += 1
            self._parts.table.save()
        target = self._target()
        async with asyncio.timeout(carrier.limit_s(target)):
            attach = await carrier.open(self._parts.engine, target)
        if carrier.has_connections:
            # The donor's fence has ended the old connections while the new ones were made. What the engine reports of
            # those is read and dropped now, so that it does not break the new set.
            self._parts.hooks.pump_events()
            self._broke_by = 0
        self._broken.clear()
        # After the flag is cleared: a break from here on is one of the new connections.
        attach()

    def _target(self) -> Target:
        return Target(
            donor=self._record.donor,
            workers=(*range(self._parts.config.workers), MOVER),
            open_data=self._open_data,
            deadline_s=self._parts.config.deadline_s,
            long_s=self._parts.long_s,
        )

    async def _open_data(self, worker: int, features: m.Feature) -> DataConnection:
        made = await open_data(
            self.address.control,
            keys=self._parts.keys.current(),
            node=node_name(self._parts.config),
            session=self._record.session,
            worker=worker,
            epoch=self._record.epoch,
            features=features,
        )
        self.has_codes = bool(made.head_keys)
        return made

    async def _until_broken(self) -> None:
        """Return when the links must be replaced: one broke, or the preferred carrier works again."""
        while True:
            try:
                # Without a fallback only a break ends the wait. A fabric is down for minutes, and asking costs one
                # connection.
                async with asyncio.timeout(self._parts.config.rdma_retry_s if self._fell_back else None):
                    await self._broken.wait()
            except TimeoutError:
                if not await self._has_preferred_again():
                    continue
            return

    def _reason(self) -> str:
        if self._broke_by:
            return os.strerror(self._broke_by)
        return "the preferred carrier is there again" if self._fell_back else "one broke"

    async def _has_preferred_again(self) -> bool:
        # One connection more under the present epoch: a higher one would fence those that pages travel by.
        preferred = self._choice().tried[0]
        if preferred == self.transport:
            return False
        try:
            async with asyncio.timeout(self._carriers[preferred].limit_s(self._target())):
                await self._carriers[preferred].probe(self._target(), MOVER)
        except EXPECTED as error:
            log.debug("the preferred carrier to a donor is still not available", donor=self.address.node, reason=error)
            return False
        return True

"""All donors of the peers file: follows changes of the file, and implements `donor_port.Donors`.

How it works. A donor that leaves the file is retired: nothing new is leased from it, its slabs move away, and when none
is left it is forgotten. So is a donor whose address changes between unix: and tcp:, before it joins again at the new
one: slabs that came as shared memory can't be reached over a network, nor the other way round. A successor process goes
on with such donors where it finds slabs of theirs in the table. A donor that gave damaged copies of pages is sent away
in the same way, and stays out until an operator trusts it again.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from farside.blockdev.carrier.choice import is_shared
from farside.blockdev.donor.donor import Donor, DonorHealth
from farside.blockdev.donor.parts import DonorParts
from farside.blockdev.donor.trust import Trust
from farside.blockdev.donor_port import Grant
from farside.blockdev.mapping.placement import DonorView
from farside.blockdev.peers_file import DonorAddress, read_peers
from farside.blockdev.task import Tasks
from farside.errors import ConfigError, FarsideError, PeerError
from farside.log import get_log
from farside.whole_file import file_stamp

WATCH_PERIOD_S = 1.0

log = get_log("blockdev.donors")


class DonorList:
    """The donors of one device. Implements ``Donors``."""

    def __init__(self, parts: DonorParts, tasks: Tasks) -> None:
        self._parts = parts
        self._tasks = tasks
        self._donors: dict[str, Donor] = {}
        self._named: dict[str, DonorAddress] = {}  # what the peers file says now
        self._seen: tuple[int, int, int] | None = None  # stamp of the file that was read last
        self._trust = Trust()
        self._refused = ""  # the last error, so that the log has it once and not each second

    def start(self) -> None:
        """Reads the peers file for the first time, and follows it from now on.

        A successor whose peers file can't be read at that moment goes on with the donors of before.

        Raises:
            ConfigError: a new device's peers file can't be read.
        """
        # The stamp before the content: a change between the two is then seen by the next look.
        self._seen = file_stamp(self._parts.config.peers_file)
        try:
            addresses = read_peers(self._parts.config.peers_file)
        except ConfigError as error:
            if not self._parts.engine.adopted:
                raise
            log.error("the peers file is not usable; the donors stay as they were", reason=error)
            addresses = self._parts.table.listed
        self._apply(addresses)
        self._tasks.spawn(self._watch(), name="peers file")

    def all(self) -> tuple[Donor, ...]:
        """Every donor, with those that have left the file and still have slabs of ours."""
        return tuple(self._donors.values())

    def get(self, donor: int) -> Donor:
        """The donor of this number. Raises PeerError when it has left."""
        for one in self._donors.values():
            if one.number == donor:
                return one
        raise PeerError("the donor is not in the peers file")

    def is_shared(self, donor: int) -> bool:
        """True when slabs of the donor of this number are memory of this host; False too when it has left."""
        return any(one.number == donor and one.is_shared for one in self._donors.values())

    # ------------------------------------------------------------ port

    def views(self) -> tuple[DonorView, ...]:
        """Every donor with the figures it gave last."""
        return tuple(donor.view() for donor in self._donors.values())

    async def ask(self, donor: int) -> DonorView | None:
        """QUERY_MEM to one donor."""
        return await self.get(donor).query()

    async def lease(self, donor: int) -> Grant:
        """MAP to one donor."""
        return await self.get(donor).lease()

    async def release(self, donor: int, leases: Iterable[int]) -> None:
        """RELEASE to one donor."""
        await self.get(donor).release(leases)

    async def done(self, donor: int, lease: int, *, moved_pages: int, dropped_pages: int) -> None:
        """DONE to one donor."""
        await self.get(donor).done(lease, moved_pages=moved_pages, dropped_pages=dropped_pages)

    def links_broke(self, donor: int, error: int) -> None:
        """LINK_DOWN, with its errno, or DONOR_SUSPECT of one donor."""
        with suppress(PeerError):  # it has left
            self.get(donor).links_broke(error)

    # ----------------------------------------------------------------- trust

    def gave_damaged(self, donor: str) -> None:
        """Count a copy that the donor of this name had and that was found damaged; too many, and it is left out.

        With it is every donor of its node, under whatever name: `DonorAddress.trusted_as`.
        """
        table = self._parts.table
        known = self._donors.get(donor)
        node = known.address.trusted_as if known is not None else donor
        table.damaged_pages[node] = table.damaged_pages.get(node, 0) + 1
        if self._trust.found(node, self._parts.clock.now_s()) and node not in table.distrusted:
            table.distrusted.add(node)
            table.save()
            log.error(
                "a donor is left out: it gave damaged pages again and again; its other pages move away",
                donor=node,
                damaged_pages=table.damaged_pages[node],
                to_use_it_again=f"farside admin trust donor={node}",
            )
            self._follow()

    def trust(self, node: str) -> None:
        """Use a donor again that was left out. Raises ConfigError when none of that name is."""
        if node not in self._parts.table.distrusted:
            raise ConfigError(f"no donor {node!r} is left out", hint="`farside status` shows those that are")
        self._trust.forgive(node)
        self._parts.table.distrusted.discard(node)
        self._parts.table.save()
        log.info("a donor that was left out is used again", donor=node)
        self._follow()

    # ------------------------------------------------------------------ file

    async def _watch(self) -> None:
        clock, path = self._parts.clock, self._parts.config.peers_file
        while True:
            await clock.sleep_until_s(clock.now_s() + WATCH_PERIOD_S)
            try:
                self.look(path)
            # A file that was refused is read again each time: a corrected mode leaves the stamp as it is.
            except FarsideError as error:
                if str(error) != self._refused:
                    self._refused = str(error)
                    log.error("the peers file is not usable; the donors stay as they were", reason=error)
            # Whatever went wrong in one look, the next must come: otherwise no donor would ever join or leave again.
            except Exception as error:
                log.error("unexpected fault", work="peers file", cause=error)

    def look(self, path: Path) -> None:
        """Look once at the file and at the donors that are leaving. Raises ConfigError when the file is not usable."""
        stamp = file_stamp(path)
        # A file that is missing changes nothing. Donors that leave still have to be followed: their slabs go one by
        # one.
        if stamp is None or stamp == self._seen:
            self._follow()
            return
        try:
            addresses = read_peers(path)
        except ConfigError:
            self._follow()
            raise
        # Only now: a file that was refused must not count as seen.
        self._seen, self._refused = stamp, ""
        self._apply(addresses)

    def _apply(self, addresses: tuple[DonorAddress, ...]) -> None:
        self._named = {address.node: address for address in addresses}
        # For a successor that can't read the file.
        self._parts.table.listed = addresses
        self._parts.table.save()
        # A donor that is no longer in the file may have slabs that an earlier process leased. It joins again, and
        # leaves when they have moved: their pages are not given up.
        for record in self._parts.table.donors():
            if record.control and record.node not in self._donors and self._parts.table.slab_count(record.donor):
                self._join(DonorAddress(node=record.node, control=record.control, owner=record.owner))
        self._follow()

    def _follow(self) -> None:
        distrusted = self._parts.table.distrusted
        # By its own name, too: that is what was kept of one that an earlier version left out.
        named = {node: at for node, at in self._named.items() if not distrusted & {node, at.trusted_as}}
        # A copy: _send_away removes donors.
        for node, donor in list(self._donors.items()):
            address = named.get(node)
            transport = self._parts.config.transport
            if address is not None and is_shared(address.control, transport) == donor.is_shared:
                # An address of the same kind is only noted: the next connection goes there.
                donor.retired, donor.address = False, address
                self._parts.table.donor(node).owner = address.owner
            else:
                self._send_away(donor)
        for node, address in named.items():
            if node not in self._donors:
                self._join(address)

    def _join(self, address: DonorAddress) -> None:
        donor = self._donors[address.node] = Donor(self._parts, address)
        self._parts.table.donor(address.node).owner = address.owner
        donor.task = self._tasks.spawn(donor.run(), name=f"donor {address.node}")

    def _send_away(self, donor: Donor) -> None:
        if not donor.retired:
            log.info("donor is to leave, or has another address; its slabs move", donor=donor.address.node)
            donor.retired = True
        slabs = self._parts.table.slabs_of(donor.number)
        # Each look again: a MAP that was under way when the donor left may have brought one slab more.
        if not all(slab.draining for slab in slabs):
            self._parts.hooks.retire(donor.number)
        # A donor that is suspect or failing comes to DOWN by itself, and must not be cut off on the way.
        if not slabs and donor.health in (DonorHealth.DOWN, DonorHealth.UP):
            donor.forget()
            del self._donors[donor.address.node]

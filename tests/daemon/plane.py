"""A donor and its borrowers in one process: real sockets, protocol and memfds; a virtual clock; no C engine."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from farside.config import DaemonConfig
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.protocol import Connection, PeerClosed, PeerProved, Received, Side
from farside.daemon.main import Donor
from farside.daemon.status import DonorStatus, donor_status
from farside.errors import PeerError
from tests.daemon.fakes import FakeExporter, FakeMemory
from tests.support.virtual_clock import VirtualClock

KEY = b"k" * 32
MIB = 1 << 20
SLAB = 2 * MIB
LIMIT_S = 150.0
TOTAL = 256 * MIB
HEADROOM = 32 * MIB


def write_meminfo(folder: Path, *, available_bytes: int) -> None:
    """What the donor will read at its next sample."""
    new = folder / "meminfo.new"
    new.write_text(f"MemTotal: {TOTAL // 1024} kB\nMemAvailable: {available_bytes // 1024} kB\n")
    new.rename(folder / "meminfo")


@dataclass
class Plane:
    """One donor. ``others_bytes`` is what the programs of its machine use."""

    folder: Path
    settings: dict[str, object] = field(default_factory=dict)
    clock: VirtualClock = field(default_factory=VirtualClock)
    exporter: FakeExporter = field(default_factory=FakeExporter)
    memory: FakeMemory = field(default_factory=FakeMemory)
    others_bytes: int = 0
    has_rdma: bool = False
    borrowers: list["Borrower"] = field(default_factory=list)

    def __post_init__(self) -> None:
        key = self.folder / "key"
        key.write_text(KEY.hex())
        key.chmod(0o600)
        self.tell_meminfo()
        self.path = self.folder / "donor.sock"
        settings: dict[str, object] = {
            "node": "d1",
            "listen": (f"unix:{self.path}",),
            "key_file": key,
            "slab_bytes": SLAB,
            "headroom_bytes": HEADROOM,
            "proc_root": self.folder,
            "admin_socket": self.folder / "admin.sock",
            "hugepages": "off",
            "ewma_beta": 1.0,  # what a squeeze does comes at once; the average has tests of its own
            **self.settings,
        }
        self.donor = Donor(
            DaemonConfig(**settings),  # type: ignore[arg-type]  # a test names settings as it likes
            exporter=self.exporter,
            slab_memory=self.memory,
            clock=self.clock,
            has_rdma=self.has_rdma,
        )

    def tell_meminfo(self) -> None:
        """Writes what the kernel would say now."""
        slabs_bytes = len(self.memory.views) * SLAB
        write_meminfo(self.folder, available_bytes=max(0, TOTAL - self.others_bytes - slabs_bytes))

    def tell_pressure(self, *, full_pct: float) -> None:
        """The share of time in which all programs waited for memory, from now on."""
        (self.folder / "pressure").mkdir(exist_ok=True)
        (self.folder / "pressure" / "memory").write_text(f"full avg10={full_pct:.2f} avg60=0.00 avg300=0.00 total=1\n")

    async def pass_time(self, seconds: float, step_s: float = 0.25) -> None:
        """Moves the clock in small steps, with the kernel's answer up to date and sockets served at each."""
        for _ in range(round(seconds / step_s)):
            self.tell_meminfo()
            await self.clock.advance(step_s)
            await self.at_rest()

    async def at_rest(self) -> None:
        """Returns when sockets are served and the threads that make and empty slabs have done so."""
        await settled()
        while self.donor._pool.changing:
            await asyncio.sleep(0.001)
            if not self.donor._pool.changing:
                await settled()

    async def squeeze(self, others_bytes: int, seconds: float = 2.0) -> None:
        """The machine's programs use so much from now on; then time passes."""
        self.others_bytes = others_bytes
        await self.pass_time(seconds)

    def status(self) -> DonorStatus:
        """What `farside status` would show."""
        assert self.donor.lender is not None
        return donor_status("d1", self.donor.lender)

    def connection(self, node: str = "b1", key: bytes = KEY) -> Connection:
        return Connection(
            side=Side.BORROWER,
            keys=(key,),
            nonce=os.urandom(32),
            node=node,
            features=m.Feature.SHM | m.Feature.MIGRATE,
        )

    def channel(self, connection: Connection) -> Channel:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(os.fspath(self.path))
        return Channel(sock, connection)

    async def borrower(
        self, node: str = "b1", *, session: int = 0, features: m.Feature = m.Feature.MIGRATE
    ) -> "Borrower":
        """A borrower with a session; by default one whose slabs are reached through the exporter, as over TCP."""
        connection = self.connection(node)
        connection._features = features
        borrower = Borrower(self.channel(connection))
        self.borrowers.append(borrower)
        borrower.welcome = await borrower.channel.open(session=session)
        return borrower

    async def data(
        self, session: int, *, epoch: int, node: str = "b1", features: m.Feature = m.Feature.NONE
    ) -> socket.socket:
        """A data connection, past the handshake."""
        connection = self.connection(node)
        connection._features = features
        channel = self.channel(connection)
        try:
            await channel.open(role="data", session=session, epoch=epoch)
            return await channel.hand_over()
        finally:
            channel.close()


@dataclass
class Borrower:
    """One connected borrower; messages that answer nothing wait in ``notices``."""

    channel: Channel
    welcome: m.Welcome | None = None
    notices: list[Received] = field(default_factory=list)
    fds: list[int] = field(default_factory=list)

    @property
    def session(self) -> int:
        assert self.welcome is not None
        return self.welcome.session

    async def ask(self, message: m.Message) -> m.Message:
        """The donor's answer."""
        seq = self.channel.ask(message)
        while True:
            event = await self.channel.next_event()
            assert isinstance(event, Received), event
            if event.seq == seq:
                return event.message
            self.notices.append(event)

    async def map(self, count: int = 1) -> tuple[m.Lease, ...]:
        """Slabs of the donor, with their memfds in ``fds`` where it passes them."""
        answer = await self.ask(m.Map(device="swap", count=count))
        assert isinstance(answer, m.MrInfo), answer
        self.fds += self.channel.take_fds(self.channel.fds_waiting)
        return answer.leases

    async def notice(self) -> Received:
        """What the donor wants next."""
        if self.notices:
            return self.notices.pop(0)
        event = await self.channel.next_event()
        assert isinstance(event, Received)
        return event

    async def end(self) -> m.Message | None:
        """The last thing the donor says before it closes."""
        last = None
        while not isinstance(event := await self.channel.next_event(), PeerClosed):
            assert isinstance(event, Received)
            last = event.message
        return last

    def close(self) -> None:
        self.channel.close()
        while self.fds:
            os.close(self.fds.pop())


@asynccontextmanager
async def running(plane: Plane) -> AsyncIterator[Plane]:
    """The donor serves for the body, and is told to end at once after it."""
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        task = group.create_task(plane.donor.run())
        await asyncio.wait((task, ready := group.create_task(plane.donor.ready.wait())), return_when="FIRST_COMPLETED")
        ready.cancel()
        if task.done():
            await task
        try:
            yield plane
        finally:
            for borrower in plane.borrowers:
                borrower.close()
            plane.donor.stop()
            plane.donor.stop()


async def proved(channel: Channel) -> m.Hello:
    """A donor's end of a handshake: what a borrower that has proved the key wants. Raises PeerError: it has not."""
    event = await channel.next_event()
    if not isinstance(event, PeerProved):
        raise PeerError(f"the borrower proved nothing: {event}")
    return event.hello


async def settled() -> None:
    """Lets sockets and threads of this process do what they can do now."""
    for _ in range(5):
        await asyncio.sleep(0.001)


async def until(look: Callable[[], object], what: str) -> None:
    """Returns when it is true.

    Raises:
        AssertionError: it does not become so.
    """
    try:
        async with asyncio.timeout(LIMIT_S / 2):
            while not look():
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"not in time: {what}") from None

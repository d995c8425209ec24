"""One donor's sessions, against a scripted donor that speaks the real protocol over a real socket."""

import asyncio
import contextlib
import errno
import os
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec
import pytest

from farside.blockdev.carrier.catalog import make_carriers
from farside.blockdev.carrier.rdma import Rdma
from farside.blockdev.donor import donor as donor_module
from farside.blockdev.donor.donor import Donor, DonorHealth
from farside.blockdev.donor.parts import DonorParts
from farside.blockdev.engine_port import Engine
from farside.blockdev.mapping.table import Slab, Table
from farside.blockdev.peers_file import DonorAddress
from farside.blockdev.state import StateFile
from farside.clock import RealClock
from farside.config import BlockdevConfig
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.keys import KeyRing
from farside.daemon.control.protocol import Connection, PeerClosed, Received, Side
from farside.errors import EngineError, PeerError, RemoteProtocolError
from farside.kmod_shim.engine.binding import MOVER, DonorState, RdmaLink
from tests.daemon.plane import proved

KEY = bytes(range(32))
MIB = 1 << 20


class ScriptedDonor:
    """A donor that leases numbers, not memory, and remembers what it heard."""

    def __init__(self, path: Path, *, port: int = 0) -> None:
        self.path = path
        self.port = port  # of TCP on this host instead, when not 0
        self.is_listening = False
        self.features = m.Feature.MIGRATE | m.Feature.SHM
        self.node = "d1"
        self.slab_bytes = 8 * MIB
        self.session = 41
        self.held: dict[int, int] = {}  # lease -> token
        self.is_mute = False
        self.is_thawed = asyncio.Event()
        self.is_thawed.set()
        self.may_map = asyncio.Event()
        self.may_map.set()
        self.keeps_order = True  # as real ones: nothing that comes after a MAP is answered before it
        self.may_resume = asyncio.Event()
        self.may_resume.set()
        self.granted = 1  # slabs for each MAP
        self.has_memory = False  # as a donor on this host: passes memfds
        self.heard: list[m.Message] = []
        self.hellos: list[m.Hello] = []
        self.control: Channel | None = None
        self.data_socks: list[socket.socket] = []

    async def serve(self) -> None:
        self.path.unlink(missing_ok=True)
        with self._listener() as listener:
            listener.setblocking(False)
            self.is_listening = True
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.TaskGroup() as group:
                    while True:
                        sock, _ = await loop.sock_accept(listener)
                        group.create_task(self._serve(sock))
            finally:
                self.is_listening = False
                self.path.unlink(missing_ok=True)
                for data in self.data_socks:
                    data.close()

    def _listener(self) -> socket.socket:
        if self.port:
            return socket.create_server(("127.0.0.1", self.port))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(os.fspath(self.path))
        listener.listen()
        return listener

    async def _serve(self, sock: socket.socket) -> None:
        connection = Connection(
            side=Side.DONOR,
            keys=(KEY,),
            nonce=secrets.token_bytes(32),
            node=self.node,
            features=self.features,
        )
        channel = Channel(sock, connection)
        try:
            await self.is_thawed.wait()
            hello = await proved(channel)
            self.hellos.append(hello)
            if hello.session not in (0, self.session):
                channel.decide(m.Error(code=m.ErrorCode.SESSION, message="no such session"))
                return
            channel.decide(m.Welcome(session=self.session, slab_bytes=self.slab_bytes, lease_expiry_s=1.0))
            if hello.role == "data":
                self.data_socks.append(await channel.hand_over())
                return
            self.control = channel
            await self._converse(channel)
        except (PeerError, RemoteProtocolError):
            pass  # the borrower went away, which tests make it do
        finally:
            channel.close()

    async def _converse(self, channel: Channel) -> None:
        later: list[asyncio.Task[None]] = []
        try:
            while True:
                event = await channel.next_event()
                if isinstance(event, PeerClosed):
                    return
                assert isinstance(event, Received)
                self.heard.append(event.message)
                if not self.is_mute:
                    later.append(asyncio.create_task(self._answer(channel, event.seq, event.message)))
                    if self.keeps_order:
                        await later[-1]
        finally:
            for task in later:
                task.cancel()
            await asyncio.gather(*later, return_exceptions=True)

    async def _answer(self, channel: Channel, seq: int, message: m.Message) -> None:
        match message:
            case m.QueryMem() | m.KeepAlive():
                free = m.FreeMem(
                    free_slabs=4, used_bytes=1, total_bytes=2, headroom_bytes=1, slab_bytes=self.slab_bytes
                )
                channel.answer(seq, free)
            case m.Map():
                await self.may_map.wait()
                leases = range(len(self.held), len(self.held) + self.granted)
                self.held.update((lease, 900 + lease) for lease in leases)
                self._answer_leases(channel, seq, tuple(self._lease(lease) for lease in leases))
            case m.Resume(leases=leases):
                await self.may_resume.wait()
                held = tuple(self._lease(n) for n, token in leases if self.held.get(n) == token)
                self._answer_leases(channel, seq, held)
            case m.Release() | m.Done():
                channel.answer(seq, m.Ok())

    def _answer_leases(self, channel: Channel, seq: int, leases: tuple[m.Lease, ...]) -> None:
        fds = [os.memfd_create("slab") for _ in leases] if self.has_memory else []
        channel.answer(seq, m.MrInfo(leases=leases), fds)
        for fd in fds:
            os.close(fd)

    def _lease(self, number: int) -> m.Lease:
        return m.Lease(lease=number, token=self.held[number], rkey=0, addr=0, length=self.slab_bytes, epoch=1)


class Recorder:
    """What the engine was told, and what the hooks heard."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.states: list[DonorState] = []
        self.links: list[int] = []
        self.pairs: list[int] = []
        self.recalls: list[m.Message] = []
        self.lost: list[int] = []
        self.retired: list[int] = []
        self.remaps = 0
        self.fault: Exception | None = None  # what the next recall ends with

    # the engine
    def link_attach_shm(self, donor: int) -> None: ...

    def slab_remap(self, slab: int, memfd: int) -> None:
        self.remaps += 1
        raise EngineError("slab_remap", 1)

    def donor_set(self, donor: int, state: DonorState) -> None:
        self.states.append(state)

    def link_attach_tcp(self, donor: int, worker: int, sock: int, keys: bytes = b"") -> None:
        os.close(sock)
        self.links.append(worker)

    def link_attach_rdma(self, donor: int, worker: int, link: RdmaLink) -> None:
        self.pairs.append(worker)

    # the hooks
    def recall(self, donor: int, message: m.Migrate | m.Evict) -> None:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.recalls.append(message)

    def lease_activity(self, donor: int, leases: Sequence[int]) -> tuple[tuple[int, float], ...]:
        return tuple((lease, 2.5) for lease in leases)

    def donor_lost(self, donor: int) -> None:
        self.slabs_lost(self.table.slabs_of(donor))

    def slabs_lost(self, slabs: Sequence[Slab]) -> None:
        for slab in slabs:
            self.lost.append(slab.lease)
            self.table.drop_slab(slab.slab)

    def still_held(self, slab: Slab) -> None:
        self.recalls.append(m.Release(leases=(slab.lease,)))

    def retire(self, donor: int) -> None:
        self.retired.append(donor)
        for slab in self.table.slabs_of(donor):
            slab.draining = True

    def pump_events(self) -> None: ...


class FakeLink:
    """A queue pair that nobody uses."""

    def __init__(self, sock: int) -> None:
        self.sock: socket.socket | None = socket.socket(fileno=sock)

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
        self.sock = None


class Fabric:
    """An RDMA network on which queue pairs can be had, or not."""

    def __init__(self) -> None:
        self.works = True
        self.made: list[FakeLink] = []
        self.may_connect = threading.Event()
        self.may_connect.set()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.control_port: int = probe.getsockname()[1]

    def connect(self, sock: int, limit_ms: int) -> FakeLink:
        self.may_connect.wait(limit_ms / 1000)
        if not self.works:
            raise EngineError("rdma_connect", errno.EHOSTUNREACH)
        self.made.append(FakeLink(sock))
        return self.made[-1]

    def close(self) -> None:
        for link in self.made:
            link.close()


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    fabric = Fabric()
    yield fabric
    fabric.close()


class Scene:
    """The borrower's view of one donor, and the scripted donor itself."""

    def __init__(
        self,
        folder: Path,
        *,
        deadline_s: float = 0.4,
        grace_s: float = 0.8,
        transport: str = "tcp",
        rdma_retry_s: float = 60.0,
        fabric: "Fabric | None" = None,
    ) -> None:
        fd = os.memfd_create("control")
        os.truncate(fd, 1 << 20)
        (folder / "key").write_text(KEY.hex())
        (folder / "key").chmod(0o600)
        config = BlockdevConfig(
            node="b1",
            slab_bytes=8 * MIB,
            workers=2,
            transport=transport,
            deadline_s=deadline_s,
            grace_s=grace_s,
            rdma_retry_s=rdma_retry_s,
            key_file=folder / "key",
        )
        self.table = Table(StateFile(fd), extents=4)
        self.recorder = Recorder(self.table)
        self.parts = DonorParts(
            config=config,
            keys=KeyRing(folder / "key"),
            engine=cast(Engine, self.recorder),
            table=self.table,
            clock=RealClock(),
            hooks=self.recorder,
            carriers=make_carriers(
                Rdma(
                    has_device=fabric is not None,
                    connect=cast(Callable[[int, int], RdmaLink], fabric.connect if fabric else RdmaLink),
                )
            ),
        )
        port = fabric.control_port if fabric else 0
        self.scripted = ScriptedDonor(folder / "donor.sock", port=port)
        control = f"tcp:127.0.0.1:{port}" if port else f"unix:{self.scripted.path}"
        self.donor = Donor(self.parts, DonorAddress(node="d1", control=control))
        self.donor_task: asyncio.Task[None] | None = None

    async def start_donor(self) -> None:
        self.donor_task = asyncio.create_task(self.scripted.serve())
        await until(lambda: self.scripted.is_listening)

    async def stop_donor(self) -> None:
        assert self.donor_task is not None
        self.donor_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.donor_task

    def add_slab(self, lease: int = 0) -> Slab:
        self.scripted.held[lease] = 900 + lease
        return self.table.add_slab(donor=self.donor.number, lease=lease, token=900 + lease, epoch=1, region=0)

    async def is_up(self) -> None:
        await until(lambda: self.donor.health is DonorHealth.UP)


async def until(look: Callable[[], bool], *, limit_s: float = 60.0) -> None:
    async with asyncio.timeout(limit_s):
        while not look():
            await asyncio.sleep(0.01)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def play(scene: Scene, body: Callable[[], Coroutine[object, object, None]]) -> None:
    async def live() -> None:
        await scene.start_donor()
        borrower_task = asyncio.create_task(scene.donor.run())
        try:
            await body()
        finally:
            for task in (borrower_task, scene.donor_task):
                assert task is not None
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    asyncio.run(live())


def test_every_worker_and_the_mover_get_a_connection_of_one_epoch(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()

    play(scene, body)

    assert scene.recorder.links == [0, 1, MOVER]
    assert {hello.epoch for hello in scene.scripted.hellos if hello.role == "data"} == {1}
    assert scene.recorder.states == [DonorState.UP]


def test_a_slab_is_leased_and_given_back(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        grant = await scene.donor.lease()
        await scene.donor.release((grant.lease,))

        assert (grant.lease, grant.token, grant.memfd) == (0, 900, -1)

    play(scene, body)

    assert m.Release(leases=(0,)) in scene.scripted.heard


def test_keepalives_tell_the_donors_figures(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        await until(lambda: scene.scripted.heard.count(m.KeepAlive()) >= 2)

    play(scene, body)

    assert scene.donor.view().free_slabs == 4
    assert scene.donor.view().used_bytes == 1


def test_broken_links_are_all_replaced_under_a_higher_epoch(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.donor.links_broke()
        await until(lambda: len(scene.recorder.links) == 6)

    play(scene, body)

    assert scene.recorder.links == [0, 1, MOVER] * 2
    assert [hello.epoch for hello in scene.scripted.hellos if hello.role == "data"][3:] == [2, 2, 2]


def test_why_links_are_replaced_is_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.donor.links_broke()
        scene.donor.links_broke(errno.ETIMEDOUT)
        await until(lambda: len(scene.recorder.links) == 6)

    play(scene, body)

    (fields,) = [vars(record)["farside_fields"] for record in caplog.records if "replacing" in record.message]
    assert fields["reason"] == "Connection timed out"


def test_a_lost_control_connection_comes_back_to_its_session_and_leases(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        slab = scene.add_slab()
        await scene.stop_donor()
        await until(lambda: scene.donor.health is DonorHealth.SUSPECT)
        await scene.start_donor()
        await scene.is_up()

        assert scene.table.slabs == {slab.slab: slab}

    play(scene, body)

    assert [hello.session for hello in scene.scripted.hellos if hello.role == "control"] == [0, 41]
    assert m.Resume(device="swap0", leases=((0, 900),)) in scene.scripted.heard
    assert scene.recorder.lost == []
    assert DonorState.SUSPECT in scene.recorder.states


def test_leases_that_the_donor_does_not_name_any_more_are_lost(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.add_slab(0)
        scene.add_slab(1)
        await scene.stop_donor()
        del scene.scripted.held[1]
        await scene.start_donor()
        await until(lambda: bool(scene.recorder.lost))
        await scene.is_up()

    play(scene, body)

    assert scene.recorder.lost == [1]


def test_a_donor_that_was_restarted_fails_at_once_and_comes_back_as_a_new_one(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.add_slab()
        await scene.stop_donor()
        scene.scripted.session = 42
        await scene.start_donor()
        await until(lambda: scene.recorder.lost == [0])
        await scene.is_up()

    play(scene, body)

    assert scene.recorder.states[-3:] == [DonorState.FAILED, DonorState.NONE, DonorState.UP]
    assert scene.table.donor("d1").session == 42
    assert scene.table.counters.failovers == 1


def test_a_donor_that_stays_away_fails_after_the_grace_time(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.add_slab()
        await scene.stop_donor()
        await until(lambda: scene.recorder.lost == [0])

    play(scene, body)

    assert scene.table.counters.failovers == 1
    assert scene.donor.health is DonorHealth.DOWN


def test_a_donor_without_slabs_of_ours_is_only_down(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        await scene.stop_donor()
        await until(lambda: scene.donor.health is DonorHealth.DOWN)

    play(scene, body)

    assert scene.table.counters.failovers == 0


def test_a_donor_that_does_not_answer_loses_its_session(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.add_slab()
        scene.scripted.is_mute = True
        await until(lambda: scene.donor.health is DonorHealth.SUSPECT)

    play(scene, body)

    assert "no answer" in scene.donor.reason


def test_a_donor_that_freezes_fails_after_the_grace_time_and_is_taken_back_when_it_thaws(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        scene.add_slab()
        scene.scripted.is_mute = True
        scene.scripted.is_thawed.clear()
        scene.donor.links_broke()
        await until(lambda: scene.recorder.lost == [0])
        scene.scripted.is_mute = False
        scene.scripted.is_thawed.set()
        await scene.is_up()

    play(scene, body)

    assert scene.table.counters.failovers == 1


def test_notices_of_the_donor_reach_the_device(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        assert scene.scripted.control is not None
        scene.scripted.control.ask(m.CheckActivity(leases=(3,)))
        scene.scripted.control.ask(m.Migrate(leases=(3,), deadline_s=2.0))
        await until(lambda: bool(scene.recorder.recalls))

    play(scene, body)

    assert m.Activity(activity=((3, 2.5),)) in scene.scripted.heard
    assert scene.recorder.recalls == [m.Migrate(leases=(3,), deadline_s=2.0)]


def test_a_lease_that_comes_too_late_is_given_back(tmp_path: Path) -> None:
    # It answers all else at once, and its borrower is patient, so that the session outlives the MAP and a pause of this
    # machine: the lease comes too late, not the donor.
    scene = Scene(tmp_path, deadline_s=8.0, grace_s=8.0)
    scene.scripted.keeps_order = False

    async def body() -> None:
        await scene.is_up()
        scene.scripted.may_map.clear()
        with pytest.raises(PeerError, match="no answer to Map"):
            await scene.donor.lease()
        scene.scripted.may_map.set()
        await until(lambda: m.Release(leases=(0,)) in scene.scripted.heard)

    play(scene, body)


def test_leases_that_were_not_asked_for_go_back(scene: Scene) -> None:
    scene.scripted.granted = 2

    async def body() -> None:
        await scene.is_up()
        with pytest.raises(PeerError, match="granted 2 slabs"):
            await scene.donor.lease()
        await until(lambda: m.Release(leases=(0, 1)) in scene.scripted.heard)

    play(scene, body)


def test_a_donor_that_is_slow_to_map_is_not_suspected(tmp_path: Path) -> None:
    scene = Scene(tmp_path, grace_s=5.0)

    async def body() -> None:
        await scene.is_up()
        scene.scripted.may_map.clear()
        lease = asyncio.create_task(scene.donor.lease())
        await until(lambda: m.Map(device="swap0") in scene.scripted.heard)
        for _ in range(2):  # each takes the deadline; a KEEPALIVE is under way all the while
            assert await scene.donor.query() is None
        scene.scripted.may_map.set()
        await lease
        assert scene.donor.health is DonorHealth.UP

    play(scene, body)

    assert [hello.role for hello in scene.scripted.hellos].count("control") == 1


def test_a_donor_that_greets_and_goes_no_further_fails_after_the_grace_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donor_module, "SETTLE_S", 0.1)  # each try takes longer than that

    async def body() -> None:
        await scene.is_up()
        scene.add_slab()
        scene.scripted.is_mute = True
        await until(lambda: scene.recorder.lost == [0])

    play(scene, body)

    assert scene.table.counters.failovers == 1


def test_whoever_has_no_key_cannot_say_that_a_donor_has_lost_our_slabs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, grace_s=60.0)
    body = msgspec.msgpack.encode(m.Error(code=m.ErrorCode.SESSION, message="who are you?"))
    error = (8 + len(body)).to_bytes(4, "little") + b"\x01\x00\x05\x00" + bytes(4) + body

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(error)
        await writer.drain()
        writer.close()

    async def live() -> None:
        await scene.is_up()
        scene.add_slab()
        await scene.stop_donor()
        server = await asyncio.start_unix_server(stranger, scene.scripted.path)
        await until(lambda: "who are you?" in scene.donor.reason)
        server.close()
        await scene.start_donor()
        await scene.is_up()

    play(scene, live)

    assert scene.recorder.lost == []
    assert scene.table.counters.failovers == 0


def test_a_session_that_breaks_is_counted_and_attempts_on_a_donor_that_is_away_are_not(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        await scene.stop_donor()
        scene.scripted.path.unlink(missing_ok=True)
        await until(lambda: "No such file" in scene.donor.reason)
        await scene.start_donor()
        await scene.is_up()

    play(scene, body)

    assert scene.table.counters.sessions_broken == 1


def test_each_greeting_that_is_not_the_donors_is_counted(scene: Scene) -> None:
    """[H1] Somebody on the way changes what a donor says before there is a session."""

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x08\x00\x00\x00nonsense")
        await writer.drain()
        writer.close()

    async def body() -> None:
        await scene.is_up()
        await scene.stop_donor()
        scene.scripted.path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(stranger, scene.scripted.path)
        await until(lambda: scene.table.counters.sessions_broken == 3)
        server.close()

    play(scene, body)


def test_whatever_ends_a_session_the_next_one_comes(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        assert scene.scripted.control is not None
        scene.recorder.fault = AssertionError("never thought of")
        scene.scripted.control.ask(m.Evict(leases=(3,), deadline_s=2.0))
        await until(lambda: [hello.role for hello in scene.scripted.hellos].count("control") == 2)
        await scene.is_up()

    play(scene, body)


def test_a_slab_that_went_back_while_we_asked_for_it_is_left_alone(scene: Scene) -> None:
    async def body() -> None:
        await scene.is_up()
        slab = scene.add_slab()
        await scene.stop_donor()
        del scene.scripted.held[slab.lease]
        scene.scripted.may_resume.clear()
        await scene.start_donor()
        await until(lambda: any(isinstance(heard, m.Resume) for heard in scene.scripted.heard))
        scene.table.drop_slab(slab.slab)
        other = scene.table.add_slab(donor=77, lease=1, token=1, epoch=1, region=0)
        assert other.slab == slab.slab
        scene.scripted.may_resume.set()
        await scene.is_up()

    play(scene, body)

    assert scene.recorder.lost == []


def test_descriptors_of_a_resume_that_fails_half_way_are_closed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, transport="auto")
    scene.scripted.has_memory = True

    def open_fds() -> int:
        return sum("memfd:slab" in os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())

    async def body() -> None:
        scene.add_slab(0)
        scene.add_slab(1)
        scene.table.donor("d1").session = 41
        await until(lambda: scene.recorder.remaps >= 2)

    play(scene, body)

    assert open_fds() == 0


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [("node", "d9", "at this address is d9"), ("slab_bytes", 16 * MIB, "set slab_bytes alike")],
)
def test_a_donor_that_does_not_fit_is_left_alone_with_a_reason(
    scene: Scene, attribute: str, value: object, reason: str
) -> None:
    setattr(scene.scripted, attribute, value)

    async def body() -> None:
        await until(lambda: reason in scene.donor.reason)

    play(scene, body)

    assert scene.donor.health is DonorHealth.DOWN


@pytest.mark.parametrize("reconnects", [False, True])
def test_a_slab_given_back_and_not_confirmed_is_told_again(scene: Scene, reconnects: bool) -> None:
    async def body() -> None:
        await scene.is_up()
        slab = scene.add_slab(5)
        slab.draining = slab.returned = True
        if reconnects:
            await scene.stop_donor()
            await scene.start_donor()
        await until(lambda: m.Release(leases=(5,)) in scene.recorder.recalls)

    play(scene, body)


# ---- RDMA


def with_rdma(
    folder: Path, fabric: Fabric, *, transport: str = "auto", donor_has_it: bool = True, rdma_retry_s: float = 60.0
) -> Scene:
    scene = Scene(folder, transport=transport, fabric=fabric, rdma_retry_s=rdma_retry_s)
    if donor_has_it:
        scene.scripted.features |= m.Feature.RDMA
    return scene


def test_pages_go_by_rdma_where_both_ends_have_it(tmp_path: Path, fabric: Fabric) -> None:
    scene = with_rdma(tmp_path, fabric)

    play(scene, scene.is_up)

    assert sorted(scene.recorder.pairs) == [0, 1, MOVER]
    assert scene.recorder.links == []
    assert scene.donor.transport == "rdma"
    assert scene.table.counters.rdma_fallbacks == 0
    assert all(m.Feature.RDMA in m.Feature(hello.features) for hello in scene.scripted.hellos)


def test_without_a_device_here_nobody_speaks_of_rdma(scene: Scene) -> None:
    scene.scripted.features |= m.Feature.RDMA

    play(scene, scene.is_up)

    assert scene.donor.transport == "tcp"
    assert scene.table.counters.rdma_fallbacks == 0
    assert all(m.Feature.RDMA not in m.Feature(hello.features) for hello in scene.scripted.hellos)


@pytest.mark.parametrize("lacking", ["donor", "fabric"])
def test_what_goes_by_tcp_though_rdma_was_preferred_is_counted(tmp_path: Path, fabric: Fabric, lacking: str) -> None:
    fabric.works = lacking != "fabric"
    scene = with_rdma(tmp_path, fabric, donor_has_it=lacking != "donor")

    play(scene, scene.is_up)

    assert sorted(scene.recorder.links) == [0, 1, MOVER]
    assert scene.recorder.pairs == []
    assert scene.donor.transport == "tcp"
    assert scene.table.counters.rdma_fallbacks == 1


@pytest.mark.parametrize("lacking", ["donor", "fabric"])
def test_falling_back_can_be_forbidden(tmp_path: Path, fabric: Fabric, lacking: str) -> None:
    fabric.works = lacking != "fabric"
    scene = with_rdma(tmp_path, fabric, transport="rdma", donor_has_it=lacking != "donor")
    reason = "offers no RDMA" if lacking == "donor" else "rdma_connect"

    async def body() -> None:
        await until(lambda: reason in scene.donor.reason)

    play(scene, body)

    assert scene.donor.health is not DonorHealth.UP
    assert scene.recorder.links == []
    assert scene.table.counters.rdma_fallbacks == 0


def test_rdma_is_taken_again_when_it_is_back(tmp_path: Path, fabric: Fabric) -> None:
    fabric.works = False
    scene = with_rdma(tmp_path, fabric, rdma_retry_s=0.02)

    async def body() -> None:
        await scene.is_up()
        epoch = scene.scripted.hellos[-1].epoch
        await until(lambda: len(scene.scripted.hellos) > 6)
        assert scene.scripted.hellos[-1].epoch == epoch  # asking cuts no connection that pages go by
        fabric.works = True
        await until(lambda: scene.donor.transport == "rdma")

    play(scene, body)

    assert sorted(scene.recorder.pairs) == [0, 1, MOVER]


def test_a_queue_pair_that_comes_after_its_time_is_closed(tmp_path: Path, fabric: Fabric) -> None:
    fabric.may_connect.clear()
    scene = with_rdma(tmp_path, fabric, transport="rdma")

    async def body() -> None:
        await until(lambda: any(hello.role == "data" for hello in scene.scripted.hellos))

    play(scene, body)  # ends the session in the middle of it
    fabric.may_connect.set()

    assert scene.recorder.pairs == []
    assert all(link.sock is None for link in fabric.made)

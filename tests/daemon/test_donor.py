"""A whole donor against borrowers: who gets in, who gets slabs, who loses them, and what it survives."""

import asyncio
import mmap
import os
import random
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farside.daemon.control import messages as m
from farside.daemon.control.protocol import PeerClosed
from farside.daemon.counters import Ending
from farside.daemon.slab import pool as pool_module
from farside.errors import PeerError
from tests.daemon.plane import HEADROOM, SLAB, TOTAL, Borrower, Plane, running, settled, until

OTHER_KEY = b"o" * 32
EXPIRY_S = 30.0


def scenario(plane: Plane, body: Callable[[Plane], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with running(plane):
            await body(plane)

    asyncio.run(whole())


@pytest.fixture
def plane(tmp_path: Path) -> Plane:
    return Plane(tmp_path)


def code(answer: m.Message | None) -> int:
    assert isinstance(answer, m.Error), answer
    return answer.code


# ---- who gets in


def test_a_wrong_key_gets_an_error_and_a_counter(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        channel = plane.channel(plane.connection(key=OTHER_KEY))
        with pytest.raises(PeerError, match="no common key") as caught:
            await channel.open()
        channel.close()

        assert caught.value.code == 0  # of a donor that has not proved itself no code is believed
        assert plane.status().refused["AUTH"] == 1

    scenario(plane, body)


def test_random_bytes_end_their_own_connection_only(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        friend = await plane.borrower()
        rng = random.Random(5)
        for size in (1, 4, 11, 12, 100, 5000, 70_000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
                stranger.connect(os.fspath(plane.path))
                stranger.setblocking(False)
                loop = asyncio.get_running_loop()
                try:
                    await loop.sock_sendall(stranger, rng.randbytes(size))
                    stranger.shutdown(socket.SHUT_WR)
                except OSError:
                    pass  # it was thrown out before its last byte
        await until(lambda: plane.status().refused.get("MALFORMED", 0) >= 6, "strangers refused")

        assert isinstance(await friend.ask(m.QueryMem()), m.FreeMem)

    scenario(plane, body)


def test_a_proved_peer_that_breaks_the_protocol_keeps_its_slabs_for_a_while(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map()
        borrower.channel._sock.send(b"\x40\x00\x00\x00" + bytes(64))

        assert code(await borrower.end()) == m.ErrorCode.AUTH
        assert [slab.state for slab in plane.status().slabs if slab.lease is not None] == ["lent"]
        assert not plane.status().sessions[0].connected

    scenario(plane, body)


# ---- who gets slabs


def test_slabs_stand_ready_and_are_mapped_with_numbers_tokens_and_epochs(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        assert [slab.state for slab in plane.status().slabs] == ["ready", "ready"]
        borrower = await plane.borrower()

        first, second = await borrower.map(2)

        assert (first.lease, second.lease) == (0, 1)
        assert first.token != second.token
        assert first.epoch < second.epoch
        assert set(plane.exporter.leases) == {0, 1}
        assert plane.exporter.leases[0][:2] == (borrower.session, first.token)
        slab = plane.status().slabs[0]
        assert (slab.state, slab.borrower, slab.device, slab.transport) == ("lent", "b1", "swap", "tcp")

    scenario(plane, body)


def test_more_than_stands_ready_is_made_on_demand(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()

        assert len(await borrower.map(9)) == 9

    scenario(plane, body)


@contextmanager
def memory_is_slow(plane: Plane) -> Iterator[threading.Event]:
    """The kernel gives no memory before the event is set."""
    go, make = threading.Event(), plane.memory.map

    def wait_and_make(fd: int, length_bytes: int, /) -> int:
        assert go.wait(60)
        return make(fd, length_bytes)

    plane.memory.map = wait_and_make  # type: ignore[method-assign]
    try:
        yield go
    finally:
        go.set()


def test_a_map_that_waits_for_memory_holds_up_nothing_else_of_its_borrower(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        one, two = await borrower.map(2)
        with memory_is_slow(plane) as go:
            mapping = borrower.channel.ask(m.Map(device="swap", count=3))
            queued = borrower.channel.ask(m.Map(device="swap"))

            assert isinstance(await borrower.ask(m.KeepAlive()), m.FreeMem)
            assert isinstance(await borrower.ask(m.QueryMem()), m.FreeMem)
            assert await borrower.ask(m.Release(leases=(one.lease,))) == m.Ok()
            assert await borrower.ask(m.Done(lease=two.lease)) == m.Ok()
            assert borrower.notices == []
            go.set()

        answers = [await borrower.notice() for _ in range(2)]
        assert [answer.seq for answer in answers] == [mapping, queued]
        assert [len(mr_info(answer.message).leases) for answer in answers] == [3, 1]

    scenario(plane, body)


def mr_info(answer: m.Message) -> m.MrInfo:
    assert isinstance(answer, m.MrInfo), answer
    return answer


def test_slabs_mapped_for_a_borrower_that_is_gone_meanwhile_come_back_at_once(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map(2)
        with memory_is_slow(plane) as go:
            for _ in range(2):
                borrower.channel.ask(m.Map(device="swap"))
            await until(lambda: plane.donor._pool.changing, "a slab in the making")
            borrower.close()
            again = await plane.borrower(session=borrower.session)
            go.set()

        await until(lambda: plane.status().counters["released"] == 1, "the slab is back")
        assert len(plane.exporter.leases) == 2
        assert plane.status().counters["lent"] == 3
        assert isinstance(await again.ask(m.QueryMem()), m.FreeMem)

    scenario(plane, body)


def test_a_slab_taken_back_before_its_map_is_answered_is_not_in_the_answer(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower(features=m.Feature.SHM | m.Feature.MIGRATE)
        with memory_is_slow(plane) as go:
            asked = borrower.channel.ask(m.Map(device="swap", count=3))  # two stand ready, one is to be made
            lender = plane.donor.lender
            assert lender is not None
            await until(lambda: plane.donor._pool.changing, "a slab in the making")
            lender.end(lender.ledger.loans[0], Ending.REVOKED)
            go.set()

        answer = await borrower.notice()
        assert answer.seq == asked
        borrower.fds += borrower.channel.take_fds(borrower.channel.fds_waiting)
        assert [lease.lease for lease in mr_info(answer.message).leases] == [1, 2]
        assert len(borrower.fds) == 2

    scenario(plane, body)


def test_two_borrowers_of_a_node_that_map_at_once_stay_in_its_quota(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        one, two = await plane.borrower(), await plane.borrower()
        with memory_is_slow(plane) as go:
            for borrower in (one, two):
                borrower.channel.ask(m.Map(device="swap", count=5))
            await until(lambda: plane.donor._pool.changing == 2, "slabs in the making")
            go.set()

        answers = [(await borrower.notice()).message for borrower in (one, two)]
        assert sum(len(answer.leases) for answer in answers if isinstance(answer, m.MrInfo)) == 5

    scenario(Plane(tmp_path, {"quota_slabs_per_borrower": 5}), body)


def test_headroom_is_never_lent(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()

        leases = await borrower.map(m.LEASES_MAX)

        assert len(leases) * SLAB == TOTAL - HEADROOM - SLAB  # the last is the hysteresis
        assert code(await borrower.ask(m.Map(device="swap"))) == m.ErrorCode.NO_MEMORY
        free = await borrower.ask(m.QueryMem())
        assert isinstance(free, m.FreeMem)
        assert (free.free_slabs, free.used_bytes) == (0, len(leases) * SLAB)

    scenario(plane, body)


def test_a_borrower_on_this_host_gets_the_memory_itself(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower(features=m.Feature.SHM | m.Feature.MIGRATE)

        await borrower.map(2)

        assert [os.fstat(fd).st_size for fd in borrower.fds] == [SLAB, SLAB]
        assert plane.exporter.leases == {}
        with mmap.mmap(borrower.fds[0], SLAB) as view:
            view[:5] = b"hello"
        assert any(view[:5] == b"hello" for view in plane.memory.views.values())

    scenario(plane, body)


def test_a_quota_bounds_a_node_not_a_session(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        one, two = await plane.borrower(), await plane.borrower()
        other = await plane.borrower("b2")

        assert len(await one.map(2)) == 2
        assert len(await two.map(2)) == 1
        assert code(await two.ask(m.Map(device="swap"))) == m.ErrorCode.QUOTA
        assert len(await other.map(3)) == 3
        assert plane.status().refused["QUOTA"] == 1

    scenario(Plane(tmp_path, {"quota_slabs_per_borrower": 3}), body)


def test_a_slab_is_zero_before_another_borrower_gets_it(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        one = await plane.borrower()
        leases = await one.map(2)
        for view in plane.memory.views.values():
            view[:] = b"\xee" * SLAB
        await one.ask(m.Release(leases=tuple(lease.lease for lease in leases)))
        await until(lambda: [slab.state for slab in plane.status().slabs] == ["ready", "ready"], "slabs cleaned")

        two = await plane.borrower("b2")
        await two.map(2)

        assert all(view[:] == bytes(SLAB) for view in plane.memory.views.values())

    scenario(plane, body)


def test_a_released_shm_slab_is_emptied_even_for_who_keeps_its_memfd(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower(features=m.Feature.SHM)
        (lease,) = await borrower.map()
        os.pwrite(borrower.fds[0], b"secret", 0)

        assert await borrower.ask(m.Release(leases=(lease.lease,))) == m.Ok()
        await until(lambda: os.fstat(borrower.fds[0]).st_blocks == 0, "memfd punched")

        assert os.pread(borrower.fds[0], 6, 0) == bytes(6)

    scenario(plane, body)


def test_what_is_not_yours_cannot_be_released(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        one, two = await plane.borrower(), await plane.borrower("b2")
        (lease,) = await one.map()

        assert code(await two.ask(m.Release(leases=(lease.lease,)))) == m.ErrorCode.NO_LEASE
        assert code(await two.ask(m.Done(lease=lease.lease))) == m.ErrorCode.NO_LEASE
        assert len(plane.exporter.leases) == 1

    scenario(plane, body)


# ---- sessions


def test_a_silent_borrower_loses_its_lease_by_expiry(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map()
        sock = await plane.data(borrower.session, epoch=1)

        await plane.pass_time(EXPIRY_S + 2, step_s=1.0)

        assert plane.exporter.leases == {}
        assert (plane.status().sessions, plane.status().counters["expired"]) == ((), 1)
        assert plane.exporter.calls["fence"] == 1
        assert code(await borrower.end()) == m.ErrorCode.SESSION
        await until(lambda: plane.exporter.conns == {}, "data connections fenced")
        sock.close()

    scenario(plane, body)


def test_keepalive_keeps_a_lease(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map()

        for _ in range(5):
            await plane.pass_time(EXPIRY_S / 4, step_s=1.5)
            assert isinstance(await borrower.ask(m.KeepAlive()), m.FreeMem)

        assert len(plane.exporter.leases) == 1

    scenario(plane, body)


def test_a_borrower_that_comes_back_resumes_what_it_can_name(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        before = await plane.borrower(features=m.Feature.SHM | m.Feature.MIGRATE)
        kept, forgotten = await before.map(2)
        before.close()
        await plane.pass_time(5)

        after = await plane.borrower(session=before.session, features=m.Feature.SHM | m.Feature.MIGRATE)
        answer = await after.ask(
            m.Resume(device="swap", leases=((kept.lease, kept.token), (forgotten.lease, 1), (99, 99)))
        )

        assert after.session == before.session
        assert answer == m.MrInfo(leases=(kept,))
        after.fds += after.channel.take_fds(1)
        for _ in range(4):
            await plane.pass_time(EXPIRY_S / 3, step_s=2.0)
            await after.ask(m.KeepAlive())
        assert [slab.lease for slab in plane.status().slabs if slab.state == "lent"] == [kept.lease]
        assert plane.status().counters["expired"] == 1

    scenario(plane, body)


@pytest.mark.parametrize(
    ("lent", "resumed"),
    [(m.Feature.SHM, m.Feature.NONE), (m.Feature.NONE, m.Feature.SHM)],
    ids=["shm to tcp", "tcp to shm"],
)
def test_slabs_are_resumed_only_the_way_they_were_lent(plane: Plane, lent: m.Feature, resumed: m.Feature) -> None:
    async def body(plane: Plane) -> None:
        before = await plane.borrower(features=lent | m.Feature.MIGRATE)
        (lease,) = await before.map()
        before.close()

        after = await plane.borrower(session=before.session, features=resumed | m.Feature.MIGRATE)
        answer = await after.ask(m.Resume(device="swap", leases=((lease.lease, lease.token),)))

        assert answer == m.MrInfo(leases=())
        assert after.channel.fds_waiting == 0
        assert len(await after.map()) == 1

    scenario(plane, body)


def test_a_session_is_its_nodes_alone(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower("b1")

        with pytest.raises(PeerError, match="no such session") as caught:
            await plane.borrower("b2", session=borrower.session)

        assert caught.value.code == m.ErrorCode.SESSION
        with pytest.raises(PeerError, match="no such session"):
            await plane.data(borrower.session, epoch=1, node="b2")
        with pytest.raises(PeerError, match="no such session"):
            await plane.borrower("b1", session=12345)

    scenario(plane, body)


def test_a_newer_control_connection_replaces_the_older(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        old = await plane.borrower()

        new = await plane.borrower(session=old.session)

        assert code(await old.end()) == m.ErrorCode.SESSION
        assert isinstance(await new.ask(m.QueryMem()), m.FreeMem)
        assert [session.connected for session in plane.status().sessions] == [True]

    scenario(plane, body)


def test_a_data_connection_of_a_successor_fences_all_older_ones(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        old = [await plane.data(borrower.session, epoch=1) for _ in range(2)]
        await until(lambda: len(plane.exporter.conns[borrower.session]) == 2, "data connections handed over")

        new = await plane.data(borrower.session, epoch=2)

        assert [sock.recv(1) for sock in old] == [b"", b""]
        await until(lambda: len(plane.exporter.conns[borrower.session]) == 1, "successor handed over")
        with pytest.raises(PeerError, match="fenced"):
            await plane.data(borrower.session, epoch=1)
        for sock in (*old, new):
            sock.close()

    scenario(plane, body)


def test_a_data_connection_that_names_rdma_gets_a_queue_pair(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        await borrower.map()
        old = await plane.data(borrower.session, epoch=1)
        await until(lambda: borrower.session in plane.exporter.conns, "a data connection handed over")
        assert plane.status().slabs[0].transport == "tcp"

        sock = await plane.data(borrower.session, epoch=2, features=m.Feature.RDMA)
        await until(lambda: borrower.session in plane.exporter.pairs, "a queue pair made")

        assert plane.exporter.conns == {}  # the older one was fenced
        assert plane.status().slabs[0].transport == "rdma"
        assert plane.status().traffic["rdma_connections"] == 1
        old.close()
        sock.close()

    scenario(Plane(tmp_path, has_rdma=True), body)


def test_a_donor_without_rdma_agrees_to_none(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower(features=m.Feature.MIGRATE | m.Feature.RDMA)
        assert borrower.channel.connection.features == m.Feature.MIGRATE

        sock = await plane.data(borrower.session, epoch=1, features=m.Feature.RDMA)
        await until(lambda: borrower.session in plane.exporter.conns, "a data connection handed over")

        assert plane.exporter.pairs == {}
        sock.close()

    scenario(plane, body)


def test_slabs_are_offered_to_rdma_devices_while_they_stand(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        leases = await borrower.map(5)
        assert set(plane.exporter.offered) == set(plane.memory.views)
        assert {address for _, _, address, _ in plane.exporter.leases.values()} <= set(plane.exporter.offered)

        await borrower.ask(m.Release(leases=tuple(lease.lease for lease in leases)))
        await until(lambda: plane.donor.lender is not None and not plane.donor.lender.pool.changing, "slabs freed")

        assert set(plane.exporter.offered) == set(plane.memory.views)

    scenario(plane, body)


def test_a_data_connection_loses_no_byte_at_the_hand_over(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        sock = await plane.data(borrower.session, epoch=1)
        sock.sendall(b"FRQ1 and more")
        await until(lambda: plane.exporter.conns.get(borrower.session), "handed over")

        (served,) = plane.exporter.conns[borrower.session]

        assert served.recv(100) == b"FRQ1 and more"
        sock.close()

    scenario(plane, body)


# ---- recall


async def lend_all(plane: Plane, count: int) -> tuple[Borrower, tuple[m.Lease, ...]]:
    borrower = await plane.borrower()
    return borrower, await borrower.map(count)


def others_for(free_bytes: int, lent: int) -> int:
    """What programs must use for so much to be free, with `lent` slabs standing."""
    return TOTAL - lent * SLAB - free_bytes


def test_unmapped_slabs_go_before_anything_is_recalled(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 4)
        await plane.pass_time(2)
        assert len(plane.status().slabs) == 4 + 2

        await plane.squeeze(others_for(HEADROOM - 2 * SLAB, 6), seconds=5)

        assert len(plane.status().slabs) == 4
        assert plane.status().counters["migrations"] == 0
        assert borrower.notices == []

    scenario(plane, body)


def test_the_least_active_slab_is_recalled_with_time_to_move_it(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, leases = await lend_all(plane, 8)
        squeeze = asyncio.create_task(plane.squeeze(others_for(HEADROOM - SLAB // 2, 8), seconds=40))

        asked = await borrower.notice()
        assert isinstance(asked.message, m.CheckActivity)
        quiet = asked.message.leases[-1]
        rates = tuple((lease, 1.0 if lease == quiet else 50.0) for lease in asked.message.leases)
        borrower.channel.answer(asked.seq, m.Activity(activity=rates))
        told = await borrower.notice()

        assert isinstance(told.message, m.Migrate)
        assert told.message.leases == (quiet,)
        assert 3.0 < told.message.deadline_s <= 5.0
        assert await borrower.ask(m.Done(lease=quiet, moved_pages=10, dropped_pages=2)) == m.Ok()
        squeeze.cancel()
        counters = plane.status().counters
        assert (counters["migrated"], counters["moved_pages"], counters["dropped_pages"]) == (1, 10, 2)
        assert quiet not in plane.exporter.leases
        assert len(leases) == 8

    scenario(plane, body)


def test_a_recalled_slab_not_done_is_evicted_and_then_revoked(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 1)
        squeeze = asyncio.create_task(plane.squeeze(TOTAL - HEADROOM, seconds=60))

        first, second = await borrower.notice(), await borrower.notice()
        await until(lambda: plane.exporter.leases == {}, "lease revoked")
        squeeze.cancel()

        assert isinstance(first.message, m.Migrate)
        assert isinstance(second.message, m.Evict)
        assert second.message.deadline_s == pytest.approx(0.5)
        assert (plane.status().counters["revoked"], plane.status().counters["evictions"]) == (1, 1)
        assert code(await borrower.ask(m.Done(lease=first.message.leases[0]))) == m.ErrorCode.NO_LEASE

    scenario(plane, body)


def test_programs_that_stall_do_not_wait_for_a_recall_that_has_time(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 3)
        squeeze = asyncio.create_task(plane.squeeze(TOTAL - HEADROOM, seconds=90))
        first = await borrower.notice()
        assert isinstance(first.message, m.Migrate)
        assert first.message.deadline_s > 30

        plane.tell_pressure(full_pct=30.0)
        second = await borrower.notice()

        assert isinstance(second.message, m.Evict)
        assert second.message.leases == first.message.leases
        assert second.message.deadline_s <= 0.5
        await until(lambda: plane.exporter.leases == {}, "leases revoked")
        assert plane.clock.now_s() < 20
        squeeze.cancel()

    scenario(Plane(tmp_path, {"migrate_deadline_s": 60.0, "psi_full_pct_limit": 10.0}), body)


def test_a_borrower_tells_of_its_own_slabs_only(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        victim, liar = await plane.borrower("victim"), await plane.borrower("liar")
        (victims,) = await victim.map()
        (its,) = await liar.map()
        squeeze = asyncio.create_task(plane.squeeze(others_for(HEADROOM - SLAB // 2, 2), seconds=30))

        honest, asked = await victim.notice(), await liar.notice()
        victim.channel.answer(honest.seq, m.Activity(activity=((victims.lease, 50.0),)))
        await settled()
        liar.channel.answer(asked.seq, m.Activity(activity=((its.lease, 1.0), (victims.lease, 0.0))))
        told = await liar.notice()
        squeeze.cancel()

        assert isinstance(told.message, m.Migrate)
        assert told.message.leases == (its.lease,)

    scenario(Plane(tmp_path, {"preallocate_slabs": 0}), body)


@pytest.mark.parametrize("goes", [False, True], ids=["refuses", "goes"])
def test_a_borrower_that_does_not_tell_its_activity_costs_the_donor_nothing(plane: Plane, goes: bool) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 8)
        squeeze = asyncio.create_task(plane.squeeze(others_for(HEADROOM - SLAB // 2, 8), seconds=40))
        asked = await borrower.notice()
        assert isinstance(asked.message, m.CheckActivity)

        if goes:
            borrower.close()
        else:
            borrower.channel.answer(asked.seq, m.Error(code=m.ErrorCode.NOT_NOW, message="busy"))

        await until(lambda: len(plane.exporter.leases) == 7, "a slab taken all the same")
        squeeze.cancel()

    scenario(plane, body)


def test_done_after_evict_counts_as_evicted(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 1)
        squeeze = asyncio.create_task(plane.squeeze(TOTAL - HEADROOM, seconds=60))

        await borrower.notice()
        evict = await borrower.notice()
        squeeze.cancel()
        assert isinstance(evict.message, m.Evict)
        assert await borrower.ask(m.Done(lease=evict.message.leases[0])) == m.Ok()

        assert plane.status().counters["evicted"] == 1

    scenario(plane, body)


def test_a_borrower_that_cannot_migrate_is_told_to_evict(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower(features=m.Feature.NONE)
        await borrower.map(1)
        squeeze = asyncio.create_task(plane.squeeze(TOTAL - HEADROOM, seconds=60))

        told = await borrower.notice()
        squeeze.cancel()

        assert isinstance(told.message, m.Evict)

    scenario(plane, body)


def test_programs_get_their_memory_though_no_borrower_answers(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        await lend_all(plane, 60)

        await plane.squeeze(TOTAL - HEADROOM - 10 * SLAB, seconds=20)

        standing = len(plane.status().slabs)
        assert standing <= 10
        assert plane.status().memory.free_bytes >= HEADROOM
        assert plane.status().counters["revoked"] >= 50

    scenario(plane, body)


def test_silence_costs_a_borrower_its_slab_before_a_busy_one_that_answers(tmp_path: Path) -> None:
    async def body(plane: Plane) -> None:
        silent, talker = await plane.borrower("silent"), await plane.borrower("talker")
        silents = {lease.lease for lease in await silent.map(3)}
        talkers = {lease.lease for lease in await talker.map(3)}

        async def talk() -> None:
            while True:
                notice = await talker.notice()
                assert isinstance(notice.message, m.CheckActivity)
                rates = tuple((lease, 9e9) for lease in notice.message.leases)
                talker.channel.answer(notice.seq, m.Activity(activity=rates))

        talking = asyncio.create_task(talk())
        await plane.squeeze(others_for(HEADROOM - 3 * SLAB, 6), seconds=12)
        talking.cancel()

        assert set(plane.exporter.leases) == talkers
        assert not silents & set(plane.exporter.leases)

    scenario(Plane(tmp_path, {"evict_extra": 100}), body)


def test_one_that_comes_back_hears_what_it_missed(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, (lease,) = await lend_all(plane, 1)
        squeeze = asyncio.create_task(plane.squeeze(TOTAL - HEADROOM, seconds=3))
        first = await borrower.notice()
        squeeze.cancel()
        assert isinstance(first.message, m.Migrate)
        borrower.close()

        again = await plane.borrower(session=borrower.session)
        answer = await again.ask(m.Resume(device="swap", leases=((lease.lease, lease.token),)))
        told = await again.notice()

        assert answer == m.MrInfo(leases=(lease,))
        assert isinstance(told.message, m.Migrate)
        assert told.message.deadline_s <= first.message.deadline_s

    scenario(plane, body)


# ---- the end


def test_the_first_stop_recalls_everything_with_time_to_move(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, leases = await lend_all(plane, 3)

        plane.donor.stop()
        told = await borrower.notice()
        assert told.message == m.Migrate(leases=tuple(lease.lease for lease in leases), deadline_s=5.0)
        assert code(await borrower.ask(m.Map(device="swap"))) == m.ErrorCode.NOT_NOW
        for lease in leases:
            await borrower.ask(m.Done(lease=lease.lease, moved_pages=1))

        assert isinstance(await borrower.channel.next_event(), PeerClosed)
        assert plane.exporter.leases == {}

    scenario(plane, body)
    assert plane.exporter.closed
    assert plane.memory.views == {}


def test_nobody_is_waited_for_longer_than_the_deadlines_at_the_end(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 1)

        plane.donor.stop()
        assert isinstance((await borrower.notice()).message, m.Migrate)
        await plane.pass_time(6)

        last = await borrower.end()
        assert isinstance(last, m.Evict)

    scenario(plane, body)


def test_the_second_stop_ends_at_once(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower, _ = await lend_all(plane, 1)

        plane.donor.stop()
        await borrower.notice()
        plane.donor.stop()

        assert isinstance(await borrower.channel.next_event(), PeerClosed)

    scenario(plane, body)


def test_a_successor_takes_the_socket_of_a_killed_donor(plane: Plane) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left_behind:
        left_behind.bind(os.fspath(plane.path))
        left_behind.listen()

    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        assert isinstance(await borrower.ask(m.QueryMem()), m.FreeMem)

    scenario(plane, body)
    assert not plane.path.exists()


def test_a_meminfo_that_goes_away_leaves_the_last_sample(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        plane.folder.joinpath("meminfo").unlink()

        await plane.clock.advance(2.0)
        await settled()

        assert plane.status().counters["bad_samples"] >= 1
        assert plane.status().memory.total_bytes == TOTAL

    scenario(plane, body)


def test_a_farewell_ends_the_conversation_though_the_socket_stays_open(plane: Plane) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        borrower.channel._sock.sendall(borrower.channel.connection.farewell(m.ErrorCode.NOT_NOW, "enough"))

        assert isinstance(await borrower.channel.next_event(), PeerClosed)
        assert not plane.status().sessions[0].connected

    scenario(plane, body)


def test_a_picture_that_could_not_be_made_is_made_a_second_later(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("a fault of ours")

    async def body(plane: Plane) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("farside.daemon.main.donor_status", fail)
            await plane.pass_time(3)
        borrower = await plane.borrower()
        await plane.pass_time(2)

        assert [session.borrower for session in plane.donor._picture().sessions] == ["b1"]
        assert isinstance(await borrower.ask(m.QueryMem()), m.FreeMem)

    scenario(plane, body)


def test_a_fault_of_ours_in_one_connection_ends_nothing_else(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(plane: Plane) -> None:
        one, two = await plane.borrower(), await plane.borrower("b2")
        assert plane.donor.lender is not None
        monkeypatch.setattr(plane.donor.lender.ledger, "check_quota", None)

        one.channel.ask(m.Map(device="swap"))

        assert isinstance(await one.channel.next_event(), PeerClosed)
        assert isinstance(await two.ask(m.QueryMem()), m.FreeMem)

    scenario(plane, body)


# ---- codes of heads [H1]


@pytest.mark.parametrize("asks", [True, False], ids=["of now", "of before"])
def test_a_borrower_of_before_has_a_data_connection_without_codes(plane: Plane, asks: bool) -> None:
    async def body(plane: Plane) -> None:
        borrower = await plane.borrower()
        features = m.Feature.CODES if asks else m.Feature.NONE
        sock = await plane.data(borrower.session, epoch=1, features=features)
        await until(lambda: plane.exporter.conns.get(borrower.session), "handed over")

        assert len(plane.exporter.keys[borrower.session]) == (32 if asks else 0)
        sock.close()

    scenario(plane, body)


def test_no_borrower_on_this_host_gets_a_slab_on_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[L1] One that was taken back ended the borrower's engine by SIGBUS once others had its pages."""
    made = pool_module._sealed_memfd
    monkeypatch.setattr(pool_module, "_sealed_memfd", lambda size_bytes, *, is_huge: made(size_bytes, is_huge=False))
    plane = Plane(tmp_path, settings={"preallocate_slabs": 2})
    plane.donor._pool._huge_slabs_free = lambda: 1

    async def live() -> list[tuple[str, bool]]:
        async with running(plane):
            near = await plane.borrower("near", features=m.Feature.SHM | m.Feature.MIGRATE)
            far = await plane.borrower("far")
            await near.map(2)
            await far.map(1)
            return sorted((loan.session.node, loan.slab.is_huge) for loan in plane.donor._ledger.loans)

    assert asyncio.run(live()) == [("far", True), ("near", False), ("near", False)]

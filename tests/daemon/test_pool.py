"""Slabs: sealed, zeroed before anybody else gets them, and gone when their memory is wanted back."""

import asyncio
import errno
import mmap
import os
import resource
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from farside.daemon.slab.pool import Pool, Slab, _punch_out
from tests.daemon.fakes import FakeMemory

SLAB = 2 << 20


def make(memory: FakeMemory | None = None, count: int = 1) -> tuple[Pool, FakeMemory]:
    memory = memory or FakeMemory()
    pool = Pool(memory, slab_bytes=SLAB)
    asyncio.run(pool.grow(count))
    return pool, memory


def lend(pool: Pool) -> Slab:
    slab = pool.lend_nowait()
    assert slab is not None
    return slab


def resident_bytes(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def test_a_slab_made_is_ready_and_lent_once() -> None:
    pool, _ = make()

    slab = lend(pool)

    assert (pool.ready, pool.lent, pool.slabs_bytes) == (0, 1, SLAB)
    assert pool.lend_nowait() is None
    assert slab.length_bytes == SLAB
    pool.close()


def test_a_slab_that_comes_back_is_replaced_by_one_of_zeros() -> None:
    pool, memory = make()
    slab = lend(pool)
    memory.views[slab.address][:4] = b"dirt"

    asyncio.run(pool.take_back(slab, keep=True))
    other = lend(pool)

    assert memory.views[other.address][:] == bytes(SLAB)
    pool.close()


def test_a_memfd_that_a_borrower_keeps_is_empty_and_never_lent_again() -> None:
    pool, _ = make()
    slab = lend(pool)
    kept_by_borrower = os.dup(slab.fd)
    with mmap.mmap(kept_by_borrower, SLAB) as view:
        view[:4] = b"mine"

        asyncio.run(pool.take_back(slab, keep=True))

        assert resident_bytes(kept_by_borrower) == 0
        assert view[:4] == bytes(4)
    assert not os.path.sameopenfile(lend(pool).fd, kept_by_borrower)
    pool.close()
    os.close(kept_by_borrower)


def test_other_threads_run_while_a_slab_is_emptied() -> None:
    memory = FakeMemory()
    pool = Pool(memory, slab_bytes=64 << 20)

    def turns_meanwhile() -> int:
        """How often another thread had a turn while the pages went."""
        asyncio.run(pool.grow(1))
        slab = lend(pool)
        memory.views[slab.address][:] = b"x" * len(memory.views[slab.address])
        begin, end = threading.Event(), threading.Event()
        turns: list[None] = []

        def take_turns() -> None:
            begin.wait()
            while not end.wait(0.0002):
                turns.append(None)

        other = threading.Thread(target=take_turns)
        other.start()
        begin.set()
        _punch_out(slab)
        count = len(turns)
        end.set()
        other.join()
        asyncio.run(pool.take_back(slab, keep=False))
        return count

    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # then only a call that lets go of Python's lock lets another thread run
    try:
        # A few for the short calls around it; dozens for one of 10 ms that holds nobody up.
        assert any(turns_meanwhile() > 5 for _ in range(20))
    finally:
        sys.setswitchinterval(interval_s)


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many more files, in the body."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    holes = [os.dup(0) for _ in range(100)]  # so that no number far below the limit is free
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in holes:
            os.close(fd)


def test_growing_stops_where_descriptors_end() -> None:
    async def scenario() -> None:
        pool = Pool(FakeMemory(), slab_bytes=SLAB)
        await pool.grow(1)  # the thread that makes slabs is there now
        with descriptors_left(4):
            made = await pool.grow(5)  # each takes a memfd, and here a second for the stand-in's map

            assert (made, pool.changing) == (2, 0)
            pool.close()
            assert await pool.grow(0) == 0

    asyncio.run(scenario())


def test_a_slab_that_cannot_be_sealed_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "not a whole number of huge pages")

    pool = Pool(FakeMemory(), slab_bytes=SLAB)
    monkeypatch.setattr(os, "ftruncate", refuse)
    before = len(os.listdir("/proc/self/fd"))

    assert asyncio.run(pool.grow(1)) == 0
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_slab_not_kept_gives_its_memory_back_at_once() -> None:
    pool, memory = make()
    slab = lend(pool)

    asyncio.run(pool.take_back(slab, keep=False))

    assert (pool.slabs_bytes, memory.views) == (0, {})


def test_ready_slabs_are_released_and_lent_ones_are_not() -> None:
    pool, _ = make(count=3)
    lend(pool)

    released = asyncio.run(pool.release_ready(5))

    assert (released, pool.ready, pool.lent) == (2, 0, 1)
    pool.close()


def test_growing_stops_where_the_kernel_has_no_more() -> None:
    pool, memory = make(FakeMemory(limit=3 * SLAB), count=0)

    made = asyncio.run(pool.grow(5))

    assert (made, pool.ready, pool.changing) == (3, 3, 0)
    pool.close()
    assert memory.views == {}


def test_a_slab_that_cannot_be_renewed_is_gone() -> None:
    memory = FakeMemory()
    pool, _ = make(memory)
    slab = lend(pool)
    memory.limit = 0

    asyncio.run(pool.take_back(slab, keep=True))

    assert pool.slabs_bytes == 0


def test_slabs_in_the_making_count_as_memory() -> None:
    async def scenario() -> None:
        pool = Pool(FakeMemory(), slab_bytes=SLAB)
        growing = asyncio.create_task(pool.grow(1))
        await asyncio.sleep(0)

        assert (pool.changing, pool.slabs_bytes) == (1, SLAB)
        await growing
        assert (pool.changing, pool.ready) == (0, 1)
        pool.close()

    asyncio.run(scenario())


def test_a_slab_that_comes_back_after_the_end_is_freed() -> None:
    async def scenario() -> None:
        memory = FakeMemory()
        pool = Pool(memory, slab_bytes=SLAB)
        growing = asyncio.create_task(pool.grow(1))
        await asyncio.sleep(0)
        pool.close()
        await growing

        assert memory.views == {}

    asyncio.run(scenario())


def test_a_slab_on_its_way_out_is_freed_though_who_gave_it_back_is_cancelled() -> None:
    async def scenario() -> None:
        loop, go, busy = asyncio.get_running_loop(), threading.Event(), threading.Event()
        executor = ThreadPoolExecutor(max_workers=1)
        loop.set_default_executor(executor)
        memory = FakeMemory()
        pool = Pool(memory, slab_bytes=SLAB)
        await pool.grow(1)
        executor.submit(busy.set)
        executor.submit(go.wait)
        busy.wait()
        taking = asyncio.create_task(pool.take_back(lend(pool), keep=False))
        await asyncio.sleep(0)

        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        pool.close()
        go.set()
        await loop.shutdown_default_executor()

        assert memory.views == {}

    asyncio.run(scenario())


def test_a_borrower_cannot_shrink_or_grow_or_unseal_what_it_was_passed() -> None:
    pool, _ = make()
    slab = lend(pool)

    for length in (0, SLAB // 2, 2 * SLAB):
        with pytest.raises(PermissionError):
            os.ftruncate(slab.fd, length)
    pool.close()

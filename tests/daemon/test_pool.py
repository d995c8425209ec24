"""Slabs: sealed, zeroed before anybody else gets them, and gone when their memory is wanted back."""

import asyncio
import mmap
import os

import pytest

from farside.daemon.pool import Pool, Slab
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


def test_a_slab_lent_over_a_network_comes_back_as_zeros() -> None:
    pool, memory = make()
    slab = lend(pool)
    memory.views[slab.address][:4] = b"dirt"

    asyncio.run(pool.take_back(slab, keep=True))
    again = lend(pool)

    assert again is slab
    assert memory.views[again.address][:] == bytes(SLAB)
    pool.close()


def test_a_memfd_that_was_passed_out_is_punched_and_never_lent_again() -> None:
    pool, _ = make()
    slab = lend(pool)
    slab.was_passed = True
    kept_by_borrower = os.dup(slab.fd)
    with mmap.mmap(kept_by_borrower, SLAB) as view:
        view[:4] = b"mine"

        asyncio.run(pool.take_back(slab, keep=True))

        assert resident_bytes(kept_by_borrower) == 0
        assert view[:4] == bytes(4)
    assert pool.slabs_bytes == 0
    os.close(kept_by_borrower)


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


def test_a_borrower_cannot_shrink_or_grow_or_unseal_what_it_was_passed() -> None:
    pool, _ = make()
    slab = lend(pool)

    for length in (0, SLAB // 2, 2 * SLAB):
        with pytest.raises(PermissionError):
            os.ftruncate(slab.fd, length)
    pool.close()

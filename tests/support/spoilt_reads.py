"""A client that reads and writes while the donor of its pages spoils some of them; each spoilt page must be counted.

`python -m tests.support.spoilt_reads TRANSPORT PAGES FOLDER` prints figures as JSON when so many pages came from the
donor, and ends with an error at the first wrong byte, or where the borrower has not counted exactly what was spoilt.

A process of its own, so that RDMA can go over the adapter of tests/engine/fake_verbs.c: with that in LD_PRELOAD the
engine of Farside as it is built, the borrower's and the donor's side of it, reads and writes by one-sided operations.
"""

import ctypes
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.support.nbd_client import Command, NbdClient
from tests.support.rig import GRANULE_BYTES, PAGE_BYTES, Rig, Slab, default_params

GRANULES = 32
PAGES = GRANULES * GRANULE_BYTES // PAGE_BYTES
PAGES_A_CHUNK = 64
CHUNKS = PAGES // PAGES_A_CHUNK
CHUNK_BYTES = PAGES_A_CHUNK * PAGE_BYTES
AHEAD = 4  # chunks that are asked for before the first of them has come
FABRIC = "127.0.0.1"  # the adapter takes any address

Place = tuple[Slab, int]
"""The slab of a granule, and the extent in it."""
Page = tuple[Slab, int]
"""The slab of a page, and the byte in it."""


class Spoiler:
    """The donor's root, who knows where each page lies and when it is asked for.

    Attributes:
        done: How many pages were spoilt so far, by the way.
    """

    def __init__(self, places: Sequence[Place], rng: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._places = places
        self._rng = rng
        self._first: dict[int, bytes] = {}  # what pages were when they were first looked at
        self._ways: dict[str, Callable[[int], bytes]] = {
            "flips a bit": self._flipped,
            "moves": lambda page: self._content(self._other(page)),
            "replays": lambda page: self._first[page],
            "mixes two versions": lambda page: self._first[page][: PAGE_BYTES // 2] + self._content(page)[2048:],
            "forges": lambda _: self._rng.randbytes(PAGE_BYTES),
            "zeroes": lambda _: bytes(PAGE_BYTES),
        }

    def spoil_one(self, page: int) -> Sequence[int]:
        """Spoils this page; returns it, unless the way that chance chose would have left it as it was."""
        content = self._content(page)
        self._first.setdefault(page, content)
        way = self._rng.choice(list(self._ways))
        lie = self._ways[way](page)
        if lie == content:
            return ()
        self._put(page, lie, way)
        return (page,)

    def swap(self, page: int, other: int) -> Sequence[int]:
        """Puts each of two pages into the other's place."""
        here, there = self._content(page), self._content(other)
        self._put(page, there, "swaps")
        self._put(other, here, "swaps")
        return (page, other)

    def _flipped(self, page: int) -> bytes:
        content, at = self._content(page), self._rng.randrange(PAGE_BYTES)
        return content[:at] + bytes([content[at] ^ 1 << self._rng.randrange(8)]) + content[at + 1 :]

    def _other(self, page: int) -> int:
        return (page + self._rng.randrange(1, PAGES)) % PAGES

    def _place(self, page: int) -> Page:
        slab, extent = self._places[page * PAGE_BYTES // GRANULE_BYTES]
        return slab, extent * GRANULE_BYTES + page * PAGE_BYTES % GRANULE_BYTES

    def _content(self, page: int) -> bytes:
        slab, at = self._place(page)
        return bytes(slab.memory[at : at + PAGE_BYTES])

    def _put(self, page: int, content: bytes, way: str) -> None:
        slab, at = self._place(page)
        slab.memory[at : at + PAGE_BYTES] = content
        self.done[way] += 1


class Reader:
    """The client: reads all pages again and again, compares each, and writes new content into some."""

    def __init__(self, client: NbdClient, spoiler: Spoiler, rng: random.Random) -> None:
        self._client, self._spoiler, self._rng = client, spoiler, rng
        self._right = bytearray(PAGES * PAGE_BYTES)

    def fill(self) -> None:
        """Writes every page."""
        for chunk in range(CHUNKS):
            self._client.wait(self._write(chunk * PAGES_A_CHUNK, PAGES_A_CHUNK))

    def read_all(self) -> None:
        """Reads every page once. Those of a chunk are spoilt just before it is asked for, with others on their way."""
        asked: list[tuple[int, Sequence[int]]] = []
        writes: list[int] = []
        for chunk in range(CHUNKS + AHEAD):
            if chunk < CHUNKS:
                spoilt = self._spoil(chunk)
                asked.append((self._client.send(Command.READ, chunk * CHUNK_BYTES, CHUNK_BYTES), spoilt))
            if chunk >= AHEAD:
                cookie, spoilt = asked[chunk - AHEAD]
                self._compare(chunk - AHEAD, self._client.wait(cookie).data)
                # Each spoilt page has a good copy at the donor again, and one more page a new content.
                some = (chunk - AHEAD) * PAGES_A_CHUNK + self._rng.randrange(PAGES_A_CHUNK)
                writes += [self._write(page, 1) for page in {*spoilt, some}]
        for cookie in writes:
            assert self._client.wait(cookie).error == 0

    def _spoil(self, chunk: int) -> Sequence[int]:
        here = range(chunk * PAGES_A_CHUNK, (chunk + 1) * PAGES_A_CHUNK)
        page, other, third = self._rng.sample(here, 3)
        if self._rng.random() < 0.1:
            return [*self._spoiler.swap(page, other), *self._spoiler.spoil_one(third)]
        return self._spoiler.spoil_one(page) if self._rng.random() < 0.5 else ()

    def _write(self, page: int, count: int) -> int:
        content = self._rng.randbytes(count * PAGE_BYTES)
        self._right[page * PAGE_BYTES : (page + count) * PAGE_BYTES] = content
        return self._client.send(Command.WRITE, page * PAGE_BYTES, data=content)

    def _compare(self, chunk: int, data: bytes) -> None:
        if data != self._right[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES]:
            raise AssertionError(f"a wrong byte in pages {chunk * PAGES_A_CHUNK} to {(chunk + 1) * PAGES_A_CHUNK}")


def attacked(rig: Rig, pages: int) -> dict[str, object]:
    """Figures of an attack during which at least ``pages`` pages came from the donor."""
    slabs = rig.donors_with_slabs(1, granules=0)
    slabs += [rig.add_slab(0) for _ in range(GRANULES * GRANULE_BYTES // rig.params.slab_bytes - 1)]
    places = [(slab := slabs[granule % len(slabs)], rig.map(granule, slab)) for granule in range(GRANULES)]
    rng = random.Random(16)
    spoiler = Spoiler(places, rng)
    reader = Reader(rig.connect(), spoiler, rng)
    reader.fill()
    rig.until_on_disk()
    while rig.device.stats().pages_in_remote < pages:
        reader.read_all()
        # What is kept for the disk is read from there, and nobody would see what became of it at the donor.
        rig.until_on_disk()
        rig.events().clear()
        counted = rig.device.stats().checksum_errors
        assert counted == spoiler.done.total(), f"{spoiler.done.total()} pages were spoilt, {counted} were counted"
    stats, donor = rig.device.stats(), rig.exporters[0].stats()
    assert (stats.pages_lost, stats.requests_error, stats.link_errors) == (0, 0, 0)
    return {
        "pages read from the donor": stats.pages_in_remote, "wrong bytes": 0,
        "pages spoilt": spoiler.done.total(), "pages counted as damaged": stats.checksum_errors,
        **{f"donor {way}": count for way, count in sorted(spoiler.done.items())},
        "reads that the donor's processor served": donor.reads, "connections by RDMA": donor.rdma_connections,
    }  # fmt: skip


def main(transport: str, pages: int, folder: Path) -> None:
    """The process itself."""
    adapter = ctypes.CDLL(None) if transport == "rdma" else None
    if adapter is not None:
        adapter.fake_reset()  # of LD_PRELOAD
        adapter.fake_broken.restype = ctypes.c_char_p
    # Patient: of a read that is late for its donor the disk's copy would be taken, and the page be written before the
    # donor's has come and been looked at.
    params = default_params(workers=1, hedge_us=5_000_000, deadline_ms=30_000)
    with Rig(folder, params, transport=transport, fabric=FABRIC) as rig:
        told = attacked(rig, pages)
    if adapter is not None:
        assert adapter.fake_broken() == b"", adapter.fake_broken()
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))

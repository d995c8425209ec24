"""Someone between a borrower's process and a donor's spoils frames: each is counted, and no wrong byte read [H1]."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fault.donor_and_borrower import Pair, donor_and_borrower
from tests.support.nbd_client import Command, NbdClient
from tests.support.ports import free_port
from tests.support.shadow import PAGE_BYTES, Shadow, stamped_pages
from tests.support.waiting import until
from tests.support.wire_relay import TO_DONOR, WAYS, Frame, Relay, Stream, What, swap_pages

REGION_PAGES = 2048  # 8 MiB: one slab
RUN_PAGES = 16
RUN_BYTES = RUN_PAGES * PAGE_BYTES
RUNS = REGION_PAGES // RUN_PAGES
WRITES_A_ROUND = 48
AHEAD = 16  # requests without an answer
SKIP_MAX = 40  # a round has more frames than that of each kind
NO_READ = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the borrower counts that someone on the wire can cause: wrong pages, data connections and sessions ended."""

    pages: int
    links: int
    sessions: int

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> "Counts":
        """As its status says."""
        errors = told["errors"]
        return cls(pages=errors["checksum"], links=errors["link"], sessions=told["counters"]["sessions_broken"])

    def __sub__(self, before: "Counts") -> "Counts":
        pages, links, sessions = (now - then for now, then in zip(astuple(self), astuple(before), strict=True))
        return Counts(pages=pages, links=links, sessions=sessions)

    def has(self, what: What, pages: int) -> bool:
        """Whether this is a count of one frame spoilt in this way, which had so many wrong pages in it."""
        if not pages:
            return bool(self.links if what[0] == "data" else self.sessions)
        # Of two frames the first is enough to have the donor left out, and what the second spoilt there not read again.
        return self.pages >= (pages // 2 if what[1] == "swaps pages" else pages)


def test_two_frames_with_equal_pages_are_not_counted_as_spoilt() -> None:
    """The test then waited for a wrong page that there was not."""

    def is_spoilt(*pages: bytes) -> bool:
        stream = Stream(rng=random.Random(1), way=TO_DONOR, kept={})
        frames = [Frame(head=b"head", payload=page, place=(1, 0, PAGE_BYTES)) for page in pages]
        return [swap_pages(stream, frame).is_spoilt for frame in frames][-1]

    assert not is_spoilt(bytes(PAGE_BYTES), bytes(PAGE_BYTES))
    assert is_spoilt(bytes(PAGE_BYTES), b"x" * PAGE_BYTES)


class Attack:
    """A client that writes and reads in rounds, and a relay that spoils a frame of one of them."""

    def __init__(self, pair: Pair, relay: Relay, client: NbdClient) -> None:
        self._pair, self._relay, self._client = pair, relay, client
        self._rng = random.Random(16)
        self._shadow = Shadow(REGION_PAGES * PAGE_BYTES)

    def round(self) -> None:
        """Writes some pages, then reads and compares all."""
        self._wait_for(self._writes())
        # What is kept for the disk is read from there, and not from the donor.
        until(lambda: not self._pair.borrower.status()["pending_bytes"], what="all of it on the disk", every_s=0.002)
        self._wait_for(self._reads())

    def until(self, look: Callable[[], bool], what: str) -> None:
        """Works until it is true."""

        def worked() -> bool:
            self.round()
            return look()

        until(lambda: look() or worked(), what=what, deadline_s=120, every_s=0.001)

    def spoil(self, what: What) -> None:
        """Has one frame spoilt in this way under load, which the borrower counts as what it is.

        Of wrong pages it counts no more than there were; of links and sessions that ended, at least one.
        """
        before, pages = self._counts(), self._relay.pages
        # Control connections have a frame a second or two.
        self._relay.arm(what, skip=self._rng.randrange(SKIP_MAX) if what[0] == "data" else 0)
        self.until(lambda: not self._relay.is_armed, f"a frame for: {' '.join(what)}")
        spoilt = self._relay.pages - pages
        # A page that was spoilt on its way to the donor is found when it is read.
        self.until(lambda: (self._counts() - before).has(what, spoilt), f"a count of: {' '.join(what)}")
        self.calm()
        assert (self._counts() - before).pages <= spoilt, what

    def calm(self) -> None:
        """Returns when pages travel, and all that was spoilt before has been counted."""
        seen: Counts | None = None

        def is_calm() -> bool:
            nonlocal seen
            self._pair.trust_again()
            self.round()
            told = self._pair.borrower.status()
            before, seen = seen, Counts.of(told)
            lends = any(slab["state"] == "live" for slab in told["slabs"])
            return before == seen and lends and told["donors"][0]["state"] == "up"

        until(is_calm, what="a calm", deadline_s=120, every_s=0.001)

    def _counts(self) -> Counts:
        return Counts.of(self._pair.borrower.status())

    def _wait_for(self, requests: Iterator[tuple[int, int]]) -> None:
        sent: list[tuple[int, int]] = []
        for request in requests:
            sent.append(request)
            if len(sent) == AHEAD:
                self._take(*sent.pop(0))
        for request in sent:
            self._take(*request)

    def _take(self, cookie: int, at: int) -> None:
        reply = self._client.wait(cookie)
        assert reply.error == 0
        if at != NO_READ:
            self._shadow.check(at, reply.data)

    def _writes(self) -> Iterator[tuple[int, int]]:
        # No page twice in a round: two writes of it on their way at once may land in either order.
        for run in self._rng.sample(range(RUNS), WRITES_A_ROUND):
            data = stamped_pages(self._rng, self._rng.choice((1, 4, RUN_PAGES)))
            self._shadow.write(run * RUN_BYTES, data)
            yield self._client.send(Command.WRITE, run * RUN_BYTES, data=data), NO_READ

    def _reads(self) -> Iterator[tuple[int, int]]:
        for at in range(0, RUNS * RUN_BYTES, RUN_BYTES):
            yield self._client.send(Command.READ, at, RUN_BYTES), at


@contextmanager
def attacked(folder: Path) -> Iterator[tuple[Pair, Relay, Attack]]:
    """Borrower and donor with a relay between them, by which the first pages have travelled."""
    port = free_port()
    relay = Relay(port, seed=16)
    with donor_and_borrower(folder, listen=f"tcp:127.0.0.1:{port}", control=f"tcp:127.0.0.1:{relay.port}") as pair:
        attack = Attack(pair, relay, pair.borrower.client())
        attack.until(lambda: bool(pair.borrower.status()["pages_out"]["remote"]), "pages at the donor")
        yield pair, relay, attack
    relay.close()


@pytest.mark.long
@pytest.mark.parametrize("times", [1, pytest.param(8, marks=pytest.mark.timeout(900), id="eight times each way")])
def test_whatever_someone_on_the_wire_spoils_is_counted_and_no_wrong_byte_is_read(
    times: int, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with attacked(tmp_path) as (pair, relay, attack):
        assert pair.of_donor()["has_codes"]
        attack.calm()
        for _ in range(times):
            for what in WAYS:
                attack.spoil(what)
        attack.round()
        told = pair.borrower.status()

    assert relay.done == dict.fromkeys(WAYS, times)
    assert (told["errors"]["requests"], told["errors"]["pages_lost"], told["counters"]["failovers"]) == (0, 0, 0)
    record_property(
        "told",
        {
            "frames spoilt": relay.done.total(), "ways": len(WAYS), "wrong bytes": 0,
            "pages wrong in them behind right heads": relay.pages,
            "pages read from the donor": told["pages_in"]["remote"],
            "copies counted as damaged": told["errors"]["checksum"],
            "data connections counted as broken": told["errors"]["link"],
            "sessions counted as broken": told["counters"]["sessions_broken"],
        },
    )  # fmt: skip

"""Listings that are kept are those that would be made anew, whatever happens to jobs and nodes."""

import json
from collections.abc import Iterable, Mapping

import msgspec
import pytest
from hypothesis import Phase as Part
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec import structs

from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.view import listing as module
from farside.scheduler.manager.view.json_blocks import Blocks
from farside.scheduler.manager.view.listing import IDLE_S, JobListing, JobListings, NodeListing
from farside.scheduler.manager.view.view import show_job, show_node
from tests.live.facts import facts
from tests.live.test_live_machine import Machine
from tests.live.world import World, rules

USERS = ("ann", "bob", "carl")
ALL = 100_000
whose = st.sampled_from([None, *USERS])


def encoded(what: str, rows: Iterable[object]) -> bytes:
    """As an answer that is made in one piece."""
    return msgspec.json.encode({what: list(rows)})


def made_anew(world: World, user: str | None, limit: int = ALL, *, everything: bool) -> bytes:
    state = world.state
    jobs = state.jobs.values() if everything else state.live_jobs()
    return encoded("jobs", [show_job(job) for job in jobs if user in (None, job.user)][-limit:])


def renewed(listing: JobListing) -> JobListing:
    while listing.renew():
        pass
    return listing


class Listed(Machine):
    """The same machine, with people who look at its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.listings = JobListings()
        self.seen: dict[str, bytes] = {}
        self.small = pytest.MonkeyPatch()
        self.small.setattr(module, "JOBS", 3)
        self.small.setattr(module, "STEP", 2)

    @rule(user=st.sampled_from(USERS), count=st.integers(1, 9))
    def somebody_submits(self, user: str, count: int) -> None:
        self.world.submit(1, user=user, count=count)

    @rule(user=whose, everything=st.booleans(), limit=st.sampled_from([1, 2, 3, 4, 7, ALL]))
    def look(self, user: str | None, everything: bool, limit: int) -> None:
        self.look_at(user, everything, limit)

    def look_at(self, user: str | None, everything: bool, limit: int) -> None:
        listing = renewed(self.listing(user, everything))

        body = b"".join(listing.pieces(limit))

        assert body == made_anew(self.world, user, limit, everything=everything)
        mark = f"{listing.mark}-{limit}"
        assert self.seen.setdefault(mark, body) == body
        jobs = json.loads(made_anew(self.world, user, everything=everything))["jobs"]
        for one in USERS:
            assert listing.has_others_than(one) == any(job["user"] != one for job in jobs)

    @rule(user=whose, everything=st.booleans(), steps=st.integers(0, 3))
    def begin_to_look(self, user: str | None, everything: bool, steps: int) -> None:
        """Who has looked in part when something else happens."""
        listing = self.listing(user, everything)
        for _ in range(steps):
            listing.renew()

    def listing(self, user: str | None, everything: bool) -> JobListing:
        return self.listings.of(self.world.state, user, everything=everything, now_s=0.0)

    def teardown(self) -> None:
        try:
            for user in (None, *USERS) if hasattr(self, "world") else ():
                for everything in (False, True):
                    self.look_at(user, everything, ALL)
        finally:
            self.small.undo()


Listed.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None, phases=(Part.generate,))
TestListed = Listed.TestCase


def numbered(number: int) -> dict[str, int]:
    return {"number": number}


@given(
    st.integers(1, 5),
    st.lists(st.tuples(st.integers(0, 20), st.none() | st.integers(0, 3) | st.just("answer")), max_size=60),
    st.integers(0, 25),
)
def test_blocks_are_what_was_put_last_in_the_order_of_places(
    size: int, steps: list[tuple[int, int | str | None]], last: int
) -> None:
    blocks, model = Blocks(numbered, size), dict[int, int]()

    for place, what in [*steps, (0, "answer")]:
        if isinstance(what, int):
            assert blocks.put(place, what) == (place not in model)
            model[place] = what
        elif what is None:
            assert blocks.drop(place) == (model.pop(place, None) is not None)
        else:
            while blocks.renew():
                pass
            rows = [numbered(model[place]) for place in sorted(model)]
            assert b"".join(blocks.pieces("rows", last)) == encoded("rows", rows[max(0, len(rows) - last) :])

    assert len(blocks) == len(model)


def test_a_change_makes_one_block_anew_and_leaves_the_bytes_of_the_others() -> None:
    blocks: Blocks[int] = Blocks(numbered, 2)
    for place in range(6):
        blocks.put(place, place)
    while blocks.renew():
        pass
    before = blocks.pieces("rows", ALL)

    blocks.put(3, 30)

    assert [blocks.renew(), blocks.renew()] == [True, False]
    first, _, last = blocks.pieces("rows", ALL)
    assert json.loads(first + b"]}") == {"rows": [{"number": 0}, {"number": 1}]}
    assert last == before[2]
    version = blocks.version
    blocks.put(3, 30)
    assert blocks.version == version


def fresh_nodes(nodes: Mapping[str, LiveNode], reserved: Mapping[str, str]) -> bytes:
    return encoded("nodes", [show_node(node, reserved.get(name, "")) for name, node in sorted(nodes.items())])


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["n1", "n10", "n2", "n3"]), st.tuples(st.booleans(), st.sampled_from(["", "m1", "m2"]))
        ),
        max_size=8,
    )
)
def test_nodes_are_listed_as_they_are_now_with_what_they_are_reserved_for(
    looks: list[dict[str, tuple[bool, str]]],
) -> None:
    listing, nodes, seen = NodeListing(), dict[str, LiveNode](), dict[str, bytes]()

    for look in looks:
        for name, (is_up, _) in look.items():
            node = nodes.get(name) or LiveNode(name=name, address="h", **facts())
            nodes[name] = node if node.is_up == is_up else structs.replace(node, is_up=is_up, lost_reason="gone")
        reserved = {name: why for name, (_, why) in look.items() if why}

        listing.look(nodes, reserved)
        while listing.renew():
            pass
        body = b"".join(listing.pieces())

        assert body == fresh_nodes(nodes, reserved)
        assert seen.setdefault(listing.mark, body) == body


def test_a_listing_that_nobody_looks_at_is_dropped_and_others_stay() -> None:
    world, listings = World(rules()), JobListings()
    world.submit()
    for now_s in (1.0, IDLE_S, IDLE_S + 2.0):
        kept = listings.of(world.state, None, everything=False, now_s=now_s)
    listings.of(world.state, "ann", everything=False, now_s=2 * IDLE_S)

    again = listings.of(world.state, None, everything=False, now_s=2 * IDLE_S + 1.0)
    assert again is kept
    assert len(listings) == 2
    listings.of(world.state, None, everything=False, now_s=4 * IDLE_S)
    assert len(listings) == 1

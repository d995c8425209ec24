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

from farside.agent.gpu_share import Share
from farside.scheduler.manager.model.record import LiveJob, LiveNode
from farside.scheduler.manager.view import listing as module
from farside.scheduler.manager.view.json_blocks import Blocks
from farside.scheduler.manager.view.listing import IDLE_S, JobListing, JobListings, NodeListing, NodeRows
from farside.scheduler.manager.view.memory import NodeMemory
from farside.scheduler.manager.view.partition import Whose
from farside.scheduler.manager.view.sight import Sight
from farside.scheduler.manager.view.view import Node, show_job, show_node
from tests.live.facts import facts, gpus
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


def fresh_nodes(nodes: Mapping[str, LiveNode], reserved: Mapping[str, str], sight: Sight) -> bytes:
    rows = [show_node(node, reserved.get(name, ""), sight=sight) for name, node in sorted(nodes.items())]
    return encoded("nodes", rows)


def jobs_of_users() -> Mapping[str, LiveJob]:
    """Two jobs of each user; 7 is nobody's that is known."""
    world = World(rules())
    for user in USERS * 2:
        world.submit(user=user)
    return world.state.jobs


JOBS = jobs_of_users()
SIGHTS = tuple(Sight(jobs=JOBS, user=user) for user in (None, *USERS, "eve"))


def body_of(listing: NodeListing, sight: Sight) -> tuple[str, bytes]:
    seen = listing.seen_by(sight)
    while seen.renew():
        pass
    return seen.mark, b"".join(seen.pieces())


def held(node: LiveNode, jobs: Iterable[str]) -> LiveNode:
    shares = tuple(Share(gpu=at, holder=(job, 1), node=node.name) for at, job in enumerate(jobs))
    return node if node.shares == shares else structs.replace(node, shares=shares)


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["n1", "n10", "n2", "n3"]),
            st.tuples(
                st.booleans(), st.sampled_from(["", "m1", "m2"]), st.lists(st.sampled_from([*JOBS, "7"]), max_size=3)
            ),
        ),
        max_size=8,
    )
)
def test_nodes_are_listed_as_each_sees_them_now_with_what_they_are_reserved_for(
    looks: list[dict[str, tuple[bool, str, list[str]]]],
) -> None:
    """[L5] Of others' jobs there is no number in it, and what one knows is no answer to another."""
    with pytest.MonkeyPatch.context() as small:
        small.setattr(module, "NODES", 2)
        small.setattr(module, "OWN", 1)
        listing, nodes, known = NodeListing(), dict[str, LiveNode](), dict[str, bytes]()

        for look in looks:
            for name, (is_up, _, jobs) in look.items():
                node = nodes.get(name) or LiveNode(name=name, address="h", **facts(gpus=gpus(3)))
                node = node if node.is_up == is_up else structs.replace(node, is_up=is_up, lost_reason="gone")
                nodes[name] = held(node, jobs)
            reserved = {name: why for name, (_, why, _) in look.items() if why}

            listing.look(nodes, reserved, jobs=JOBS)

            for sight in SIGHTS:
                mark, body = body_of(listing, sight)
                assert body == fresh_nodes(nodes, reserved, sight)
                assert known.setdefault(mark, body) == body
            assert len({body_of(listing, sight)[0] for sight in SIGHTS}) == len(SIGHTS)


def test_users_share_the_bytes_of_all_nodes_without_jobs_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NODES", 1)
    made: list[tuple[str, str | None]] = []

    def show(node: LiveNode, reserved: str, whose: Whose, memory: NodeMemory, sight: Sight) -> Node:
        made.append((node.name, sight.user))
        return show_node(node, reserved, whose, memory, sight)

    monkeypatch.setattr(module, "show_node", show)
    nodes = {f"n{at}": LiveNode(name=f"n{at}", address="h", **facts(gpus=gpus(3))) for at in range(5)}
    nodes["n2"] = held(nodes["n2"], ["1", "2"])  # ann's and bob's
    listing = NodeListing()
    listing.look(nodes, {}, jobs=JOBS)
    pieces = {}
    for sight in (*SIGHTS, *SIGHTS):
        seen = listing.seen_by(sight)
        while seen.renew():
            pass
        pieces[sight.user] = seen.pieces()

    assert sorted(made, key=str) == sorted(
        [*((name, None) for name in nodes), *((name, "") for name in nodes), ("n2", "ann"), ("n2", "bob")], key=str
    )
    assert all(pieces["ann"][at] is pieces["eve"][at] for at in (1, 3))
    assert pieces["carl"] == pieces["eve"] != pieces["ann"]
    nodes["n3"] = structs.replace(nodes["n3"], is_up=False, lost_reason="gone")
    made.clear()
    listing.look(nodes, {}, jobs=JOBS)
    body_of(listing, SIGHTS[1])
    assert made == [("n3", "")]


def test_rows_of_the_overview_are_made_once_for_operators_for_users_and_for_each_with_jobs_there() -> None:
    """[L5]"""
    made: list[str | None] = []

    def show(node: LiveNode, sight: Sight) -> Node:
        made.append(sight.user)
        return show_node(node, sight=sight)

    rows, node = NodeRows(show), held(LiveNode(name="n", address="h", **facts(gpus=gpus(3))), ["1", "2", "7"])

    for sight in (*SIGHTS, *SIGHTS):
        assert bytes(rows.row(node, sight)) == msgspec.json.encode(show_node(node, sight=sight))

    assert made == [None, "ann", "bob", "carl"]  # who has none there sees what carl does, eve too
    rows.row(held(node, ["3"]), SIGHTS[-1])
    assert made[4:] == ["eve"]


def test_an_operator_who_asks_for_one_users_jobs_sees_more_than_that_user() -> None:
    """[L5]"""
    world, listings = World(rules("sf")), JobListings()
    for user, gpu_count in (("bob", 4), ("bob", 4), ("ann", 1)):
        world.submit(gpu_count, user=user)
    (pushed,) = (job for job in world.state.jobs.values() if "job 3" in job.reason)

    def reasons(*, is_operator: bool) -> set[str]:
        of_bob = listings.of(world.state, "bob", everything=False, now_s=0.0, is_operator=is_operator)
        jobs = json.loads(b"".join(renewed(of_bob).pieces(ALL)))["jobs"]
        return {job["reason"] for job in jobs if job["id"] == pushed.job_id}

    assert reasons(is_operator=True) == {pushed.reason}
    assert reasons(is_operator=False) == {pushed.reason.replace("job 3", "another user's job")}


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

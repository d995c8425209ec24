"""Every placement on small clusters of unlike nodes, against slow answers to the same questions."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.scheduler.ledger import Ledger
from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.random import Random
from farside.scheduler.placement.skew import Skew
from farside.scheduler.placement.yarn import Yarn
from farside.scheduler.state import Allocation, Demand, Job, Node
from tests.support.nodes import (
    Occupied,
    cells,
    demands,
    fewest_now,
    fewest_when_empty,
    is_idle,
    occupied,
    rooms_now,
    rooms_when_empty,
)

EVERYWHERE: tuple[PlacementPolicy, ...] = (
    Consolidate(),
    Consolidate(remainder_on_fullest=True, most_nodes_factor=1.0),
    Skew(),
    Fragments(),
    Random(seed=3),
    Yarn(),
)
placements = st.sampled_from(EVERYWHERE)


@settings(deadline=None, max_examples=200)
@given(occupied(), demands(), placements)
def test_what_is_given_is_free_and_all_that_was_asked_for(
    case: Occupied, demand: Demand, placement: PlacementPolicy
) -> None:
    allocation = placement.place(case.ledger(), demand)

    if allocation is None:
        return
    rooms, places = rooms_now(case, demand), [at for at, _ in allocation]
    assert sum(gpus for _, gpus in allocation) == demand.gpus
    assert all(0 < gpus <= rooms[at] for at, gpus in allocation)
    assert places == sorted(set(places))
    if not isinstance(placement, Yarn):
        assert any(set(places) <= set(cell) for cell in cells(case.nodes, demand))


@settings(deadline=None, max_examples=200)
@given(occupied(), demands(), st.booleans(), st.sampled_from([1.0, 2.0]))
def test_consolidated_a_job_takes_the_fewest_nodes_possible(
    case: Occupied, demand: Demand, remainder_on_fullest: bool, factor: float
) -> None:
    placement = Consolidate(remainder_on_fullest=remainder_on_fullest, most_nodes_factor=factor)

    allocation = placement.place(case.ledger(), demand)

    fewest = fewest_now(case, demand)
    if 0 < fewest <= factor * fewest_when_empty(case.nodes, demand):
        assert allocation is not None
        assert len(allocation) == fewest
    else:
        assert allocation is None


@settings(deadline=None, max_examples=100)
@given(occupied(alike=True), demands(is_plain=True))
def test_on_equal_nodes_no_job_takes_more_than_the_fewest_nodes_it_ever_could(case: Occupied, demand: Demand) -> None:
    allocation = Consolidate().place(case.ledger(), demand)

    assert allocation is None or len(allocation) == math.ceil(demand.gpus / case.nodes[0].gpus)


@settings(deadline=None, max_examples=200)
@given(occupied(), demands())
def test_on_an_empty_cluster_a_consolidated_job_has_room_if_it_ever_has(case: Occupied, demand: Demand) -> None:
    ledger = Occupied(case.nodes, ()).ledger()

    allocation = Consolidate(most_nodes_factor=1.0).place(ledger, demand)

    assert ledger.sets.fewest(demand) == fewest_when_empty(case.nodes, demand)
    assert (len(allocation) if allocation else 0) == ledger.sets.fewest(demand)


@settings(deadline=None, max_examples=200)
@given(occupied(), demands(), st.sampled_from([Fragments(), Random(seed=1)]))
def test_unconsolidated_a_job_has_room_where_as_many_gpus_are_free(
    case: Occupied, demand: Demand, placement: PlacementPolicy
) -> None:
    rooms = rooms_now(case, demand)

    allocation = placement.place(case.ledger(), demand)

    has_room = any(sum(rooms[at] for at in cell) >= demand.gpus for cell in cells(case.nodes, demand))
    assert (allocation is not None) == has_room


@settings(deadline=None, max_examples=200)
@given(occupied(), demands())
def test_fragments_are_used_before_whole_nodes_are_broken_into(case: Occupied, demand: Demand) -> None:
    allocation = Fragments().place(case.ledger(), demand)

    if allocation is None:
        return
    cell = next(cell for cell in cells(case.nodes, demand) if allocation[0][0] in cell)
    rooms = rooms_now(case, demand)
    missing = demand.gpus - sum(rooms[at] for at in cell if not is_idle(case, at))
    whole = sorted((rooms[at] for at in cell if is_idle(case, at)), reverse=True)
    opened = next(count for count in range(len(whole) + 1) if sum(whole[:count]) >= missing)
    assert sum(is_idle(case, at) for at, _ in allocation) == opened


@settings(deadline=None, max_examples=200)
@given(occupied(), demands(), st.sampled_from(EVERYWHERE[:-1]), st.integers(0, 4))
def test_who_has_room_has_it_still_when_others_leave(
    case: Occupied, demand: Demand, placement: PlacementPolicy, leaving: int
) -> None:
    before = placement.place(case.ledger(), demand)

    after = placement.place(case.ledger(without=leaving), demand)

    assert before is None or after is not None


@settings(deadline=None, max_examples=100)
@given(occupied(alike=True), demands(is_plain=True), placements, st.integers(0, 4))
def test_who_has_room_has_it_still_when_equal_nodes_come(
    case: Occupied, demand: Demand, placement: PlacementPolicy, more: int
) -> None:
    grown = replace(case, nodes=(*case.nodes, *[replace(case.nodes[0], name=f"more{at}") for at in range(more)]))

    before, after = (placement.place(some.ledger(), demand) for some in (case, grown))

    assert before is None or after is not None


@settings(deadline=None, max_examples=50)
@given(occupied(), demands(), st.integers(0, 2**70))
def test_chance_is_the_same_for_the_same_seed(case: Occupied, demand: Demand, seed: int) -> None:
    first, second = (Random(seed=seed).place(case.ledger(), demand) for _ in range(2))

    assert first == second


def test_chance_favours_no_node() -> None:
    nodes = tuple(Node(name=f"n{at}", gpus=4) for at in range(5))
    found: Counter[int] = Counter()

    for seed in range(2000):
        allocation = Random(seed=seed).place(Ledger(nodes), Demand(gpus=2))
        assert allocation is not None
        found.update(at for at, gpus in allocation for _ in range(gpus))

    assert all(700 <= found[at] <= 900 for at in range(5))  # 800 expected, deviation 25


@settings(deadline=None, max_examples=200)
@given(occupied(), demands())
def test_yarn_takes_the_first_node_with_room_of_the_first_rack_that_has_one(case: Occupied, demand: Demand) -> None:
    allocation = Yarn().place(case.ledger(), demand)

    if allocation is None:
        return
    rooms, rack = rooms_now(case, demand), case.nodes[allocation[0][0]].rack
    assert {case.nodes[at].rack for at, _ in allocation} == {rack}
    within = [at for at, node in enumerate(case.nodes) if node.rack == rack]
    if demand.gpus <= max(rooms_when_empty(case.nodes, demand)[at] for at in within):
        assert allocation == ((next(at for at in within if rooms[at] >= demand.gpus), demand.gpus),)
    else:
        assert sum(not is_idle(case, at) for at, _ in allocation) <= 1


def booked(sizes: list[int], free: list[int]) -> Ledger:
    ledger = Ledger([Node(name=f"n{at}", gpus=gpus) for at, gpus in enumerate(sizes)])
    for at, gpus in enumerate(sizes):
        if gpus > free[at]:
            ledger.take(Demand(gpus=1), ((at, gpus - free[at]),))
    return ledger


@pytest.mark.parametrize(
    ("free", "gpus", "expected"),
    [
        ([1, 3, 4, 2], 2, ((3, 2),)),  # exactly one fits
        ([1, 1, 4, 3], 2, ((0, 1), (1, 1))),  # two scraps rather than a part of a larger piece
        ([1, 4, 4, 4], 4, ((1, 4),)),  # a whole node must be opened: then it is filled
        ([1, 4, 4, 0], 5, ((0, 1), (1, 4))),
        ([2, 3, 4, 4], 6, ((0, 2), (2, 4))),  # one whole node is opened either way
        ([1, 1, 1, 0], 4, None),
    ],
)
def test_fragments_by_hand(free: list[int], gpus: int, expected: Allocation | None) -> None:
    assert Fragments().place(booked([4] * 4, free), Demand(gpus=gpus)) == expected


def test_of_unlike_whole_nodes_the_smallest_that_is_enough_is_opened() -> None:
    assert Fragments().place(booked([8, 4, 2], [8, 4, 2]), Demand(gpus=3)) == ((1, 3),)
    assert Fragments().place(booked([8, 4, 2], [8, 4, 2]), Demand(gpus=10)) == ((0, 8), (2, 2))


@pytest.mark.parametrize(
    ("sizes", "free", "gpus", "factor", "expected"),
    [
        ([8, 8, 4], [8, 8, 4], 12, 2.0, ((0, 8), (2, 4))),
        ([8, 8, 4, 1, 1], [8, 8, 4, 1, 1], 14, 2.0, ((0, 8), (1, 6))),  # two nodes, not four
        ([16, 8, 8], [3, 8, 8], 16, 2.0, ((1, 8), (2, 8))),  # the only large node is busy
        ([16, 8, 8], [3, 8, 8], 16, 1.0, None),
        ([8, *[1] * 8], [0, *[1] * 8], 8, 2.0, None),  # eight nodes for one would be no consolidation
        ([4, 4], [3, 3], 6, 2.0, None),  # a job larger than a node takes whole ones
    ],
)
def test_consolidating_on_unlike_nodes_by_hand(
    sizes: list[int], free: list[int], gpus: int, factor: float, expected: Allocation | None
) -> None:
    assert Consolidate(most_nodes_factor=factor).place(booked(sizes, free), Demand(gpus=gpus)) == expected


def test_nodes_whose_cpus_run_out_first_hold_less() -> None:
    nodes = [Node(name=f"n{at}", gpus=8, cpus=32) for at in range(4)]
    ledger, demand = Ledger(nodes), Demand(gpus=16, cpus_per_gpu=6)

    allocation = Consolidate().place(ledger, demand)

    assert allocation == ((0, 5), (1, 5), (2, 5), (3, 1))


def test_a_job_that_names_a_gpu_model_gets_it_or_waits() -> None:
    nodes = [Node(name="a", gpus=8, gpu_model="v100"), *[Node(name=f"b{n}", gpus=4, gpu_model="a100") for n in "01"]]

    for placement in EVERYWHERE:
        assert placement.place(Ledger(nodes), Demand(gpus=8, gpu_model="a100")) == ((1, 4), (2, 4)), placement.name
        assert placement.place(Ledger(nodes), Demand(gpus=1, gpu_model="h100")) is None


def test_one_of_several_models_will_do_however_it_is_written() -> None:
    nodes = [Node(name=name, gpus=2, gpu_model=model) for name, model in (("a", "T4"), ("b", "V100M32"), ("c", ""))]

    for placement in EVERYWHERE:
        assert placement.place(Ledger(nodes), Demand(gpus=2, gpu_model="v100m16|v100m32")) == ((1, 2),), placement.name
        assert placement.place(Ledger(nodes), Demand(gpus=2, gpu_model="a100|")) is None


def test_a_node_that_does_not_say_its_model_takes_who_asks_for_none() -> None:
    nodes = [Node(name="a", gpus=4)]

    for placement in EVERYWHERE:
        assert placement.place(Ledger(nodes), Demand(gpus=4)) == ((0, 4),)
        assert placement.place(Ledger(nodes), Demand(gpus=4, gpu_model="V100")) is None


def test_a_gang_is_not_mixed_of_two_models_unless_it_can_never_be_otherwise() -> None:
    nodes = [Node(name=f"n{at}", gpus=4, gpu_model="va"[at // 2]) for at in range(4)]
    ledger = Ledger(nodes)
    ledger.take(Demand(gpus=4), ((0, 4),))
    ledger.take(Demand(gpus=1), ((2, 1),))

    for placement in (Consolidate(), Fragments(), Random()):
        assert placement.place(ledger, Demand(gpus=8)) is None
        assert placement.place(Ledger(nodes), Demand(gpus=10)) is not None


def test_fractions_of_cpus_come_back_whole() -> None:
    ledger = Ledger([Node(name="n", gpus=2, cpus=1.2)])
    small, large = Demand(gpus=1, cpus_per_gpu=0.1), Demand(gpus=1, cpus_per_gpu=0.3)
    for _ in range(1000):
        for move in (ledger.take, ledger.give):
            for demand in (small, large):  # first in, first out, so that the roundings differ
                move(demand, ((0, 1),))

    assert ledger.free_cpus[0] == 1.2


def test_nodes_that_have_left_hold_nothing_more() -> None:
    nodes = [Node(name=f"n{at}", gpus=4) for at in range(3)]
    ledger = Ledger(nodes)
    ledger.set_nodes(nodes[1:])

    found = [placement.place(ledger, Demand(gpus=9)) for placement in EVERYWHERE]

    assert found == [None] * len(EVERYWHERE)
    assert ledger.sets.fewest(Demand(gpus=8)) == 2
    assert ledger.sets.fewest(Demand(gpus=9)) == 0


def job(gpus: int, model: str = "", skew: float = 0.0) -> Job:
    return Job(job_id="0", sequence=0, submit_s=0, gpus=gpus, model=model, skew=skew)


def test_only_skewed_models_of_several_gpus_are_consolidated() -> None:
    policy = Skew()

    assert policy.consolidates(job(8, "VGG-16"))
    assert policy.consolidates(job(2, "alexnet"))
    assert not policy.consolidates(job(8, "googlenet"))
    assert not policy.consolidates(job(8, "unknown", skew=policy.packlimit))
    assert not policy.consolidates(job(1, "vgg16"))


def test_a_job_of_unknown_skew_is_not_spread_unless_told_so() -> None:
    assert Skew().consolidates(job(8))
    assert not Skew(unmeasured="relax").consolidates(job(8))


def test_a_skewed_job_waits_where_another_starts() -> None:
    ledger, policy = booked([4, 4, 4], [2, 2, 2]), Skew()

    assert policy.place(ledger, policy.demand(job(4, "vgg16"))) is None
    assert policy.place(ledger, policy.demand(job(4, "resnet50"))) == ((0, 2), (1, 2))


def test_counting_alone_sees_one_node() -> None:
    policy = CountOnly()
    ledger = policy.ledger((Node(name="a", gpus=4), Node(name="b", gpus=4)))

    assert policy.place(ledger, policy.demand(job(7))) == ((0, 7),)


@settings(deadline=None, max_examples=200)
@given(occupied(), demands(), st.booleans())
def test_of_as_many_nodes_a_consolidated_job_gets_those_of_one_rack(
    case: Occupied, demand: Demand, remainder_on_fullest: bool
) -> None:
    placement = Consolidate(remainder_on_fullest=remainder_on_fullest)

    allocation = placement.place(case.ledger(), demand)

    if allocation is None or len({case.nodes[at].rack for at, _ in allocation}) == 1:
        return
    for rack in ("r0", "r1"):
        # Were there this rack alone: would it get as many nodes there, in a set that it may use?
        fenced = replace(case, nodes=tuple(node for node in case.nodes if node.rack == rack))
        names = [node.name for node in fenced.nodes]
        at = {case.nodes.index(node): names.index(node.name) for node in fenced.nodes}
        held = tuple(
            (asked, tuple((at[place], gpus) for place, gpus in given))
            for asked, given in case.held
            if all(place in at for place, _ in given)
        )
        alone = placement.place(Occupied(fenced.nodes, held).ledger(), demand) or ()
        places = {case.nodes.index(fenced.nodes[place]) for place, _ in alone}
        if places and any(places <= set(cell) for cell in cells(case.nodes, demand)):
            assert len(alone) > len(allocation)


def test_racks_that_nobody_names_change_nothing() -> None:
    plain = [Node(name=f"n{at}", gpus=4) for at in range(5)]
    named = [replace(node, rack="r0") for node in plain]

    assert Consolidate().place(Ledger(plain), Demand(gpus=16)) == Consolidate().place(Ledger(named), Demand(gpus=16))

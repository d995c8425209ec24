"""Reservations of nodes: nothing starts there that could still run then, whatever the order and who is preempted."""

import asyncio
import math
import os
import pwd
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.cli.moment import parse_moment
from farside.scheduler.maintenance_window import MaintenanceWindow
from farside.scheduler.manager.model.event import NodesReserved, ReservationCancelled
from farside.scheduler.manager.model.maintenance import reserved_now, still_there
from farside.scheduler.manager.model.record import Phase
from farside.units import format_moment
from tests.live.test_api import an_api
from tests.live.world import World, rules

USER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))


def reserved(world: World, *nodes: str, begin_s: float, end_s: float) -> None:
    begin_s, end_s = world.now_s + begin_s, world.now_s + end_s
    world.does(NodesReserved(nodes=nodes, begin_s=begin_s, end_s=end_s, reason="new disks", by="root"))


def test_only_what_ends_in_time_starts_on_a_reserved_node_and_the_others_say_why_they_wait() -> None:
    w = World(rules("best-effort"), nodes=1)
    reserved(w, "n0", begin_s=100, end_s=200)

    short, long, endless = w.submit(time_limit_s=90.0), w.submit(time_limit_s=110.0), w.submit()

    assert [w.phase(job) for job in (short, long, endless)] == [Phase.STARTING, Phase.WAITING, Phase.WAITING]
    assert (
        "n0 reserved from 1100 s to 1200 s (new disks), and it could still run then: its time limit is 1.83 min"
        in (w.decider.why(long, w.now_s, str)[0])
    )
    assert w.decider.why(endless, w.now_s, str)[0].endswith("it has no time limit")


@pytest.mark.parametrize("order", ["best-effort", "las"])
def test_the_one_line_of_a_job_that_also_waits_for_others_names_the_reservation_of_what_is_free(order: str) -> None:
    w = World(rules(order), nodes=2)
    first = w.submit(4)
    w.runs(first)
    (busy,) = w.job(first).nodes
    (idle,) = {"n0", "n1"} - {busy}
    job = w.submit(8, preemptible=False)

    reserved(w, idle, begin_s=100, end_s=200)

    line, *more = w.decider.why(job, w.now_s, str)  # the page and `farside top` have the first alone
    assert line.startswith(
        f"waits: needs 8 GPUs on 2 nodes, 4 free; {idle} reserved from 1100 s to 1200 s (new disks), "
    )
    assert "and it could still run then: it has no time limit; " in line
    assert not any("reserved" in one for one in more)


def test_a_reservation_of_a_node_that_is_full_anyway_is_not_the_first_reason() -> None:
    w = World(rules("best-effort"), nodes=2)
    for _ in range(2):
        w.runs(w.submit(4))
    job = w.submit(4)

    reserved(w, "n0", begin_s=100, end_s=200)

    line, *more = w.decider.why(job, w.now_s, str)
    assert line == "waits: needs 4 GPUs on one node, 0 free; 2 running jobs there, and best-effort preempts no job"
    assert any("n0 reserved from" in one for one in more)


def test_jobs_go_elsewhere_meanwhile_and_start_there_when_it_is_over_or_cancelled() -> None:
    w = World(rules("best-effort"), nodes=2)
    reserved(w, "n0", begin_s=0, end_s=100)

    jobs = [w.submit(4), w.submit(4)]

    assert w.job(jobs[0]).nodes == ("n1",)
    assert w.phase(jobs[1]) is Phase.WAITING
    w.pass_s(101)
    assert w.job(jobs[1]).nodes == ("n0",)

    other = World(rules("fifo"), nodes=1)
    reserved(other, "n0", begin_s=0, end_s=1e6)
    job = other.submit()
    other.does(ReservationCancelled(reservation_id="m1", by="root"))
    assert other.phase(job) is Phase.STARTING


def test_it_outlives_a_restart_of_the_manager() -> None:
    w = World(rules("fifo"), nodes=1)
    reserved(w, "n0", begin_s=100, end_s=200)

    w.lead()

    assert w.phase(w.submit()) is Phase.WAITING


def test_a_job_that_was_placed_before_loses_its_place_and_one_that_runs_is_named() -> None:
    w = World(rules("srtf"), nodes=1)
    running = w.submit(4, time_limit_s=500.0)
    w.runs(running)
    placed = w.submit(4, time_limit_s=50.0)  # waits for the other to go
    assert (w.phase(running), w.phase(placed)) == (Phase.STOPPING, Phase.ALLOCATED)

    reserved(w, "n0", begin_s=10, end_s=200)

    assert w.phase(placed) is Phase.WAITING
    assert still_there(w.state, w.state.maintenance["m1"], w.now_s) == [running]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(["fifo", "best-effort", "srtf", "las"]),
    st.lists(
        st.tuples(st.integers(1, 6), st.sampled_from([0.0, 30.0, 80.0, 150.0]), st.floats(0.0, 40.0)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 120).map(float),
)
def test_no_start_is_ever_promised_into_a_reservation(
    order: str, jobs: list[tuple[int, float, float]], begin_s: float
) -> None:
    w = World(rules(order), nodes=2)
    told_s = w.now_s + begin_s
    reserved(w, "n0", begin_s=begin_s, end_s=begin_s + 100)

    for gpus, limit_s, pause_s in jobs:
        job = w.submit(gpus, time_limit_s=limit_s)
        w.pass_s(pause_s)
        for running in list(w.state.unfinished):
            if w.phase(running) is Phase.STOPPING:
                w.exits(running, 143, "stopped")
        assert w.job(job).job_id == job

    for started in w.state.jobs.values():
        for run_interval in started.stints:
            if any(place.node == "n0" for place in run_interval.places) and run_interval.begin_s < told_s + 100:
                assert run_interval.begin_s + (started.spec.time_limit_s or math.inf) <= told_s


def test_a_closure_is_closed_to_what_could_run_into_it_and_to_nothing_after_it() -> None:
    window = MaintenanceWindow(nodes=frozenset({0}), begin_s=100, end_s=200)

    assert not window.is_closed_to(0, 100)
    assert window.is_closed_to(0, 101)
    assert window.is_closed_to(199, 1)
    assert not window.is_closed_to(200, math.inf)


def test_only_operators_reserve_and_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            good = {"nodes": ["n0"], "from_s": 9e9, "to_s": 9.1e9, "reason": "disks"}
            user, operator = api.as_uid(USER.pw_uid), api.as_uid(0)

            assert (await user.post("/v1/reservations", json=good)).status_code == 403
            made = await operator.post("/v1/reservations", json=good)
            wrong = [
                await operator.post("/v1/reservations", json={**good, **more})
                for more in ({"nodes": ["n9"]}, {"to_s": 9e9}, {"from_s": 1.0, "to_s": 2.0})
            ]
            listed = (await user.get("/v1/reservations")).json()["reservations"]
            gone = await operator.post("/v1/reservations/m1/cancel")
            again = await operator.post("/v1/reservations/m1/cancel")

        assert made.status_code == 201
        assert listed == [made.json()]
        assert (listed[0]["id"], listed[0]["state"], listed[0]["by"]) == ("m1", "planned", "root")
        assert [one.status_code for one in wrong] == [422, 422, 422]
        assert wrong[0].json()["detail"] == "nodes: there is no node n9"
        assert (gone.json()["state"], again.status_code) == ("cancelled", 409)

    asyncio.run(run())


def test_a_node_under_a_reservation_says_so_while_it_lasts(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path) as api:
            operator = api.as_uid(0)

            async def reasons() -> list[str]:
                listed = (await operator.get("/v1/nodes")).json()["nodes"]
                return [listed[0]["reason"], (await operator.get("/v1/nodes/n0")).json()["reason"]]

            before = await reasons()
            body = {"nodes": ["n0"], "from_s": 1.0, "to_s": 9e9, "reason": "disks"}
            assert (await operator.post("/v1/reservations", json=body)).status_code == 201
            during = await reasons()
            await operator.post("/v1/reservations/m1/cancel")

            assert (before, during, await reasons()) == (
                ["", ""], [f"reserved: disks until {format_moment(9e9)}"] * 2, ["", ""],
            )  # fmt: skip

    asyncio.run(run())


def test_of_two_reservations_the_one_that_lasts_longer_is_told_and_one_to_come_is_not() -> None:
    world = World(rules(), nodes=2)
    for begin_s, end_s, nodes in ((0, 5000.0, ("n0",)), (0, 2000.0, ("n0",)), (3000.0, 4000.0, ("n1",))):
        world.does(NodesReserved(nodes=nodes, begin_s=begin_s, end_s=end_s, reason="", by="root"))

    assert reserved_now(world.state, world.now_s) == {"n0": f"reserved until {format_moment(5000.0)}"}


def test_times_are_written_from_now_on_or_in_full() -> None:
    assert parse_moment("now", 7.0) == 7
    assert parse_moment("+2h", 0.0) == 7200
    assert parse_moment("-1min", 100.0) == 40
    assert parse_moment("-1d", 100.0) == 100 - 86400
    assert parse_moment("1970-01-02", 0.0) == 86400
    assert parse_moment("1970-01-02T01:00+01:00", 0.0) == 86400
    with pytest.raises(ValueError, match="is no time"):
        parse_moment("tomorrow", 0.0)

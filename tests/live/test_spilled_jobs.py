"""Co-located jobs whose input does not fit in their memory: where they run, what groups count, and what is shown."""

import io
import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from rich.console import Console

from farside.agent import messages as m
from farside.agent.messages import EXECUTOR
from farside.agent.training import alpha
from farside.agent.training.messages import Uses, from_worker, packet_of, use_of
from farside.agent.training.turn_record import TurnRecord
from farside.cli.cluster_table import spill_table
from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.colocation.news import timed as news_of
from farside.scheduler.manager.colocation.state import Colocation, JobTimes
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import NodeLost, ServiceChanged, TaskTimed
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.view import groups as view
from farside.scheduler.manager.view.overview import Sensed
from tests.live.test_api import OTHER, Api, api_test
from tests.live.test_colocation import a_world, groups, let_go, runs_measured, submit
from tests.live.test_colocation_nodes import NEW, line
from tests.live.test_node_services import connected, report
from tests.live.world import World

PLACE = '{"is_there":true,"spills":true}'
GB = 10**9
Cost = tuple[float, float] | None


def half(**more: float) -> m.SpilledInput:
    """Half of 1 GB is on a disk of 100 MB a second; a quarter of a second of each turn is waiting."""
    known = {"spilled": 0.5, "input_bytes": GB, "wait_s": 0.25, "disk_bytes_s": 1e8}
    return m.SpilledInput(**known | more)  # type: ignore[arg-type]


def seen(world: World, job: str, comp_s: float, net_s: float, spill: m.SpilledInput | None) -> None:
    """The node's executor says what an iteration takes, and what of the input is not in memory."""
    place = world.job(job)
    world.does(
        TaskTimed(node=place.nodes[0], job_id=job, start=place.start, comp_s=comp_s, net_s=net_s, spill=spill)
    )  # fmt: skip


def test_a_job_that_did_not_fit_starts_only_on_nodes_with_a_place_for_its_input_and_says_why_it_waits() -> None:
    world = a_world(nodes=2)
    world.does(ServiceChanged(node="n1", name=EXECUTOR, raw=PLACE))
    job = submit(world)
    assert world.job(job).nodes == ("n1",)  # nobody knows yet: it may have more input than fits
    world.runs(job)
    seen(world, job, 1.0, 1.0, half())
    let_go(world)
    assert groups(world) == {"n1": (job,)}

    world.does(NodeLost(node="n1", reason="silent"))
    assert world.phase(job) is Phase.WAITING
    why = world.decider.why(job, world.now_s, str)[0]
    assert "n0: it has no place for input that does not fit in memory: set spill_dir" in why
    other = submit(world)
    assert world.job(other).nodes == ("n0",)
    world.runs(other)
    world.exits(other)

    world.lead(decode_state(encode_state(world.state)))
    assert world.phase(job) is Phase.WAITING
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=PLACE))
    let_go(world)
    assert world.job(job).nodes == ("n0",)
    assert not [*violations(world.log)]


def test_a_job_that_runs_where_the_place_is_taken_away_runs_on() -> None:
    world = a_world(nodes=2)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=PLACE))
    job = submit(world)
    world.runs(job)
    seen(world, job, 1.0, 1.0, half())

    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw='{"is_there":true}'))
    world.pass_s(1000.0)
    let_go(world)

    assert (world.phase(job), world.job(job).start) == (Phase.RUNNING, 1)
    assert groups(world) == {"n0": (job,)}


def test_only_a_node_with_a_place_is_asked_to_let_input_leave_memory() -> None:
    world = a_world(nodes=2)
    world.does(ServiceChanged(node="n1", name=EXECUTOR, raw=PLACE))
    for _ in range(2):
        submit(world, memory_bytes=float(1 << 30))

    told = {
        node: [one.spec for one in line(world, node, *NEW).commands(world.state) if isinstance(one, m.Start)]
        for node in ("n0", "n1")
    }  # fmt: skip

    assert {node: [(one.may_spill, one.memory_bytes) for one in specs] for node, specs in told.items()} == {
        "n0": [(False, 1 << 30)], "n1": [(True, 1 << 30)],
    }  # fmt: skip


def test_an_agent_says_that_it_has_a_place_and_the_log_keeps_that_alone() -> None:
    world = a_world(nodes=1)
    taker = m.TurnTaker(job="9", start=1, rank=0, spill=half())
    facts = m.ExecutorFacts(is_there=True, takers=(taker,), spills=True)
    services = {EXECUTOR: msgspec.Raw(msgspec.json.encode(facts))}

    told = connected(world, services={EXECUTOR: msgspec.Raw(b'{"is_there":true}')}).reported(
        world.state, report(services=services)
    )

    assert [one.raw for one in told if isinstance(one, ServiceChanged)] == [PLACE]


def test_what_a_job_waits_for_is_no_work_and_what_it_reads_back_is_in_its_profile() -> None:
    state = Colocation(jobs={"1": 0, "2": 0})
    state.times = {
        "1": JobTimes(start=1, comp_s=1.25, net_s=1.0, spill=half()),
        "2": JobTimes(start=1, comp_s=1.0, net_s=1.0),
    }

    spilled, other = state.profile("1"), state.profile("2")

    assert spilled is not None
    assert other is not None
    assert (spilled.work_machine_s, other.work_machine_s) == (1.0, 1.0)
    assert (spilled.reload_bytes(1), other.reload_bytes(1)) == (GB / 2, 0)
    assert (state.spills("1"), state.spills("2")) == (True, False)
    alone, spilled_alone = state.time_of(["2"], 1), state.time_of(["1"], 1)
    assert alone is not None
    assert spilled_alone is not None
    assert (alone.iteration_s, alone.bound) == (2.0, "job")
    assert (spilled_alone.iteration_s, spilled_alone.bound) == (5.0, "disk")


def test_a_job_that_would_keep_its_node_s_disk_busy_and_nothing_else_joins_no_group() -> None:
    world = a_world(nodes=1)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=PLACE))
    runs_measured(world, 1.0, 1.0)
    quick, slow = submit(world), half(spilled=0.9, wait_s=0.0)
    world.runs(quick)
    seen(world, quick, 1.0, 1.0, slow)

    let_go(world)

    # Beside the other it would fill the gaps, but that one would wait nine seconds for its disk in each iteration.
    assert quick not in groups(world)["n0"]
    assert world.phase(quick) is Phase.WAITING
    assert "no more machines busy" in world.decider.why(quick, world.now_s, str)[0]


_TINY = (5e-324, 5e-324)
_RATES = st.sampled_from([5e-324, 1e-300, 0.0, -1.0, 1e308]) | st.floats()
_COSTS = st.none() | st.tuples(_RATES, _RATES)


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.floats(0, 1e9), st.integers(0, 2**62), st.integers(0, 2**62), _COSTS, _COSTS)
@example(0.5, 1.0, GB, GB, _TINY, None)
@example(0.5, 1.0, GB, GB, (1e-300, 0.0), (1e-300, 0.0))
@example(0.5, 0.0, 0, 0, (1.0, 0.0), (1.0, 0.0))
def test_whatever_a_job_says_of_what_it_reads_back_nodes_are_planned_and_shown(
    spilled: float, seconds: float, input_bytes: int, read_bytes: int, disk: Cost, peer: Cost
) -> None:
    spilling, record = alpha.Spilling(), TurnRecord()
    record.asked("0:j", 0, 0)
    for number in range(12):
        counts = (seconds, number * (read_bytes // 12), number * (input_bytes // 12), seconds)
        uses = from_worker(
            packet_of(Uses(spilled, seconds, seconds, 0.0, 0.0, input_bytes, 0, 0, disk, peer, *counts))
        )  # fmt: skip
        assert isinstance(uses, Uses)
        use = use_of("0:j", uses)
        spilling, told = alpha.step(spilling, use)
        assert all(0 <= keep.by_peer <= 1 for keep in told.values())
        record.used("0:j", use)
    spill = msgspec.json.decode(msgspec.json.encode(record.jobs["0:j"].spill), type=m.SpilledInput)

    plans_and_shows(spill)


@settings(max_examples=20, deadline=None)
@given(st.floats(0, 1e18), st.floats(0, 1e18), st.floats(0, 4e9))
@example(5e-324, 0.0, 0.0)
@example(1e-300, 1e-300, 0.0)
def test_a_rate_that_is_in_the_log_already_stops_nobody(disk_bytes_s: float, peer_bytes_s: float, cpu_s: float) -> None:
    plans_and_shows(half(disk_bytes_s=disk_bytes_s, peer_bytes_s=peer_bytes_s, disk_cpu_s_byte=cpu_s))


def plans_and_shows(spill: m.SpilledInput) -> None:
    """A node has a job that says so beside another one, and a third one comes; so, too, for a scheduler's successor."""
    world = a_world(nodes=1)
    world.does(ServiceChanged(node="n0", name=EXECUTOR, raw=PLACE))
    runs_measured(world, 1.0, 1.0)
    job = submit(world)
    world.runs(job)
    seen(world, job, 1.0, 1.0, spill)
    submit(world)
    let_go(world)
    world.lead()
    let_go(world)
    taker = m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=1.0, iteration_s=2.5, spill=spill)
    (group,) = view.report({"n0": m.ExecutorFacts(is_there=True, takers=(taker,))}, lambda _: True).groups

    assert group.predicted_s is not None
    assert math.isfinite(group.predicted_s)
    planned = [one.predicted_s for one in world.state.colocation.groups if one.predicted_s is not None]
    assert all(map(math.isfinite, planned))


@pytest.mark.parametrize(
    ("then", "is_news"),
    [
        (half(), False),
        (half(disk_bytes=9, waited_s=9.0), False),
        (half(disk_bytes_s=1.01e8), False),
        (half(disk_bytes_s=0.5e8), True),
        (half(spilled=0.6), True),
        (None, True),
    ],
)
def test_news_are_another_share_and_another_time_of_the_disk_and_not_what_only_grows(
    then: m.SpilledInput | None, is_news: bool
) -> None:
    world = a_world(nodes=1)
    job = submit(world)
    world.runs(job)
    seen(world, job, 1.0, 1.0, half())
    taker = m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=1.0, spill=then)

    found = [*news_of(world.state.colocation, "n0", [taker], 0.0, {})]

    assert [one.spill for one in found] == ([then] if is_news else [])


READ = half(disk_bytes=3 << 30, peer_bytes=1 << 30, waited_s=12.5, by_peer=0.25, peer_bytes_s=2e8)


def shown() -> dict[str, m.ExecutorFacts]:
    takers = (
        m.TurnTaker(job="1", start=1, rank=0, comp_s=1.25, net_s=1.0, iteration_s=2.5, spill=READ),
        m.TurnTaker(job="2", start=1, rank=0, comp_s=1.0, net_s=1.0, iteration_s=2.5),
    )
    return {"n0": m.ExecutorFacts(is_there=True, takers=takers, spills=True)}


def test_a_group_shows_its_jobs_spilled_input_and_explain_says_it_in_words() -> None:
    (group,) = view.report(shown(), lambda _: True).groups

    assert [one.spill for one in group.jobs] == [READ, None]
    assert (group.bound, group.measured_s) == ("disk", 2.5)
    assert [*view.explain(shown(), "1")][1:] == [
        "input: on n0 50 % of 954 MiB is not in memory; 3 GiB were read back from the disk and 1 GiB from peers' "
        "memory, and 12.5 s waited for them"
    ]
    assert len([*view.explain(shown(), "2")]) == 1


def test_api_page_metrics_and_table_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(api: Api) -> None:
        mine = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        taker = m.TurnTaker(job=mine, start=1, rank=0, comp_s=1.25, net_s=1.0, iteration_s=2.5, spill=READ)
        facts = m.ExecutorFacts(is_there=True, takers=(taker,))
        monkeypatch.setattr(api.sessions, "sensed", lambda: {"n0": Sensed(executor=facts)})
        monkeypatch.setattr(api.overviews, "_sensed", api.sessions.sensed)

        (own,) = (await api.as_uid(OTHER.pw_uid).get("/v1/groups")).json()["groups"]
        page = (await api.as_uid(OTHER.pw_uid).get("/v1/overview")).json()["groups"]
        metrics = generate_latest(ManagerCollector(api.context, names_jobs=True).registry()).decode()

        assert own["jobs"][0]["spill"] == msgspec.to_builtins(READ)
        assert page == [own]
        where = f'job="{mine}",node="n0"'
        for said in (
            f"farside_manager_job_spilled_ratio{{{where}}} 0.5",
            f"farside_manager_job_input_bytes{{{where}}} 1e+09",
            f'farside_manager_job_reload_bytes_total{{{where},source="disk"}} 3.221225472e+09',
            f'farside_manager_job_reload_bytes_total{{{where},source="peer"}} 1.073741824e+09',
            f"farside_manager_job_reload_wait_seconds_total{{{where}}} 12.5",
        ):
            assert said in metrics
        console = Console(file=io.StringIO(), width=120)
        console.print(spill_table([own]))
        written = console.file.getvalue()  # type: ignore[attr-defined]
        assert all(word in written for word in (mine, "50 %", "3 GiB", "1 GiB", "12.5 s", "250 ms"))
        assert not spill_table([{**own, "jobs": [{**own["jobs"][0], "spill": None}]}]).row_count

    api_test(test, tmp_path)

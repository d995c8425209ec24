"""Processor time of co-located jobs: from their node's executor to decisions, and to whoever asks."""

import io
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from rich.console import Console

from farside.agent import messages as m
from farside.cli.cluster_table import group_job_table
from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.colocation.news import state_of
from farside.scheduler.manager.colocation.news import timed as news_of
from farside.scheduler.manager.colocation.state import Colocation, JobTimes, TaskTimed
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.view import groups as view
from farside.scheduler.manager.view.overview import Sensed
from tests.live.test_api import OTHER, Api, api_test
from tests.live.test_colocation import a_world, runs_measured, submit, timed
from tests.live.test_groups import facts_of

USED = m.ProcessorUse(comp_s=0.5, rest_s=0.25, others_s=0.25, processors=2)
"""It leaves one of two processors idle where its turns of computing take as long as its processor time."""
FULL = m.ProcessorUse(comp_s=1.75, rest_s=0.25, others_s=0.25, processors=2)
"""It keeps both busy, but for what others take, in turns of a second."""


def profile(*times: JobTimes) -> dict[str, object]:
    state, known = Colocation(jobs={"1": 0}, workers={"1": (1, 4)}), times[0]
    for one in times[1:]:
        known = known.then(one)
    state.times["1"] = known
    found = state.profile("1")
    assert found is not None
    names = ("work_machine_s", "net_cpu_s", "net_cpu_alone_s", "leaves_processor")
    return {name: getattr(found, name) for name in names}


def test_what_others_took_while_a_job_computed_is_not_its_work() -> None:
    assert profile(JobTimes(start=1, comp_s=1.0, net_s=1.0, processor=FULL)) == {
        "work_machine_s": 0.875, "net_cpu_s": 0.125, "net_cpu_alone_s": 0.125, "leaves_processor": False,
    }  # fmt: skip
    assert profile(JobTimes(start=1, comp_s=1.0, net_s=1.0, processor=USED)) == {
        "work_machine_s": 1.0, "net_cpu_s": 0.125, "net_cpu_alone_s": 0.125, "leaves_processor": True,
    }  # fmt: skip


SPINS = m.ProcessorUse(comp_s=1.0, rest_s=5.0, processors=1)
"""Its threads go on while it waits for its turn."""


def test_a_job_whose_threads_go_on_while_it_waits_takes_no_more_than_its_time_on_the_network() -> None:
    found = profile(JobTimes(start=1, comp_s=1.0, net_s=0.75, processor=SPINS))
    state = Colocation(jobs={"1": 0, "2": 0})
    state.times = {job: JobTimes(start=1, comp_s=1.0, net_s=0.75, processor=SPINS) for job in state.jobs}
    takers = [m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=0.75, processor=SPINS) for job in state.jobs]

    decided = state.time_of(["1", "2"], 1)
    (shown,) = view.report(facts_of(takers), lambda _: True).groups

    assert (found["net_cpu_s"], found["net_cpu_alone_s"]) == (0.75, 0.75)
    # As long as one after the other, and no longer.
    assert decided is not None
    assert (decided.iteration_s, shown.predicted_s) == pytest.approx((3.5, 3.5))


def test_what_is_known_of_jobs_that_had_nodes_for_themselves_is_what_these_say() -> None:
    taker = m.TurnTaker(job="1", start=3, rank=0, comp_s=1.0, net_s=1.0, processor=FULL)

    found = state_of([taker, m.TurnTaker(job="2", start=1, rank=0)], 2)

    assert found.times == {"1": JobTimes(start=3, comp_s=1.0, net_s=1.0, machines=2, processor=FULL)}
    assert (found.time_of(["1"], 2) is None, found.time_of(["1", "2"], 2) is None) == (False, True)


def test_how_long_threads_go_on_while_a_job_waits_is_no_news() -> None:
    world = a_world(nodes=1)
    job = submit(world)
    world.runs(job)
    timed(world, job, 1.0, 0.75, processor=SPINS)
    taker = m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=0.75, processor=replace(SPINS, rest_s=9.0))

    assert [*news_of(world.state.colocation, "n0", [taker], 0.0, {})] == []


def test_one_node_says_nothing_of_what_updates_take_with_several() -> None:
    alone = JobTimes(start=1, comp_s=1.0, net_s=0.0, processor=replace(FULL, rest_s=0.0))
    several = JobTimes(start=2, comp_s=1.0, net_s=1.0, machines=2, processor=FULL)

    found = profile(alone, several)

    assert (found["net_cpu_s"], found["net_cpu_alone_s"]) == (0.125, 0.0)


def test_times_of_the_version_before_are_read_and_have_no_processor_time() -> None:
    entry = b'{"node": "n0", "job_id": "1", "start": 1, "comp_s": 1.0, "net_s": 1.0}'
    times = b'{"start": 1, "comp_s": 1.0, "net_s": 1.0, "others": []}'

    assert msgspec.json.decode(entry, type=TaskTimed).processor is None
    assert profile(msgspec.json.decode(times, type=JobTimes)) == {
        "work_machine_s": 1.0, "net_cpu_s": 0.0, "net_cpu_alone_s": 0.0, "leaves_processor": False,
    }  # fmt: skip
    assert msgspec.json.decode(b'{"job": "1", "start": 1, "rank": 0}', type=m.TurnTaker).processor is None


def test_a_decision_is_written_with_the_processor_time_of_updates_and_outlives_a_snapshot() -> None:
    world = a_world(nodes=1)
    used = m.ProcessorUse(comp_s=1.0, rest_s=0.25, processors=1)
    for _ in range(2):
        runs_measured(world, 1.0, 0.75, processor=used)

    (group,) = world.state.colocation.groups

    assert (group.predicted_s, group.bound) == (2.5, "cpu")
    kept = decode_state(encode_state(world.state)).colocation
    assert {times.processor for times in kept.times.values()} == {used}


@pytest.mark.parametrize(
    ("then", "is_news"),
    [(FULL, False), (replace(FULL, rest_s=0.4), False), (replace(FULL, rest_s=0.8), True), (None, True)],
)
def test_news_are_other_updates_by_a_twentieth_of_an_iteration(then: m.ProcessorUse | None, is_news: bool) -> None:
    world = a_world(nodes=1)
    job = submit(world)
    world.runs(job)
    timed(world, job, 1.0, 1.0, processor=FULL)
    taker = m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=1.0, processor=then)

    found = [*news_of(world.state.colocation, "n0", [taker], 0.0, {})]

    assert [one.processor for one in found] == ([then] if is_news else [])


def test_a_group_shows_what_updates_take_and_predicts_with_it() -> None:
    used = m.ProcessorUse(comp_s=0.3, rest_s=0.05, processors=1)
    takers = [
        m.TurnTaker(job=name, start=1, rank=0, comp_s=0.3, net_s=0.2, iteration_s=0.71, processor=used) for name in "12"
    ]

    (group,) = view.report(facts_of(takers), lambda _: True).groups
    lines = [*view.explain(facts_of(takers), "1")]

    assert [one.processor for one in group.jobs] == [used, used]
    assert group.bound == "cpu"
    assert group.predicted_s == pytest.approx(0.7)
    assert lines[1:] == [
        "processors: on n2 an iteration takes 0.3 CPU seconds for computing and 0.05 for its updates, of a processor"
    ]


def test_api_page_metrics_and_table_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(api: Api) -> None:
        mine = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        taker = m.TurnTaker(job=mine, start=1, rank=0, comp_s=1.0, net_s=1.0, iteration_s=2.5, processor=FULL)
        monkeypatch.setattr(api.sessions, "sensed", lambda: {"n0": Sensed(executor=facts_of([taker])["n2"])})
        monkeypatch.setattr(api.overviews, "_sensed", api.sessions.sensed)

        (own,) = (await api.as_uid(OTHER.pw_uid).get("/v1/groups")).json()["groups"]
        page = (await api.as_uid(OTHER.pw_uid).get("/v1/overview")).json()["groups"]
        metrics = generate_latest(ManagerCollector(api.context, names_jobs=True).registry()).decode()

        assert own["jobs"][0]["processor"] == msgspec.to_builtins(FULL)
        assert page == [own]
        where = f'job="{mine}",node="n0"'
        assert f'farside_manager_job_iteration_cpu_seconds{{{where},part="computing"}} 1.75' in metrics
        assert f'farside_manager_job_iteration_cpu_seconds{{{where},part="updates"}} 0.25' in metrics
        console = Console(file=io.StringIO(), width=160)
        console.print(group_job_table([own]))
        del own["jobs"][0]["processor"]  # as a manager of the version before says it
        console.print(group_job_table([own]))
        assert "0.25 s" in console.file.getvalue()  # type: ignore[attr-defined]

    api_test(test, tmp_path)

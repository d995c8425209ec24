"""Jobs that take turns on a node, as the manager shows them: what bounds them, and whose jobs a user sees."""

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from prometheus_client import generate_latest
from rich.console import Console

from farside.agent import messages as m
from farside.cli.cluster_table import group_job_table, group_table
from farside.scheduler.manager.api.metrics import ManagerCollector
from farside.scheduler.manager.model.event import ServiceChanged
from farside.scheduler.manager.view import groups as view
from farside.scheduler.manager.view.groups import explain
from farside.scheduler.manager.view.overview import Sensed
from tests.agent.process import agent, until_connected, write_config
from tests.agent.test_process import WORKER
from tests.live.manager import running_manager
from tests.live.test_api import OTHER, THIRD, Api, api_test
from tests.live.test_node_services import connected, report
from tests.live.world import World, rules
from tests.support.waiting import until
from tests.train.executors import executor


def taker(job: str, comp_s: float, net_s: float, iteration_s: float = 0.0) -> m.TurnTaker:
    return m.TurnTaker(job=job, start=1, rank=0, comp_s=comp_s, net_s=net_s, iteration_s=iteration_s, turns=30)


def facts_of(takers: Sequence[m.TurnTaker]) -> dict[str, m.ExecutorFacts]:
    return {"n2": m.ExecutorFacts(is_there=True, takers=tuple(takers))}


def test_a_group_has_its_bound_and_its_iteration_as_predicted_and_measured() -> None:
    facts = {"n2": m.ExecutorFacts(is_there=True, takers=(taker("1", 0.3, 0.1, 0.52), taker("2", 0.2, 0.2, 0.51)))}

    (group,) = view.report(facts, lambda _: True).groups

    assert (group.node, [one.job for one in group.jobs], group.others) == ("n2", ["1", "2"], 0)
    assert (group.bound, group.predicted_s, group.measured_s) == ("cpu", 0.5, 0.52)


def test_what_is_not_known_is_null_and_a_node_without_workers_has_no_group() -> None:
    facts = {
        "n1": m.ExecutorFacts(is_there=True),
        "n2": m.ExecutorFacts(is_there=True, takers=(taker("1", 0.3, 0.1, 0.4), taker("2", 0.0, 0.0))),
        "n3": m.ExecutorFacts(is_there=True, takers=(taker("3", 0.3, 0.1, 0.4),), others=1),
    }

    groups = view.report(facts, lambda _: True).groups

    assert [group.node for group in groups] == ["n2", "n3"]
    assert {(group.bound, group.predicted_s, group.measured_s) for group in groups} == {(None, None, None)}
    assert groups[0].jobs[1].comp_s is None


def test_a_user_sees_own_jobs_and_the_others_number() -> None:
    facts = {"n1": m.ExecutorFacts(is_there=True, takers=(taker("1", 0.1, 0.3), taker("2", 0.1, 0.3)))}

    (group,) = view.report(facts, lambda job: job == "2").groups

    assert ([one.job for one in group.jobs], group.others) == (["2"], 1)
    assert group.bound == "network"  # of all of them, whoever asks


def test_explain_says_with_how_many_a_job_takes_turns_and_what_bounds_them() -> None:
    alone = m.ExecutorFacts(is_there=True, takers=(taker("1", 0.1, 0.3, 0.4),))
    two = m.ExecutorFacts(is_there=True, takers=(taker("1", 0.1, 0.3, 0.45), taker("2", 0.1, 0.1, 0.44)))

    assert [*explain({"n1": two, "n3": alone}, "1")] == [
        "turns: on n1 with 1 other job; an iteration of all takes 0.4 s by prediction, bound by communicating; "
        "its own takes 0.45 s",
        "turns: on n3 alone; an iteration of all takes 0.4 s by prediction, bound by the longest of its jobs; "
        "its own takes 0.4 s",
    ]
    assert [*explain({"n1": two}, "9")] == []


def test_an_agent_says_who_takes_turns_with_each_report_and_the_log_gets_only_that_an_executor_is_there() -> None:
    world = World(rules(), nodes=1)
    told = [m.ExecutorFacts(is_there=True, takers=(taker("1", 0.1 * many, 0.3),)) for many in (1, 2)]
    first, second = ({"executor": msgspec.Raw(msgspec.json.encode(one))} for one in told)
    line = connected(world, services=first)
    assert line.executor == told[0]

    there = ServiceChanged(node="n0", name="executor", raw='{"is_there":true}')
    assert world.log[-1].event == there

    events = line.reported(world.state, report(services=second))

    assert line.executor == told[1]
    assert events == []
    assert line.reported(world.state, report(2, services={})) == [structs.replace(there, raw="")]
    assert line.executor is None


def test_api_page_metrics_and_tables_show_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(api: Api) -> None:
        mine = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        facts = m.ExecutorFacts(is_there=True, takers=(taker(mine, 0.3, 0.1, 0.52), taker("77", 0.2, 0.2, 0.51)))
        monkeypatch.setattr(api.sessions, "sensed", lambda: {"n0": Sensed(executor=facts)})
        monkeypatch.setattr(api.overviews, "_sensed", api.sessions.sensed)

        (own,) = (await api.as_uid(OTHER.pw_uid).get("/v1/groups")).json()["groups"]
        (others,) = (await api.as_uid(THIRD.pw_uid).get("/v1/groups")).json()["groups"]
        page = (await api.as_uid(OTHER.pw_uid).get("/v1/overview")).json()["groups"]
        metrics = generate_latest(ManagerCollector(api.context).registry()).decode()

        assert ([one["job"] for one in own["jobs"]], own["others"], own["predicted_s"]) == ([mine], 1, 0.5)
        assert (others["jobs"], others["others"], others["bound"]) == ([], 2, "cpu")
        assert page == [own]
        assert 'farside_manager_group_iteration_seconds{kind="predicted",node="n0"} 0.5' in metrics
        assert 'farside_manager_group_iteration_seconds{kind="measured",node="n0"} 0.52' in metrics
        console = Console(file=io.StringIO(), width=120)
        console.print(group_table([own]), group_job_table([own]))
        assert "0.52 s" in console.file.getvalue()  # type: ignore[attr-defined]

    api_test(test, tmp_path)


@pytest.mark.long
def test_two_jobs_of_a_manager_that_train_on_one_node_are_shown_as_a_group(tmp_path: Path) -> None:
    node = tmp_path / "a"
    node.mkdir()

    def groups() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = manager.get("groups")["groups"]
        return [group for group in found if len(group["jobs"]) == 2 and group["measured_s"]]

    with executor(node), running_manager(tmp_path / "m", token_submit="true") as manager:
        config = write_config(node, manager.url, token=manager.node_token("n1"))
        with agent(config):
            until_connected(node)
            ids = [manager.submit(sys.executable, "-c", WORKER, cwd=str(node), gpus=1) for _ in range(2)]
            (group,) = until(groups, what="a group of two jobs", deadline_s=60)
            (line,) = (one for one in manager.get("jobs", ids[0], "explain")["lines"] if one.startswith("turns: "))

    assert (group["node"], {one["job"] for one in group["jobs"]}, group["others"]) == ("n1", set(ids), 0)
    assert group["predicted_s"] > 0
    assert "on n1 with 1 other job; an iteration of all takes" in line

"""What `farside sim` plays besides policies: a manager's accounts and QOS, and planned maintenance."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from farside.cli.sim import Request
from farside.cli.simulate.request import Prepared, prepare
from farside.errors import ConfigError

TRACE = """\
job_id,submit_s,gpus,duration_s,user,account,qos
1,0,4,100,ann,ml,
2,10,4,50,ann,ml,
3,20,4,30,bob,bio,
4,30,8,10,bob,,urgent
"""
TENANTS = """\
fair_share_half_life_s = 0

[[account]]
name = "ml"
quota_gpus = 4
users = "ann"

[[account]]
name = "bio"
users = "bob"

[[qos]]
name = "urgent"
priority = 10
may_preempt = false
"""
Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


@pytest.fixture
def request_for(write: Write) -> Request:
    trace = write("jobs.csv", TRACE)
    return Request(trace=trace, policy="fifo", gpus_per_node=8, nodes=1, settings=["is_strict=false"])


def starts(prepared: Prepared) -> dict[str, float]:
    (experiment,) = prepared.experiments
    runs = experiment.simulation(prepared.scene.site, prepared.scene.jobs).run()
    return {entry.job.job_id: run.start_s for entry, run in zip(prepared.scene.jobs, runs, strict=True)}


def test_quota_and_priority_of_a_managers_file_count(request_for: Request, write: Write) -> None:
    tenants = write("manager.toml", TENANTS)

    free, bound = prepare(request_for), prepare(replace(request_for, tenants=tenants))

    assert starts(free) == {"1": 0, "2": 10, "3": 60, "4": 100}
    # 2 waits for its account's quota though GPUs are free; 4 goes before it by priority, and belongs to bio.
    assert starts(bound) == {"1": 0, "3": 20, "4": 100, "2": 110}
    assert {entry.job.account for entry in bound.scene.jobs} == {"ml", "bio"}
    assert any(fact.endswith("manager.toml: 2 accounts, 1 QOS") for fact in bound.facts)


def test_without_that_file_accounts_of_the_trace_do_not_count(request_for: Request) -> None:
    prepared = prepare(replace(request_for, settings=["is_strict=false", "user_quota_gpus=4"]))

    assert {(entry.job.account, entry.job.qos) for entry in prepared.scene.jobs} == {("", "")}


def test_a_job_that_the_manager_would_refuse_is_refused_or_left_out(request_for: Request, write: Write) -> None:
    tenants = write("manager.toml", TENANTS.replace('users = "bob"', 'users = "eve"'))
    asked = replace(request_for, tenants=tenants)

    with pytest.raises(ConfigError, match="2 of 4 jobs can never be submitted under these accounts") as refused:
        prepare(asked)
    kept = prepare(replace(asked, on_bad="skip"))

    assert "line 4: job 3: account: user bob does not belong to account bio" in str(refused.value)
    assert "line 5: job 4: account: user bob belongs to none" in str(refused.value)
    assert [entry.job.job_id for entry in kept.scene.jobs] == ["1", "2"]
    assert kept.left_out == 2


def test_a_job_above_its_accounts_quota_is_refused_or_left_out(request_for: Request, write: Write) -> None:
    trace = write("large.csv", TRACE + "5,40,5,10,ann,ml,\n")
    asked = replace(request_for, trace=trace, tenants=write("manager.toml", TENANTS))

    with pytest.raises(
        ConfigError, match="line 6: job 5: gpus: 5 GPUs are more than account ml may have at once, 4 GPUs"
    ):
        prepare(asked)
    kept = prepare(replace(asked, on_bad="skip"))

    assert [entry.job.job_id for entry in kept.scene.jobs] == ["1", "2", "3", "4"]
    assert kept.left_out == 1


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("policy = 'las'\n", [], "has neither accounts nor QOS; add a table"),
        (TENANTS, ["user_quota_gpus=4"], "--set user_quota_gpus: --tenants .* says what accounts may use"),
        (TENANTS, ["options.fair_share_half_life_s=1h"], "--set fair_share_half_life_s: --tenants"),
        ("[[account]]\nname = 'a'\nshares = -1\n", [], "shares"),
    ],
)
def test_a_file_of_accounts_that_can_not_count_is_one_line(
    request_for: Request, write: Write, text: str, settings: list[str], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        prepare(replace(request_for, settings=settings, tenants=write("manager.toml", text)))


def test_no_job_starts_into_maintenance(request_for: Request, write: Write) -> None:
    closed = write("closed.csv", "nodes,begin,end,planned,reason\nn0,40,200,5,new disks\n")

    prepared = prepare(replace(request_for, maintenance=closed))

    # Jobs without a limit wait from when it was planned until it is over.
    assert starts(prepared) == {"1": 0, "2": 200, "3": 200, "4": 250}
    assert any(fact.endswith("closed.csv: nodes are closed 1 time") for fact in prepared.facts)


def test_dates_are_taken_where_the_trace_has_dates(request_for: Request, write: Write) -> None:
    trace = write("dated.csv", "job_id,submit_time,gpus,duration_s\n1,2024-01-01 00:00:00,8,100\n")
    closed = write("closed.csv", 'nodes,begin,end\n"n0",2024-01-01 00:00:00,2024-01-01 01:00:00\n')

    prepared = prepare(replace(request_for, trace=trace, maintenance=closed))

    (start_s,) = starts(prepared).values()
    assert start_s - prepared.scene.jobs[0].job.submit_s == 3600


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nodes,begin\nn0,1\n", "line 1: a column is missing; give nodes,begin,end"),
        ("nodes,begin,end,why\nn0,1,2,x\n", "line 1: no column 'why' is known"),
        ("nodes,begin,end\n", "has no rows"),
        ("nodes,begin,end\nn0,1\n", "line 2: 2 cells, the header has 3"),
        ("nodes,begin,end\nn1,1,2\n", "line 2, column nodes: the cluster has no node 'n1'; did you mean 'n0'"),
        ("nodes,begin,end\nn[0-,1,2\n", "line 2, column nodes"),
        ("nodes,begin,end\n,1,2\n", "column nodes: is empty; give a list"),
        ("nodes,begin,end\nn0,2,2\n", "column end: '2' is not after '2'"),
        ("nodes,begin,end,planned\nn0,1,2,3\n", "column planned: '3' is after '1'"),
        ("nodes,begin,end\nn0,soon,2\n", "column begin: 'soon' is not a time"),
        ("nodes,begin,end\nn0,2024-01-01,2024-01-02\n", "is a date, and the trace counts seconds"),
    ],
)
def test_maintenance_that_makes_no_sense_is_one_line(
    request_for: Request, write: Write, text: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        prepare(replace(request_for, maintenance=write("closed.csv", text)))


def test_a_placement_without_nodes_has_none_to_close(request_for: Request, write: Write) -> None:
    closed = write("closed.csv", "nodes,begin,end\nn0,40,200\n")

    with pytest.raises(ConfigError, match="placement count does not say on which nodes jobs run; take"):
        prepare(replace(request_for, placement="count", maintenance=closed))

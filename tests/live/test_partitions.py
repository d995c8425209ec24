"""Partitions of the live manager: nodes and queues of their own, who may use them, and nodes that change hands."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from farside.config import ManagerConfig
from farside.config.check import manager_problems
from farside.config.manager import AccountRow, PartitionRow
from farside.errors import ConfigError
from farside.scheduler.admission.partitions import Partitions
from farside.scheduler.configured_rules import partitions_of
from farside.scheduler.manager.api.jobs import cluster_problems, with_cpus
from farside.scheduler.manager.compare_simulation import recording, simulated
from farside.scheduler.manager.model.accounts import charged
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import NodesReserved
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.power.nodes_needed import nodes_needed
from farside.scheduler.manager.view.partition import Owners, Whose
from farside.scheduler.tenancy import Account, Tenancy
from tests.live.facts import gpus, joined
from tests.live.test_api import OTHER, an_api
from tests.live.world import World, rules


def config(**nodes: str) -> ManagerConfig:
    return ManagerConfig(node="m", partition=tuple(PartitionRow(name=name, nodes=told) for name, told in nodes.items()))


def world(order: str = "fifo", *, nodes: int = 2, **told: str) -> World:
    return World(rules(order), nodes=nodes, gpus=4, partitions=partitions_of(config(**told)))


def where(w: World, job_id: str) -> tuple[str, ...]:
    return w.job(job_id).nodes


def test_a_job_runs_on_the_nodes_of_its_partition_alone() -> None:
    w = world(a="n0", b="n1")
    first, second = w.submit(4, partition="b"), w.submit(1, partition="b")
    other = w.submit(1, partition="a")

    assert (where(w, first), w.phase(second), where(w, other)) == (("n1",), Phase.WAITING, ("n0",))
    assert w.decider.why(second, w.now_s, str)[-1] == "partition b has 4 GPUs on 1 node"
    assert not [*violations(w.log)]


def test_the_first_in_line_of_one_partition_blocks_nobody_in_another() -> None:
    w = world(a="n0", b="n1")
    w.submit(4, partition="a")
    blocked = w.submit(4, partition="a")

    assert (w.phase(blocked), w.phase(w.submit(1, partition="b"))) == (Phase.WAITING, Phase.STARTING)


def test_each_partition_learns_from_its_own_jobs() -> None:
    w = World(rules("gittins", first_fit_jobs="1"), nodes=2, partitions=partitions_of(config(a="n0", b="n1")))
    job = w.submit(2, partition="b")
    w.runs(job)
    w.pass_s(10)
    w.exits(job)

    learned = {name: domain.history.ended_gpu_s for name, domain in w.decider.domains.items()}
    assert learned == {"a": [], "b": [20.0]}
    w.lead()
    assert {name: domain.history.ended_gpu_s for name, domain in w.decider.domains.items()} == learned


def test_nodes_that_no_partition_names_are_of_the_one_with_the_rest_or_of_none() -> None:
    rest = world(a="n0", b="*")
    nobodys = world(a="n0")

    assert where(rest, rest.submit(4, partition="b")) == ("n1",)
    rest.join("n2")
    assert where(rest, rest.submit(4, partition="b")) == ("n2",)
    nobodys.submit(4, partition="a")
    assert nobodys.phase(nobodys.submit(1, partition="a")) is Phase.WAITING


def test_a_resize_ends_no_job_and_a_node_goes_over_when_its_jobs_have_ended() -> None:
    w = world(nodes=3, a="n[0-1]", b="n2")
    first, second = w.submit(4, partition="a"), w.submit(2, partition="a")
    for job in (first, second):
        w.runs(job)
    assert where(w, second) == ("n1",)

    w.partitions = partitions_of(config(a="n0", b="n[1-2]"))
    w.lead()
    third, fourth = w.submit(4, partition="b"), w.submit(4, partition="b")

    assert (w.phase(first), w.phase(second), where(w, third)) == (Phase.RUNNING, Phase.RUNNING, ("n2",))
    assert w.phase(fourth) is Phase.WAITING  # n1 is still a's, and takes no more jobs of it either
    assert w.phase(w.submit(2, partition="a")) is Phase.WAITING
    assert "jobs of partition a are still on n1, and end there first" in w.decider.why(fourth, w.now_s, str)
    w.exits(second)
    assert where(w, fourth) == ("n1",)
    assert not [*violations(w.log)]


def test_a_node_that_is_taken_away_from_all_takes_no_job_and_its_own_runs_on() -> None:
    w = world(a="n0,n1")
    job = w.submit(8, partition="a")
    w.runs(job)
    w.partitions = partitions_of(config(a="n0"))
    w.lead()
    later = w.submit(4, partition="a")

    assert (w.phase(job), w.phase(later)) == (Phase.RUNNING, Phase.WAITING)
    w.exits(job)
    assert where(w, later) == ("n0",)
    assert w.phase(w.submit(4, partition="a")) is Phase.WAITING


def test_jobs_from_before_there_were_partitions_are_in_the_first() -> None:
    w = World(rules(), nodes=2)
    running, waiting = w.submit(8), w.submit(8)
    w.runs(running)
    w.partitions = partitions_of(config(a="n0", b="n1"))
    w.lead()

    assert (w.phase(running), w.phase(waiting)) == (Phase.RUNNING, Phase.WAITING)
    w.exits(running)
    assert w.phase(waiting) is Phase.WAITING
    assert where(w, w.submit(4, partition="b")) == ("n1",)


def test_a_job_of_a_partition_that_is_gone_waits_and_says_so_until_it_is_back() -> None:
    w = world(a="n0", b="n1")
    w.submit(4, partition="b")
    waiting = w.submit(4, partition="b")
    w.partitions = partitions_of(config(a="*"))
    w.lead()

    assert any(
        "partition b is not in the manager's settings any more" in line for line in w.decider.why(waiting, w.now_s, str)
    )
    late = w.submit(1, partition="c")  # by a manager with other settings
    assert w.phase(late) is Phase.WAITING
    w.partitions = partitions_of(config(a="n0", b="n1", c="n2"))
    w.join("n2")
    w.lead()
    assert w.phase(late) is Phase.STARTING


@pytest.mark.parametrize("policy", ["fifo", "las", "best-effort"])
def test_a_quota_counts_the_jobs_of_all_partitions(policy: str) -> None:
    tenancy = Tenancy(accounts={"ml": Account(name="ml", quota_gpus=4, users=frozenset({"ann"}))})
    w = World(
        replace(rules(policy), tenancy=tenancy), nodes=2, gpus=4, partitions=partitions_of(config(a="n0", b="n1"))
    )
    first, second = w.submit(3, account="ml", partition="a"), w.submit(3, account="ml", partition="b")
    w.runs(first)

    assert w.phase(second) is Phase.WAITING
    assert w.decider.why(second, w.now_s, str)[0] == "waits: account ml uses 3 of its 4 GPUs"
    w.exits(first)
    assert w.phase(second) is Phase.STARTING


def test_accounts_are_compared_by_what_they_used_in_all_partitions() -> None:
    accounts = {name: Account(name=name, users=frozenset({user})) for name, user in (("ml", "ann"), ("bio", "bob"))}
    w = World(
        replace(rules(), tenancy=Tenancy(accounts=accounts)), nodes=2, gpus=4,
        partitions=partitions_of(config(a="n0", b="n1")),
    )  # fmt: skip
    greedy = w.submit(4, account="ml", partition="a")
    w.runs(greedy)
    w.pass_s(9000)
    full = w.submit(4, account="bio", user="bob", partition="b")
    w.runs(full)
    w.pass_s(1000)
    # In b ml has used nothing; in all it has used more, so that the one that came last goes first.
    ml, bio = w.submit(4, account="ml", partition="b"), w.submit(4, account="bio", user="bob", partition="b")
    w.exits(full)

    assert (w.phase(ml), w.phase(bio)) == (Phase.WAITING, Phase.STARTING)


def test_a_maintenance_window_closes_nodes_of_the_partition_that_has_them() -> None:
    w = world(a="n0", b="n1")
    w.does(NodesReserved(nodes=("n1",), begin_s=w.now_s + 100, end_s=w.now_s + 200, reason="disks", by="root"))
    kept, free = w.submit(1, partition="b"), w.submit(1, partition="a")

    assert (w.phase(kept), w.phase(free)) == (Phase.WAITING, Phase.STARTING)
    w.pass_s(201)
    assert w.phase(kept) is Phase.STARTING


def test_the_simulator_replays_each_partition_by_itself() -> None:
    w = world(a="n0", b="n1")
    jobs = [w.submit(4, partition=name) for name in "ab"]
    for job in jobs:
        w.runs(job)
    second = w.submit(4, partition="a")
    w.pass_s(100)
    for job in jobs:
        w.exits(job)
    w.runs(second)
    w.pass_s(50)
    w.exits(second)

    found = recording(w.log, partitions=w.partitions)
    assert [one.jct_s for one in simulated(found, w.rules).jobs] == [100.0, 100.0, 150.0]
    assert [one.predicted_s for one in simulated(found, w.rules).jobs] == pytest.approx([100.0, 100.0, 150.0], abs=0.1)


def test_a_waiting_job_calls_nodes_of_its_own_partition_alone() -> None:
    w = world(nodes=3, a="n0", b="n[1-2]")
    w.submit(4, partition="a")
    w.submit(4, partition="a")
    w.pass_s(60)

    assert nodes_needed(w.state, None, w.now_s, partitions=w.partitions) == ()
    assert nodes_needed(w.state, None, w.now_s) != ()


def test_a_node_says_whose_it_is_and_whose_jobs_are_there() -> None:
    w = world(a="n0,n1")
    w.submit(8, partition="a")
    w.partitions = partitions_of(config(a="n0", b="n1"))
    w.lead()
    owners = Owners(partitions=w.partitions, jobs=w.state.jobs)

    assert owners.of(w.state.nodes["n0"]) == Whose(partition="a")
    assert owners.of(w.state.nodes["n1"]) == Whose(partition="b", borrower="a")


# ------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"a": ""}, "partition: table 1: 'a' has no nodes; name some, or * for those that no other has"),
        ({"a": "n1", "b": "n[1-2]"}, "partition: table 2: n1 is in partition a as well; a node is in one place only"),
        (
            {"a": "n[1"},
            "partition: table 1: 'n[1' has a bracket that is not closed; write nodes as n1,gpu[01-16]",
        ),
        (
            {"a": "*", "b": "*"},
            "partition: table 2: partition a has the rest already; * stands once",
        ),
        ({"a": "n1,*"}, "partition: table 1: nodes: * stands alone; leave the other names out"),
        ({"a b": "n1"}, "partition: table 1: 'a b' is no name; up to 64 letters, digits and any of . _ : - make one"),
    ],
)
def test_partitions_that_cannot_be_are_refused_in_a_line(rows: dict[str, str], problem: str) -> None:
    assert [f"{key}: {why}" for key, why in manager_problems(config(**rows))] == [problem]


def test_a_partition_names_accounts_that_there_are_and_no_node_of_colocated_jobs() -> None:
    told = replace(config(), partition=(PartitionRow(name="a", nodes="n1", accounts="ml"),), colocation_nodes="n1")

    assert [why for _, why in manager_problems(told)] == [
        "table 1: n1 is in colocation_nodes as well; a node is in one place only",
        "table 1: there is no [[account]] 'ml'",
    ]


def some() -> Partitions:
    return partitions_of(
        ManagerConfig(
            node="m",
            account=(AccountRow(name="ml", users="ann"),),
            partition=(PartitionRow(name="big", nodes="n0", accounts="ml"), PartitionRow(name="all", nodes="*")),
        )
    )


@pytest.mark.parametrize(
    ("wanted", "account", "problem"),
    [
        ("small", "ml", "partition: there is no partition 'small'; theirs: big, all"),
        ("big", "bio", "partition: big is not for account bio; theirs: all"),
    ],
)
def test_a_partition_that_is_not_there_or_not_for_an_account_is_refused(
    wanted: str, account: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        some().chosen(wanted, account)

    assert str(refused.value) == problem


def test_a_job_that_names_no_partition_gets_the_first_that_its_account_may_use() -> None:
    job = JobSpec(argv=("true",))

    assert charged(job, "ann", None, some()).partition == "all"
    assert some().chosen("", "ml") == "big"
    with pytest.raises(ConfigError, match="partition: the cluster has no partitions"):
        charged(JobSpec(argv=("true",), partition="a"), "ann", None)


def test_a_job_that_is_larger_than_its_partition_can_ever_be_is_refused() -> None:
    w = world(a="n0", b="n1")
    job = JobSpec(argv=("true",), gpus=8, partition="a")

    assert cluster_problems(job, w.state, user="ann", partitions=w.partitions) == [
        "gpus: it asks for 8, and partition a has 4; ask for fewer"
    ]


def test_the_api_lists_the_partition_of_nodes_and_jobs(tmp_path: Path) -> None:
    async def test() -> None:
        async with an_api(tmp_path, partitions=partitions_of(config(a="n0", b="*"))) as api:
            user = api.as_uid(OTHER.pw_uid)
            taken = await user.post("/v1/jobs", json={"argv": ["/bin/true"], "gpus": 2})
            refused = await user.post("/v1/jobs", json={"argv": ["/bin/true"], "partition": "c"})
            (job,) = (await user.get("/v1/jobs")).json()["jobs"]
            (node,) = (await user.get("/v1/nodes")).json()["nodes"]

            assert (taken.status_code, refused.status_code) == (201, 422)
            assert "partition: there is no partition 'c'" in refused.text
            assert (job["partition"], node["partition"], node["borrower"]) == ("a", "a", None)
            assert (await user.get("/v1/nodes/n0")).json()["partition"] == "a"

    asyncio.run(test())


# ------------------------------------------------------------------------------------- CPUs in proportion


@pytest.mark.parametrize(("cpus", "each"), [({"n0": 16, "n1": 8}, 2), ({"n0": 16, "n1": 15}, 3), ({"n0": 2}, 0)])
def test_a_job_gets_its_gpus_part_of_the_cpus_of_the_node_with_the_fewest(cpus: dict[str, int], each: int) -> None:
    w = World(rules(), nodes=0)
    for name, count in cpus.items():
        w.does(joined(name, name, cpus=count, gpus=gpus(4, "H200")))

    assert with_cpus(JobSpec(argv=("true",)), w.state, user="ann").cpus_per_gpu == each


def test_cpus_follow_from_the_nodes_that_a_job_may_use() -> None:
    w = World(rules(), nodes=0, partitions=partitions_of(config(a="n0", b="*")))
    for name, count in (("n0", 32), ("n1", 8), ("n2", 16)):
        w.does(joined(name, name, cpus=count, gpus=gpus(4, "H200")))

    def found(**more: object) -> float:
        spec = structs.replace(JobSpec(argv=("true",)), **more)
        return with_cpus(spec, w.state, user="ann", partitions=w.partitions).cpus_per_gpu

    assert (found(partition="a"), found(partition="b"), found(partition="b", exclude=("n1",))) == (8, 2, 4)
    assert found(partition="a", gpu_model="H100") == 0


@pytest.mark.parametrize(
    ("told", "each"), [({}, 1), ({"cpus_per_gpu": 0}, 0), ({"cpus_per_gpu": 0.5}, 0.5)], ids=["none", "zero", "some"]
)
def test_the_api_sets_cpus_only_where_a_job_names_none(tmp_path: Path, told: dict[str, float], each: float) -> None:
    async def test() -> None:
        async with an_api(tmp_path, cpus_in_proportion=True) as api:  # a node with 8 CPUs and 8 GPUs
            user = api.as_uid(OTHER.pw_uid)
            (job,) = (await user.post("/v1/jobs", json={"argv": ["/bin/true"], **told})).json()["ids"]

            assert (await user.get(f"/v1/jobs/{job}")).json()["spec"].get("cpus_per_gpu", 0) == each

    asyncio.run(test())

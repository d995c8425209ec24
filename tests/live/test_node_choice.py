"""Jobs that choose nodes by name and by feature, and what they are told of it."""

import pytest

from farside.agent.messages import FEATURES_MAX
from farside.config import AgentConfig
from farside.config.check import FEATURES_MAX as SETTING_MAX
from farside.config.check import agent_problems
from farside.config.manager import ManagerConfig, PartitionRow
from farside.scheduler.admission.partitions import NO_PARTITIONS
from farside.scheduler.configured_rules import partitions_of
from farside.scheduler.manager.api.jobs import cluster_problems
from farside.scheduler.manager.model.event import DrainRequested
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec, spec_problems
from farside.scheduler.manager.power.nodes_needed import nodes_needed
from farside.scheduler.manager.view.view import show_node
from tests.live.facts import gpus, joined
from tests.live.world import World, rules, submitted_spec


def a_world(order: str = "fifo", **features: tuple[str, ...]) -> World:
    world = World(rules(order), nodes=0)
    for name, has in features.items():
        memory = {"memory_bytes": 1 << 36, "headroom_bytes": 1 << 36}
        world.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), features=has, **memory))
    return world


def test_a_job_goes_only_to_nodes_with_all_features_that_it_asks_for() -> None:
    world = a_world(n0=("ib",), n1=(), n2=("ib", "nvme"))

    both, ib, more = (world.submit(4, features=asked) for asked in (("ib", "nvme"), ("ib",), ("ib",)))

    assert [world.job(job).nodes for job in (both, ib)] == [("n2",), ("n0",)]
    assert world.phase(more) is Phase.WAITING
    assert "2 nodes that will do have 8 GPUs, 0 of them free (with ib)" in world.decider.why(more, world.now_s, str)


def test_a_job_goes_only_to_nodes_that_it_names_and_never_to_those_that_it_excludes() -> None:
    world = a_world(n0=(), n1=(), n2=())

    named, gang = world.submit(2, nodes=("n1",)), world.submit(8, exclude=("n1",))
    again = world.submit(4, nodes=("n1",))

    assert (world.job(named).nodes, world.job(gang).nodes) == (("n1",), ("n0", "n2"))
    first, *more = world.decider.why(again, world.now_s, str)
    assert first.startswith("waits: needs 4 GPUs among n1 on one node, 2 free;")
    assert "1 node that will do has 4 GPUs, 2 of them free (among n1)" in more
    world.runs(named)
    world.exits(named)
    assert world.job(again).nodes == ("n1",)


def test_a_job_that_chooses_lets_others_of_its_size_pass() -> None:
    world = a_world("best-effort", n0=("ib",), n1=())
    world.submit(4, features=("ib",))
    waiting, free = world.submit(4, features=("ib",)), world.submit(4)

    assert (world.phase(waiting), world.job(free).nodes) == (Phase.WAITING, ("n1",))


def test_a_job_whose_only_node_is_away_says_so() -> None:
    world = a_world(n0=("ib",), n1=())
    world.does(DrainRequested(node="n0", reason="disk", by="root"))
    job = world.submit(1, features=("ib",))
    lines = world.decider.why(job, world.now_s, str)

    assert lines[0] == "waits: needs 1 GPU with ib, 4 free; 0 of them on nodes that will do"
    assert "no node in service will do (with ib)" in lines
    assert any("4 GPUs are on n0: drained (disk)" in line for line in lines)


def test_a_node_that_comes_back_with_a_feature_gets_the_job_that_waits_for_it() -> None:
    world = a_world(n0=())
    job = world.submit(1, features=("ib",))
    before = world.phase(job)
    world.does(
        joined(
            "n0", "n0", boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), features=("ib",), memory_bytes=1 << 36,
            headroom_bytes=1 << 36,
        )
    )  # fmt: skip

    assert (before, world.phase(job)) == (Phase.WAITING, Phase.STARTING)
    assert show_node(world.state.nodes["n0"]).features == ("ib",)


def test_a_job_calls_only_nodes_that_will_do() -> None:
    world = a_world(n0=("ib",), n1=())
    world.submit(4, features=("ib",))
    world.submit(4, features=("ib",))
    world.pass_s(60)

    assert nodes_needed(world.state, None, world.now_s) == ()


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"features": ("nvlink",)}, "features: no node has nvlink; there are ib"),
        ({"nodes": ("n9",)}, "nodes: there is no node n9; `farside nodes` lists those that have joined"),
        (
            {"exclude": ("n9",)},
            "exclude: there is no node n9, and as a feature no node has it; `farside nodes` lists nodes, "
            "and of features there are ib",
        ),
        ({"nodes": ("n1",)}, "nodes: n1 is not in partition a; its partition is b"),
        ({"features": ("ib",), "gpus": 8}, "gpus: it asks for 8, and partition a has 4 with ib; ask for fewer"),
        ({"exclude": ("n0",)}, "gpus: it asks for 1, and partition a has none without n0; ask for others"),
    ],
)
def test_a_choice_that_nothing_meets_is_refused_in_a_line(asked: dict[str, object], problem: str) -> None:
    world = a_world(n0=("ib",), n1=())
    settings = ManagerConfig(
        node="m", partition=(PartitionRow(name="a", nodes="n0"), PartitionRow(name="b", nodes="n1"))
    )
    spec = submitted_spec({"argv": ["true"], "partition": "a", **asked})

    assert cluster_problems(spec, world.state, user="ann", partitions=partitions_of(settings)) == [problem]


def test_without_any_features_a_job_that_asks_for_one_is_told_so() -> None:
    spec = JobSpec(argv=("true",), features=("ib",))

    assert cluster_problems(spec, a_world(n0=()).state, user="ann", partitions=NO_PARTITIONS) == [
        "features: no node has ib; there are none"
    ]


def test_what_is_chosen_is_kept_once_and_in_order() -> None:
    spec = submitted_spec({"argv": ["true"], "nodes": ["n2", "n1", "n2"], "features": ["b", "a"]})

    assert (spec.nodes, spec.features) == (("n1", "n2"), ("a", "b"))


@pytest.mark.parametrize(
    ("told", "problem"),
    [
        ({"nodes": ["n1"], "exclude": ["n1"]}, "exclude: n1 is among nodes as well; leave it out of one"),
        ({"features": ["a b"]}, "features: 'a b' is no name; up to 64 letters, digits and any of . _ : - make one"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(told: dict[str, object], problem: str) -> None:
    (found,) = spec_problems(submitted_spec({"argv": ["true"], **told}))

    assert found.startswith(problem)


def test_a_colocated_job_chooses_no_nodes() -> None:
    told = {"argv": ["true"], "colocate": True, "checkpoint_dir": "/shared", "nodes": ["n1"], "features": ["ib"]}

    assert [line.partition(":")[0] for line in spec_problems(submitted_spec(told))] == ["nodes", "features"]


def test_features_of_an_agent_are_names_and_not_too_many() -> None:
    many = ",".join(f"f{at}" for at in range(FEATURES_MAX + 1))

    assert SETTING_MAX == FEATURES_MAX
    assert [*agent_problems(AgentConfig(node="n", features="ib, a b"))][-1] == (
        "features", "'a b' is no name; up to 64 letters, digits and any of . _ : - make one",
    )  # fmt: skip
    assert [*agent_problems(AgentConfig(node="n", features=many))][-1] == (
        "features", "has 65 names, and a node can tell 64; leave some out"
    )  # fmt: skip

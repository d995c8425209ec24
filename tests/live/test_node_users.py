"""A node that runs jobs of some users only gets no others', and a job that no such node would take is refused."""

import os

import pytest
from msgspec import structs

from farside.agent.messages import USERS_MAX
from farside.agent.run.account import users_here
from farside.config import AgentConfig
from farside.config.check import agent_problems
from farside.errors import ConfigError
from farside.scheduler.manager.api.jobs import cluster_problems, room_problems
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.role import Role
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.nodes.dispatch import AgentLine
from tests.live.facts import gpus, joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules


def join(world: World, name: str, *users: str) -> None:
    memory = {"memory_bytes": 1 << 36, "headroom_bytes": 1 << 36}
    world.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), users=users, **memory))


def a_world(**users: tuple[str, ...]) -> World:
    world = World(rules(), nodes=0)
    for name, names in users.items():
        join(world, name, *names)
    return world


def test_a_job_goes_only_where_its_user_may_run() -> None:
    world = a_world(n0=("ann", "bob"), n1=())

    first, second, third = (world.submit(4, user=user) for user in ("eve", "bob", "eve"))

    assert (world.job(first).nodes, world.job(second).nodes) == (("n1",), ("n0",))
    assert world.phase(third) is Phase.WAITING


def test_a_gang_is_not_spread_over_a_node_that_its_user_may_not_use() -> None:
    world = a_world(n0=(), n1=("ann",), n2=())

    theirs, ours = world.submit(8, user="eve"), world.submit(4, user="ann")

    assert (world.job(theirs).nodes, world.job(ours).nodes) == (("n0", "n2"), ("n1",))


def test_a_job_that_waits_starts_when_its_user_is_let_in() -> None:
    world = a_world(n0=("ann",))
    job = world.submit(1, user="eve")
    before = world.phase(job)

    join(world, "n0", "ann", "eve")

    assert (before, world.phase(job)) == (Phase.WAITING, Phase.STARTING)


def test_a_restarted_brain_knows_it_too() -> None:
    world = a_world(n0=("ann",))
    job = world.submit(1, user="eve")

    world.lead()

    assert world.phase(job) is Phase.WAITING


def test_what_its_user_may_use_nowhere_is_refused_in_one_line() -> None:
    state = a_world(n0=("ann",), n1=("ann", "eve")).state

    assert cluster_problems(JobSpec(argv=("true",), gpus=8), state, user="ann") == []
    assert cluster_problems(JobSpec(argv=("true",), gpus=8), state, user="eve") == [
        "gpus: it asks for 8, and the cluster has 4 that eve may use; ask for fewer"
    ]
    assert cluster_problems(JobSpec(argv=("true",), gpus=1), state, user="bob") == [
        "gpus: it asks for 1, and the cluster has none that bob may use; ask for others"
    ]


def test_processes_are_counted_against_the_nodes_that_their_user_may_use() -> None:
    world = World(rules(), nodes=0)
    for name, count, users in (("large", 64, ("ann",)), ("small", 1, ())):
        world.does(joined(name, name, gpus=gpus(count), users=users))
    roles = (Role(name="w", argv=("w",), count=64, gpus=1), Role(name="s", argv=("s",), count=64 * 30, gpus=0))
    spec = JobSpec(argv=("w",), gpus=64, roles=roles)

    assert room_problems(spec, world.state, user="ann") != []
    assert room_problems(spec, world.state, user="eve") == []


def test_an_agent_tells_whose_tasks_it_runs() -> None:
    world = World(rules(), nodes=0)
    hello = FakeNode("n0").hello()

    for users in ((), ("ann",), ("ann", "bob")):
        told = structs.replace(hello, users=users)
        for event in AgentLine(told, "n0").joined(world.state):
            world.does(event)
        assert world.state.nodes["n0"].users == users


def test_a_sandboxs_agent_names_nobody_and_an_agent_that_is_not_root_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert users_here(run_as="starter", allowed={"ann"}) == ()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert users_here(run_as="submitter", allowed={"bob", "ann"}) == ("ann", "bob")
    assert users_here(run_as="submitter", allowed=()) == ()
    monkeypatch.setattr(os, "geteuid", lambda: 1)  # daemon's, on Debian
    assert users_here(run_as="submitter", allowed=()) == ("daemon",)


def test_an_agent_that_is_not_root_tells_of_its_list_its_own_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)

    assert users_here(run_as="submitter", allowed={"ann", "daemon"}) == ("daemon",)
    with pytest.raises(ConfigError, match="users: daemon is missing"):
        users_here(run_as="submitter", allowed={"ann"})


def test_as_many_users_may_be_named_as_a_node_can_tell() -> None:
    def said(names: int) -> list[str]:
        config = AgentConfig(manager="ws://h:1", users=",".join(f"u{number}" for number in range(names)))
        return [said for setting, said in agent_problems(config) if setting == "users"]

    assert said(USERS_MAX) == []
    assert said(USERS_MAX + 1) == ["has 1025 names, and a node can tell 1024; leave it empty, so that all may run here"]

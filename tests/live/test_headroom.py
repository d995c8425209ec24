"""Memory that agents report is what jobs are placed by: what a donor has lent counts, what others use does not."""

from farside.agent import messages as m
from farside.agent.sense.headroom import headroom_bytes
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.nodes.dispatch import AgentLine
from tests.live.facts import gpus, joined
from tests.live.fake_agent import FakeNode
from tests.live.world import World, rules

GIB = 1 << 30
TOTAL = 64 * GIB


def a_world(**headroom_gib: int) -> World:
    """Nodes of four GPUs and 64 GiB, on which jobs may still get so much."""
    world = World(rules(), nodes=0)
    for name, headroom in headroom_gib.items():
        memory = {"memory_bytes": TOTAL, "headroom_bytes": headroom * GIB}
        world.does(joined(name, name, boot_id="boot-1", cpus=16, gpus=gpus(4, "H200"), **memory))
    return world


def report(world: World, headroom_bytes: int) -> None:
    line = AgentLine(FakeNode("n0").hello(), "n0")
    gpus = FakeNode("n0").declared()
    told = m.Report(seq=1, at_s=1.0, headroom_bytes=headroom_bytes, psi=m.Psi(), gpus=gpus, tasks=())
    for event in line.reported(world.state, told):
        world.does(event)


def submit(world: World, gib: int) -> str:
    return world.submit(1, memory_bytes_per_gpu=gib * GIB)


def test_a_job_goes_where_its_memory_is_free_and_waits_where_it_is_nowhere() -> None:
    world = a_world(n0=10, n1=40)

    large, small, larger = submit(world, 32), submit(world, 8), submit(world, 33)

    assert (world.job(large).nodes, world.phase(small)) == (("n1",), Phase.STARTING)
    assert world.phase(larger) is Phase.WAITING


def test_it_starts_when_a_report_says_that_there_is_room() -> None:
    world = a_world(n0=10)
    job = submit(world, 32)
    before = world.phase(job)

    report(world, 40 * GIB)

    assert (before, world.phase(job)) == (Phase.WAITING, Phase.STARTING)


def test_what_a_donor_has_lent_is_given_to_jobs_and_what_others_use_is_not() -> None:
    """A donor sees its memory go, and recalls: tests/daemon/test_headroom.py. The job need not wait for that."""
    with_loans = headroom_bytes(
        total_bytes=TOTAL, available_bytes=10 * GIB, lent_bytes=40 * GIB, reserve_bytes=4 * GIB, promised_bytes=0
    )
    without = headroom_bytes(
        total_bytes=TOTAL, available_bytes=10 * GIB, lent_bytes=0, reserve_bytes=4 * GIB, promised_bytes=0
    )
    phases = []
    for headroom in (with_loans, without):
        world = a_world(n0=0)
        report(world, headroom)
        phases.append(world.phase(submit(world, 32)))

    assert phases == [Phase.STARTING, Phase.WAITING]


def test_a_node_whose_memory_others_take_gets_nothing_more_and_loses_nothing() -> None:
    world = a_world(n0=40)
    job = submit(world, 32)
    world.runs(job)

    report(world, 0)

    assert world.phase(job) is Phase.RUNNING
    assert world.phase(submit(world, 1)) is Phase.WAITING

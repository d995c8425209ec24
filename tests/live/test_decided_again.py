"""A log's decisions made again, each on the state that the manager had read when it made it."""

from msgspec import structs

from farside.scheduler.manager.compare_decisions import DecisionCount, decided_again
from farside.scheduler.manager.model.event import Entry, JobStopping, JobSubmitted
from farside.scheduler.manager.model.record import Phase
from farside.scheduler.manager.model.spec import JobSpec
from tests.live.world import World, rules


def a_day(policy: str, *, leads: bool = False) -> World:
    """On one node, one job runs; a wide one and a small one come, for which `sf` ends the first."""
    world = World(rules(policy), nodes=1)
    first = world.submit(4)
    world.runs(first)
    world.submit(4)
    world.pass_s(1.0)
    small = world.submit(1)
    if leads:
        world.lead()
    world.exits(first)
    for _ in range(2):
        job = next(job for job in ("2", small) if world.phase(job) is Phase.STARTING)
        world.runs(job)
        world.pass_s(5.0)
        world.exits(job)
    return world


def test_a_log_s_decisions_are_made_again_as_they_were() -> None:
    for policy, decisions in (("fifo", 3), ("sf", 4)):
        world = a_day(policy)

        assert decided_again(world.log, world.rules) == DecisionCount(decisions=decisions, different=0, elsewhere=0)


def test_they_are_after_a_change_of_leader_too() -> None:
    world = a_day("sf", leads=True)

    assert decided_again(world.log, world.rules) == DecisionCount(decisions=4, different=0, elsewhere=0)


def test_what_other_rules_decided_is_another_decision_and_the_next_ones_are_judged_by_the_log() -> None:
    world = a_day("fifo")
    found = decided_again(world.log, rules("sf"))

    # By `sf` the small one takes the GPUs of the first at once, and the first waits again.
    assert found == DecisionCount(decisions=5, different=3, elsewhere=0)
    assert found.error == 3 / 5


def test_a_job_that_came_while_a_decision_was_written_was_not_known_to_it() -> None:
    world = a_day("sf")
    at = next(at for at, one in enumerate(world.log) if isinstance(one.event, JobStopping))
    # The API process wrote it after the cycle had read the log and before it wrote what it decided.
    came = JobSubmitted(spec=JobSpec(argv=("true",), gpus=1), user="ann", count=3)
    log = [*world.log[:at], Entry(seq=0, at_s=world.log[at].at_s, generation=0, cause="user ann", event=came)]
    log += world.log[at : at + 2]
    entries = [structs.replace(one, seq=seq) for seq, one in enumerate(log, 1)]
    known = [one if one.seq < at + 1 else structs.replace(one, cause=f"entry {at + 1}") for one in entries]

    assert decided_again(entries, world.rules) == DecisionCount(decisions=3, different=0, elsewhere=0)
    assert decided_again(known, world.rules).different > 0


def test_a_log_without_decisions_has_none_that_differ() -> None:
    world = World(rules())

    assert decided_again(world.log, world.rules).error == 0.0

"""The demo's live scene: which day it plays, what it measures, its verdict, and a small day played for real."""

import http.server
import io
import json
import math
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from rich.console import Console

from farside.cli.demo.live.compare import (
    Delays,
    LiveCompared,
    Recall,
    compare,
    delays_of,
    leaders_around,
    recalls_of,
    starts_on,
)
from farside.cli.demo.live.day import (
    DAY_S,
    GPUS_PER_NODE,
    LONGEST_LOG_S,
    MEDIAN_MIN_S,
    LiveDay,
    day_of,
    generated_log,
)
from farside.cli.demo.live.halfway import FIRST, STANDBY, Halfway, prepared
from farside.cli.demo.live.report import lines, print_scene
from farside.cli.demo.live.rig import Estimate, Played, joining_partition, play_day
from farside.cli.demo.live.scene import LiveScene, chosen_day, scene_faults
from farside.cli.demo.live.senders import GRACE_S, Senders
from farside.cli.demo.main import run
from farside.cli.demo.show import Show
from farside.client.manager_client import ManagerAddress
from farside.config import ManagerConfig
from farside.errors import ConfigError, PeerError
from farside.sandbox.session import Session, open_sandbox
from farside.scheduler.manager.compare_decisions import DecisionCount
from farside.scheduler.manager.compare_simulation import Compared, Fidelity, recording
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import Entry, JobAllocated, JobSubmitted, NodeJoined, SchedulerTookLead
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.sim.trace.job import TraceJob
from farside.scheduler.state import Job
from tests.agent.node import processes_with
from tests.live.test_lent_nodes import a_world, with_guest
from tests.live.world import World, rules
from tests.support.waiting import until


def traced(at: int, submit_s: float, duration_s: float, *, gpus: int = 1, vc: str = "a", user: str = "") -> TraceJob:
    job = Job(job_id=str(at), sequence=at, submit_s=submit_s, gpus=gpus, vc=vc, user=user)
    return TraceJob(job=job, duration_s=duration_s)


def days(*counts: int, duration_s: float = 1200.0) -> list[TraceJob]:
    """A log with ``counts`` jobs on each day, a minute apart, from midnight on."""
    return [
        traced(1000 * day + at, day * DAY_S + 60.0 * at, duration_s) for day, count in enumerate(counts, 10)
        for at in range(count)
    ]  # fmt: skip


# ---- which day


def test_of_the_days_that_one_machine_can_play_the_busiest_is_played() -> None:
    day = day_of(days(70, 90, 80), "a log")

    assert len(day.jobs) == 90
    assert (day.jobs[0].job.submit_s, len(day.past)) == (0.0, 70)
    assert day.source.startswith("a log, ")


def test_times_are_divided_so_that_the_median_job_runs_long_enough_to_show_what_was_decided() -> None:
    day = day_of(days(70), "a log")

    assert day.factor == 600.0
    assert day.median_s == MEDIAN_MIN_S
    assert day.jobs[1].job.submit_s == pytest.approx(0.1)


def test_days_with_too_many_jobs_too_few_or_too_short_ones_are_refused_in_one_line() -> None:
    for jobs in (days(20), days(900), days(70, duration_s=100.0)):
        with pytest.raises(ConfigError, match="a log: no day of it has 60 to 800 jobs") as refused:
            day_of(jobs, "a log")
        assert "\n" not in str(refused.value)


def test_a_virtual_cluster_has_nodes_for_what_its_jobs_need_and_for_its_largest() -> None:
    busy = [traced(at, 10 * DAY_S + at, DAY_S / 4, gpus=8, vc="b") for at in range(9)]
    wide = [traced(100, 10 * DAY_S, 60.0, gpus=3 * GPUS_PER_NODE, vc="c")]
    jobs = sorted([*days(70), *busy, *wide], key=lambda one: one.job.submit_s)

    # 9 jobs of a quarter of a day on a node each, at 0.9 of what the nodes can do; the one of c is 1 of 80.
    assert day_of(jobs, "a log").nodes == {"a": 1, "b": round(9 / 4 / 0.9), "c": 3}


def test_jobs_that_run_for_days_end_after_half_a_day_and_are_counted() -> None:
    jobs = [*days(70), traced(5000, 10 * DAY_S + 5000, 3 * DAY_S)]
    day = day_of(sorted(jobs, key=lambda one: one.job.submit_s), "a log")

    assert day.cut == 1
    assert max(one.duration_s for one in day.jobs) == pytest.approx(LONGEST_LOG_S / day.factor)
    assert "1 longer than 12 h end after that" in day.words


def test_a_nearly_idle_virtual_cluster_is_left_out_and_counted() -> None:
    jobs = [*days(150), traced(5000, 10 * DAY_S + 5000, 600.0, vc="idle")]
    day = day_of(sorted(jobs, key=lambda one: one.job.submit_s), "a log")

    assert (set(day.nodes), day.left_out) == ({"a"}, 1)
    assert "1 job of nearly idle virtual clusters left out" in day.words


def test_a_log_whose_virtual_clusters_need_more_nodes_than_one_machine_plays_is_refused() -> None:
    jobs = [traced(at, 10 * DAY_S + at, 1200.0, gpus=200) for at in range(80)]

    with pytest.raises(ConfigError, match="need 31 nodes of 8 GPUs on that day, and 16 is the most"):
        day_of(jobs, "a log")


def test_a_node_joins_where_jobs_of_the_first_half_need_most_of_each_node_and_each_has_room_without_it() -> None:
    rows = [
        ("one", 0.0, 90.0),
        ("busy", 0.0, 20.0),
        ("wide", 1.0, 21.0),
        ("late", 8.0, 80.0),
        ("gang", 0.0, 99.0),
        ("late", 10.0, 80.0),
    ]
    jobs = tuple(
        traced(at, at_s, run_s, gpus=16 if vc == "gang" else 8, vc=vc) for at, (vc, at_s, run_s) in enumerate(rows)
    )
    day = LiveDay(
        source="a log", jobs=jobs, past=(), nodes={"busy": 2, "gang": 2, "late": 2, "one": 1, "wide": 3}, factor=1.0
    )  # fmt: skip

    assert day.half_s == 5.0
    assert joining_partition(day) == "busy"
    with pytest.raises(ConfigError, match="a log: no virtual cluster can do with one node fewer"):
        joining_partition(replace(day, nodes={"gang": 2, "one": 1}))


def test_the_generated_log_has_a_day_users_and_virtual_clusters_and_is_the_same_each_time() -> None:
    day = day_of(generated_log(), "generated")

    assert day == day_of(generated_log(), "generated")
    assert day.has_users
    assert set(day.nodes) == {"robots", "speech", "vision"}
    assert day.median_s >= MEDIAN_MIN_S


def test_without_philly_a_generated_log_is_played_and_the_scene_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARSIDE_DATA", str(tmp_path))
    said = io.StringIO()

    with Show(Console(file=said, width=200), lambda: "") as show:
        day = chosen_day(show, None)

    assert day.source.startswith("generated log")
    assert f"there is no {tmp_path}/cluster/jobs/philly_dev.csv.gz" in said.getvalue()
    assert "--log FILE names another" in said.getvalue()


def test_another_scene_refuses_a_log() -> None:
    with pytest.raises(ConfigError, match="--log: the scene memory plays no log"):
        run(part="memory", log=Path("/nowhere"))


# ---- what is measured


def later(entries: list[Entry], kind: type, seconds: float) -> list[Entry]:
    """The log as if each entry of a kind, and all behind it, had been written so much later."""
    shift_s, found = 0.0, []
    for entry in entries:
        shift_s += seconds * isinstance(entry.event, kind)
        found.append(msgspec.structs.replace(entry, at_s=entry.at_s + shift_s))
    return found


def a_job(world: World, *, starts_s: float, runs_s: float, stops_s: float) -> str:
    job = world.submit()
    world.pass_s(starts_s)
    world.runs(job)
    world.pass_s(runs_s + stops_s)
    world.exits(job)
    return job


def test_delays_of_deciding_starting_and_stopping_are_read_from_the_log() -> None:
    world = World(rules())
    job = a_job(world, starts_s=0.2, runs_s=10.0, stops_s=0.1)
    entries = later(world.log, JobAllocated, 0.5)

    delays = delays_of(entries, recording(entries), {job: 10.0})

    assert (delays.deciding_s, delays.starting_s, delays.stopping_s) == pytest.approx((0.5, 0.2, 0.1))


def test_time_in_which_others_leave_a_jobs_nodes_is_no_deciding() -> None:
    """[4.2] Owners that waited for borrowers, up to 3.7 s, were said to have waited for a decision."""
    world = a_world()
    _, guest = with_guest(world)
    world.pass_s(10.0)
    owner = world.submit(2, partition="b")
    second = world.submit(2, partition="b")  # what the borrower leaves besides
    world.pass_s(3.0)
    world.exits(guest, 143, cause="preempted")
    for job in (owner, second):
        world.runs(job)
        world.pass_s(10.0)
        world.exits(job)
    needs_s = dict.fromkeys((owner, second), 10.0)

    delays = delays_of(world.log, recording(world.log, needs_s.keys()), needs_s)

    assert delays.longest_s == pytest.approx(0.0)


def killed_world() -> tuple[World, float, list[str]]:
    """Two jobs come while no scheduler process lives, the long one first: a log, the time of the kill, the jobs."""
    world = World(rules("sf"), nodes=1)
    world.pass_s(5.0)
    killed_s = world.now_s
    for gpus, after_s in ((4, 0.5), (1, 0.5)):
        world.now_s += after_s
        world.tell(JobSubmitted(spec=JobSpec(argv=("true",), gpus=gpus), user="ann"))
    world.now_s += 2.0
    world.lead()
    for job in ("2", "1"):
        world.runs(job)
        world.pass_s(10.0)
        world.exits(job)
    return world, killed_s, ["1", "2"]


def test_while_no_scheduler_process_lived_nobody_decided_and_no_job_is_charged_for_it() -> None:
    world, killed_s, jobs = killed_world()

    delays = delays_of(world.log, recording(world.log), dict.fromkeys(jobs, 10.0), killed_s=killed_s)

    assert delays.pause == pytest.approx((killed_s, killed_s + 3.0))
    assert delays.recovery_s == pytest.approx(3.0)
    assert (delays.deciding_s, delays.longest_s) == pytest.approx((0.0, 0.0))


def test_the_simulation_decides_nothing_while_no_scheduler_process_lived() -> None:
    world, killed_s, jobs = killed_world()
    config = ManagerConfig(node="m", policy="sf")
    needs_s = dict.fromkeys(jobs, 10.0)

    found = compare(world.log, config, needs_s, killed_s=killed_s)
    otherwise = compare(world.log, config, needs_s)

    # The short one had come when decisions went on, and went first. Without the pause the other starts when it comes.
    assert [one.predicted_s for one in found.fidelity.jobs] == pytest.approx([one.jct_s for one in found.fidelity.jobs])
    assert found.fidelity.jobs[0].predicted_s == pytest.approx(22.5)
    assert otherwise.fidelity.jobs[0].predicted_s < 15.0


def test_the_simulation_gets_a_node_when_it_joined() -> None:
    world = World(rules(), nodes=1)
    first, second = world.submit(4), world.submit(4)
    world.runs(first)
    world.pass_s(4.0)
    world.join("n1")
    world.settle()
    world.runs(second)
    world.pass_s(6.0)
    world.exits(first)
    world.pass_s(4.0)
    world.exits(second)
    config, needs_s = ManagerConfig(node="m", policy="fifo"), {first: 10.0, second: 10.0}

    found = compare(world.log, config, needs_s)

    assert [one.predicted_s for one in found.fidelity.jobs] == pytest.approx([10.0, 14.0])
    assert (starts_on(world.log, "n0"), starts_on(world.log, "n1"), starts_on(world.log, "n2")) == (1, 1, 0)


def test_who_led_before_a_kill_and_who_led_next_are_read_from_the_log() -> None:
    def led(seq: int, holder: str) -> Entry:
        lead = SchedulerTookLead(generation=seq, holder=holder)
        return Entry(seq=seq, at_s=float(seq), generation=seq, cause="test", event=lead)

    three = [led(1, "manager:7"), led(2, f"{STANDBY}:9"), led(3, "manager:11")]

    assert leaders_around([], 1.5) == ("", "")
    assert leaders_around(three, 0.5) == ("", FIRST)
    assert leaders_around(three, 1.5) == (FIRST, STANDBY)
    assert leaders_around(three, 2.5) == (STANDBY, FIRST)
    assert leaders_around(three, math.inf) == (FIRST, "")


def test_the_longest_decision_is_that_of_one_start() -> None:
    world = World(rules())
    jobs = [a_job(world, starts_s=0.0, runs_s=10.0, stops_s=0.0) for _ in range(2)]
    *_, slow = (entry.seq for entry in world.log if isinstance(entry.event, JobAllocated))
    entries = [msgspec.structs.replace(one, at_s=one.at_s + 0.8 * (one.seq >= slow)) for one in world.log]

    delays = delays_of(entries, recording(entries), dict.fromkeys(jobs, 10.0))

    assert (delays.deciding_s, delays.longest_s) == pytest.approx((0.4, 0.8))


def test_the_simulation_is_charged_with_the_delays_and_has_each_job_s_own_time() -> None:
    world = World(rules(), nodes=1)
    jobs = [world.submit(4) for _ in range(2)]
    for job in jobs:
        world.pass_s(0.2)
        world.runs(job)
        world.pass_s(10.1)
        world.exits(job)

    found = compare(world.log, ManagerConfig(node="m", policy="fifo"), dict.fromkeys(jobs, 10.0))

    assert found.delays.total_s == pytest.approx(0.3)
    assert [one.predicted_s for one in found.fidelity.jobs] == pytest.approx([10.3, 20.6])


def test_what_deciding_took_for_a_job_is_charged_to_that_job() -> None:
    world = World(rules(), nodes=1)
    jobs = [a_job(world, starts_s=0.0, runs_s=10.0, stops_s=0.0) for _ in range(2)]
    entries = later(world.log, JobAllocated, 0.5)

    found = compare(entries, ManagerConfig(node="m", policy="fifo"), dict.fromkeys(jobs, 10.0))

    assert found.delays.deciding_of_s == pytest.approx(dict.fromkeys(jobs, 0.5))
    assert [one.predicted_s for one in found.fidelity.jobs] == pytest.approx([10.5, 10.5])


def test_a_day_under_fifo_is_simulated_beside_it() -> None:
    world = World(rules(), nodes=1)
    jobs = [world.submit(4) for _ in range(2)]
    for job in jobs:
        world.runs(job)
        world.pass_s(10.0)
        world.exits(job)

    found = compare(world.log, ManagerConfig(node="m", policy="fifo"), dict.fromkeys(jobs, 10.0))

    assert found.wait_s == pytest.approx(found.predicted_wait_s)
    assert found.fifo_jct_s == pytest.approx(found.fidelity.predicted_mean_s)


def test_how_long_an_owner_waited_for_a_borrower_is_read_from_the_log() -> None:
    world = a_world()
    _, guest = with_guest(world)
    world.pass_s(10.0)
    owner = world.submit(4, partition="b")
    world.pass_s(3.0)
    world.exits(guest, 143, cause="preempted")

    assert recalls_of(world.log) == (Recall(borrower=guest, owner=owner, waited_s=3.0),)


# ---- the verdict


def compared(*, said_s: float = 10.0, swapped: bool = False, recall_s: float = 0.1, guests: int = 1) -> LiveCompared:
    starts = (2.0, 1.0) if swapped else (1.0, 2.0)
    jobs = tuple(
        Compared(job_id=str(at), gpus=1, jct_s=10.0, predicted_s=said_s, start_s=start_s, predicted_start_s=1.0 + at)
        for at, start_s in enumerate(starts)
    )
    return LiveCompared(
        fidelity=Fidelity(jobs=jobs, preemptions=1, predicted_preemptions=1),
        delays=Delays(deciding_s=0.01, starting_s=0.02, stopping_s=0.03, deciding_of_s={}),
        fifo_jct_s=20.0,
        mean_need_s=5.0,
        decided=DecisionCount(decisions=2, different=0, elsewhere=0),
        recalls=(Recall(borrower="1", owner="2", waited_s=recall_s),),
        guests=guests,
        leaders=(FIRST, ""),
    )


def scene(found: LiveCompared, *, states: tuple[str, ...] = ("done", "done"), told: bool = True) -> LiveScene:
    jobs = (traced(0, 0.0, 2.0), traced(1, 1.0, 4.0))
    day = LiveDay(source="a log", jobs=jobs, past=(), nodes={"a": 1, "b": 1}, factor=100.0)
    played = Played(
        config=ManagerConfig(node="m"),
        entries=(),
        jobs={str(at): one for at, one in enumerate(jobs)},
        states={str(at): state for at, state in enumerate(states)},
        estimates={"0": Estimate(expected_s=4.0, error=1.5, from_jobs=7)} if told else {},
        killed_s=math.inf,
        late_s=0.0,
    )
    return LiveScene(day=day, played=played, compared=found, violations=())


def test_a_day_that_equals_its_simulation_is_good_and_shows_estimates_beside_what_happened() -> None:
    page = io.StringIO()
    good = scene(compared())

    assert scene_faults(good) == ()
    assert scene_faults(replace(good, played=replace(good.played, late_s=5.0))) == ()
    late = replace(good, played=replace(good.played, late_s=36.0))
    assert scene_faults(late) == ("a job was submitted 36.0 s late (5 at most)",)
    assert print_scene(Console(file=page, width=160), good) == 0
    assert "4.0 s" in page.getvalue()
    assert "x2.0" in page.getvalue()
    assert "0.0 % started in another order than in the simulation" in page.getvalue()
    assert "half of 1 estimate were off by a factor of 2.0 or less" in page.getvalue()


def test_a_day_on_which_nothing_waited_or_was_given_back_proves_nothing() -> None:
    good = compared()
    alone = replace(good.fidelity, jobs=good.fidelity.jobs[:1])

    assert scene_faults(scene(replace(good, recalls=()))) == ("no borrower gave nodes back to their owner",)
    assert scene_faults(scene(replace(good, fidelity=alone))) == (
        "no two jobs waited together, so their order says nothing",
    )


def test_it_is_said_where_qssf_gains_nothing_over_fifo() -> None:
    good, said = compared(), "in the simulation QSSF gains nothing over FIFO on this day"

    assert said not in lines(scene(good))
    assert said in lines(scene(replace(good, fifo_jct_s=1.0)))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (scene(compared(said_s=10.6)), "the simulated average JCT is off by +6.0 % (5 at most)"),
        (scene(compared(swapped=True)), "100.0 % of pairs started in the other order (5 at most)"),
        (scene(compared(guests=0)), "no job ran on nodes of another virtual cluster"),
        (scene(compared(recall_s=GRACE_S + 1)), "job 2 waited 6.0 s for borrower 1, whose grace is 5 s"),
        (scene(compared(), states=("done", "failed")), "1 job of 2 not done"),
        (scene(compared(), told=False), "the manager expected nothing of any job"),
        (replace(scene(compared()), violations=("entry 7: a GPU is given twice",)), "the log: entry 7"),
    ],
)
def test_what_is_out_of_bounds_is_named_and_fails_the_demo(bad: LiveScene, said: str) -> None:
    page = io.StringIO()

    (fault,) = scene_faults(bad)
    assert fault.startswith(said)
    assert print_scene(Console(file=page, width=160), bad) == 1
    assert "FAIL" in page.getvalue()


# ---- submissions


class SlowManager(http.server.BaseHTTPRequestHandler):
    """Answers two submissions at a time, and none by itself."""

    meeting = threading.Barrier(2, timeout=10)
    bodies: ClassVar[list[dict[str, object]]] = []

    def do_POST(self) -> None:
        """Answers when another one is asked for as well."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        self.meeting.wait()
        answer = json.dumps({"ids": [body["argv"][-1]]}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Says nothing."""


def test_a_job_is_submitted_while_the_one_before_waits_for_its_answer(tmp_path: Path) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), SlowManager) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = ManagerAddress(endpoint=f"http://127.0.0.1:{server.server_port}")
        with Senders(tmp_path) as senders:
            answers = [senders.send(address, traced(at, 0.0, at / 1000)) for at in (1, 2, 3, 4)]
            ids = [answer.result()[0] for answer in answers]
        server.shutdown()

    assert ids == ["1", "2", "3", "4"]
    assert [body["partition"] for body in SlowManager.bodies] == ["a"] * 4


def test_a_refused_job_ends_the_day_at_the_next_one(tmp_path: Path) -> None:
    nobody = ManagerAddress(endpoint=f"unix:{tmp_path}/none.sock")

    with Senders(tmp_path) as senders:
        wait([senders.send(nobody, traced(0, 0.0, 1.0))])
        with pytest.raises(PeerError, match="no manager answers there"):
            senders.send(nobody, traced(1, 0.0, 1.0))


# ---- for real


@pytest.mark.long
def test_a_small_day_with_users_lends_survives_a_kill_and_its_log_is_sound() -> None:
    rows = [
        ("a", 8, 0.0, 1.5), ("a", 8, 0.1, 3.0), ("b", 8, 1.2, 0.2), ("a", 1, 1.3, 0.2), ("b", 1, 1.4, 0.2),
        ("b", 8, 1.5, 0.2),
    ]  # fmt: skip
    jobs = tuple(
        traced(at, at_s, run_s, gpus=gpus, vc=vc, user="ann" if vc == "a" else "bob")
        for at, (vc, gpus, at_s, run_s) in enumerate(rows)
    )
    past = tuple(traced(at, float(at), 0.5, vc="a", user="ann") for at in range(5))
    day = LiveDay(source="six jobs", jobs=jobs, past=past, nodes={"a": 1, "b": 1}, factor=1.0)

    # Below pytest's own folder of a worker the paths of the agents' sockets would be too long.
    with tempfile.TemporaryDirectory() as folder:
        played = play_day(day, Path(folder), lambda _: None, lends=True, halfway=Halfway.KILL)
        found = compare(played.entries, played.config, played.needs_s, killed_s=played.killed_s)

    assert [*violations(played.entries, is_complete=True)] == []
    assert set(played.states.values()) == {"done"}
    assert len(found.fidelity.jobs) == len(rows)
    assert found.leaders == (FIRST, FIRST)
    # The second job of ann's finds no room at home; bob's first wants its node back.
    assert found.guests >= 1
    assert [one.borrower for one in found.recalls][:1] == ["2"]
    # The past told of ann's jobs before any had ended here.
    assert played.estimates["1"].from_jobs == 5
    assert found.delays.starting_s > 0


@pytest.mark.long
def test_a_node_that_the_manager_has_never_seen_joins_halfway_and_jobs_that_wait_start_there() -> None:
    rows = [("a", 8, 0.01 * at, 1.0) for at in range(10)] + [("b", 1, 0.2, 0.2), ("a", 1, 0.3, 0.2)]
    jobs = tuple(traced(at, at_s, run_s, gpus=gpus, vc=vc) for at, (vc, gpus, at_s, run_s) in enumerate(rows))
    day = LiveDay(source="twelve jobs", jobs=jobs, past=(), nodes={"a": 2, "b": 1}, factor=1.0)

    with tempfile.TemporaryDirectory() as folder:
        played = play_day(day, Path(folder), lambda _: None, halfway=Halfway.JOIN)
        found = compare(played.entries, played.config, played.needs_s)

    came = next(one for one in played.entries if isinstance(one.event, NodeJoined) and one.event.node == "n3")
    submitted = [one.seq for one in played.entries if isinstance(one.event, JobSubmitted)]
    assert (played.joined, played.killed_s) == ("n3", math.inf)
    assert came.seq > submitted[9]
    assert set(played.states.values()) == {"done"}
    assert starts_on(played.entries, "n3") >= 1
    assert starts_on(played.entries, "n1") == 1  # b's own node
    assert len(found.fidelity.jobs) == len(rows)
    assert [*violations(played.entries, is_complete=True)] == []


def a_day_that_fails(folder: Path) -> None:
    with prepared(Halfway.JOIN, folder / "standby", folder, "n9") as act:
        act([])
        raise PeerError("waited 400 s in vain for the jobs of the day to end")


def test_a_node_that_does_not_join_is_what_is_said_of_a_day_that_fails_for_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no sandbox runs in {tmp_path}") as said:
        a_day_that_fails(tmp_path)

    assert "in vain for the jobs" in str(said.value.__cause__)


def test_a_day_that_fails_though_the_node_joined_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farside.sandbox.control.start_agent", lambda *_: None)

    with pytest.raises(PeerError, match="in vain for the jobs"):
        a_day_that_fails(tmp_path)


@pytest.fixture(scope="module")
def one_node() -> Iterator[Session]:
    with open_sandbox(("--cluster", "1x1", "--donors", "1", "--size", "64MiB")) as session:
        yield session


@pytest.mark.long
def test_a_manager_that_ends_in_place_of_standing_by_is_said_at_once_with_its_last_words(
    one_node: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = one_node.state
    damaged = tmp_path / "config.toml"
    damaged.write_text((state / "manager" / "config.toml").read_text() + "mars = 1\n")
    monkeypatch.setattr("farside.cli.demo.live.halfway.sandbox_config", lambda _: damaged)

    with (
        pytest.raises(PeerError, match=r"the manager that stands by ended at once: .*mars"),
        prepared(Halfway.LEADER, tmp_path / "standby", state, ""),
    ):
        pass


@pytest.mark.long
def test_a_manager_that_stands_by_ends_with_who_started_it_and_was_killed(one_node: Session, tmp_path: Path) -> None:
    folder = tmp_path / "standby"
    script = (
        "import signal, sys\nfrom pathlib import Path\nfrom farside.cli.demo.live.halfway import Halfway, prepared\n"
        "with prepared(Halfway.LEADER, Path(sys.argv[1]), Path(sys.argv[2]), ''):\n"
        "    print('ready', flush=True)\n    signal.pause()\n"
    )
    argv = [sys.executable, "-c", script, str(folder), str(one_node.state)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        said = starter.stdout.readline().strip()
        before = processes_with(f"unix:{folder}")
        starter.kill()

    assert said == "ready"
    assert before
    until(lambda: not processes_with(str(folder)), what="the end of the manager that stands by", deadline_s=60)


@pytest.mark.long
def test_another_manager_leads_when_the_whole_first_one_is_killed_and_agents_and_submissions_go_on_with_it() -> None:
    rows = [(8, 0.0, 1.0), (8, 0.1, 0.5), (1, 1.0, 0.2), (1, 1.1, 0.2)]
    jobs = tuple(traced(at, at_s, run_s, gpus=gpus, user="ann") for at, (gpus, at_s, run_s) in enumerate(rows))
    day = LiveDay(source="four jobs", jobs=jobs, past=(), nodes={"a": 1}, factor=1.0)

    with tempfile.TemporaryDirectory() as folder:
        played = play_day(day, Path(folder), lambda _: None, halfway=Halfway.LEADER)
        found = compare(played.entries, played.config, played.needs_s, killed_s=played.killed_s)

    (lead,) = (one for one in played.entries if isinstance(one.event, SchedulerTookLead) and one.generation == 2)
    assert found.leaders == (FIRST, STANDBY)
    assert lead.at_s > played.killed_s
    assert found.delays.pause is not None
    assert found.delays.pause[1] >= lead.at_s
    assert set(played.states.values()) == {"done"}
    assert [*violations(played.entries, is_complete=True)] == []
    assert len(found.fidelity.jobs) == len(rows)

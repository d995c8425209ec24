"""The engine over a real slurmctld with two slurmds of four GPUs each, on loopback. One Slurm for all of them.

Skipped where Debian's slurmctld, slurmd, slurm-client and munge are not installed: `make test` does not install them,
as munge starts a daemon on the machine that it is installed on.

The engine's turns are called one by one, so that each sees what the last one did; the process itself, its shadow and
its end are tested through the command line.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError, PeerError
from farside.scheduler.slurm import read_text
from farside.scheduler.slurm.commands import SlurmCommands
from farside.scheduler.slurm.engine import Engine, Mode, give_back
from farside.scheduler.slurm.shadow import LEAST_JOBS
from farside.scheduler.slurm.snapshot import HELD_MARK, JobPhase, SlurmJob, Snapshot
from tests.slurm.cluster import SlurmCluster, slurm_cluster
from tests.slurm.test_read import comparable
from tests.support.waiting import text_of, until

PARTITIONS = """\
PartitionName=gpu Nodes=gn[1-2] Default=YES MaxTime=INFINITE State=UP
PartitionName=other Nodes=gn[1-2] MaxTime=INFINITE State=UP"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), partitions=PARTITIONS) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def _empty(slurm: SlurmCluster) -> Iterator[None]:
    yield
    slurm.cancel_all()


@pytest.fixture
def config(slurm: SlurmCluster, tmp_path: Path) -> Callable[..., SlurmConfig]:
    def make(**told: Any) -> SlurmConfig:
        given = {
            "partitions": "gpu", "slurm_conf": str(slurm.folder / "slurm.conf"), "state_dir": str(tmp_path / "state"),
            "admin_socket": str(tmp_path / "slurm.sock"), "turn_s": 0.2, "min_run_s": 0, "policy": "srsf",
        }  # fmt: skip
        return load_config(SlurmConfig, (), {**given, **told})

    return make


def turns(config: SlurmConfig, *done: Callable[[], object], mode: Mode = Mode.RUN) -> Engine:
    """One turn, and one more after each of what is done in between."""
    engine = Engine(config, mode, SlurmCommands(config.slurm_conf, config.command_limit_s))

    async def work() -> None:
        await engine.turn()
        for one in done:
            await asyncio.to_thread(one)
            await engine.turn()

    asyncio.run(work())
    return engine


def look(slurm: SlurmCluster) -> Snapshot:
    return asyncio.run(SlurmCommands(slurm.folder / "slurm.conf", 30.0).look())


def job(slurm: SlurmCluster, job_id: str) -> SlurmJob:
    return next(one for one in look(slurm).jobs if one.job_id == job_id)


def full(slurm: SlurmCluster, *options: str) -> tuple[str, str]:
    """Two jobs that hold all GPUs, the first a second longer."""
    first = slurm.submit("--gres=gpu:4", *options)
    slurm.waits_for(first, "RUNNING")
    second = slurm.submit("--gres=gpu:4", *options)
    slurm.waits_for(second, "RUNNING")
    return first, second


def queue(slurm: SlurmCluster) -> list[str]:
    """The waiting jobs as Slurm has them, the first to start first."""
    told = slurm.say("squeue", "--noheader", "--states=PENDING", "--sort=-p,i", "--format=%i")
    return told.split()


def test_lines_and_json_of_this_slurm_tell_the_same(slurm: SlurmCluster) -> None:
    full(slurm)
    slurm.submit("--gpus=2", "--time=10", "--job-name=two words")
    slurm.submit("--array=0-3", "--gres=gpu:1")
    slurm.submit("--nodes=2", "--gres=gpu:h100:1", "--no-requeue")
    environment = {**slurm.environment, "SLURM_TIME_FORMAT": "%s"}
    argv = ["scontrol", "--oneliner", "--details", "show", "job"]

    def same() -> bool:
        seen = {one.job_id: one for one in look(slurm).jobs}
        text = subprocess.run(argv, env=environment, capture_output=True, check=True, text=True).stdout
        lines = {one.job_id: one for one in read_text.jobs_of(text)}
        return {name: comparable(one) for name, one in seen.items()} == {
            name: comparable(one) for name, one in lines.items()
        }

    until(same, what="both tell the same of one moment", deadline_s=20.0, every_s=0.2)


def test_the_queue_is_ordered_by_what_jobs_will_hold(slurm: SlurmCluster, config: Callable[..., SlurmConfig]) -> None:
    full(slurm)
    long = slurm.submit("--gres=gpu:4", "--time=60")
    short = slurm.submit("--gres=gpu:4", "--time=10")
    foreign = slurm.submit("--gres=gpu:4", "--time=5", "--partition=other")
    middle = slurm.submit("--gres=gpu:4", "--time=30")
    before = job(slurm, foreign).priority

    turns(config())

    assert [one for one in queue(slurm) if one != foreign] == [short, middle, long]
    assert job(slurm, foreign).priority == before


def test_without_history_qssf_orders_by_gpus_and_tasks_of_an_array_keep_its_estimate(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    """Tasks get numbers of their own when they start; what ended since the array came was not known then."""
    ends = slurm.submit("--gres=gpu:4", script="sleep 3.1")
    slurm.waits_for(ends, "RUNNING")
    slurm.waits_for(slurm.submit("--gres=gpu:4"), "RUNNING")
    wide, narrow = slurm.submit("--gres=gpu:4"), slurm.submit("--gres=gpu:1")
    array = slurm.submit("--gres=gpu:2", "--array=1-3", "--hold")
    orders: list[list[str]] = []

    def one_ends() -> None:
        orders.append(queue(slurm))
        slurm.say("scancel", wide, narrow)
        until(lambda: job(slurm, ends).phase is JobPhase.OVER, what="its end", deadline_s=60.0, every_s=0.2)

    def tasks_start() -> None:
        slurm.say("scontrol", "release", array)
        until(lambda: len(tasks()) == 3, what="two tasks have left their array", deadline_s=60.0, every_s=0.2)
        slurm.submit("--gres=gpu:2", "--job-name=late")

    def tasks() -> list[str]:
        return [one.job_id for one in look(slurm).jobs if int(one.job_id) >= int(array)]

    engine = turns(config(policy="qssf"), one_ends, tasks_start)

    assert [one for one in orders[0] if one in (wide, narrow)] == [narrow, wide]
    learned = engine._shadow_log.learned
    known = {job_id: known for job_id, known, _ in learned.expectations(tasks())}
    *of_array, late = sorted(known, key=int)
    assert len(of_array) == 3
    assert [known[one] for one in of_array] == [None, None, None]
    assert known[late] is not None


def test_the_queue_is_ordered_by_lowering_jobs_where_that_is_all_one_may(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    full(slurm)
    long, short = slurm.submit("--gres=gpu:4", "--time=60"), slurm.submit("--gres=gpu:4", "--time=10")
    foreign = slurm.submit("--gres=gpu:4", "--time=5", "--partition=other")
    before = {one: job(slurm, one) for one in (long, short, foreign)}

    engine = turns(config(order_by="nice"), lambda: None)

    assert [one for one in queue(slurm) if one != foreign] == [short, long]
    assert job(slurm, long).nice > 0
    assert job(slurm, long).priority < before[long].priority
    assert (job(slurm, short).nice, job(slurm, foreign).nice) == (0, 0)
    assert asyncio.run(status(engine))["changes"] == 1


def test_jobs_that_were_served_stand_behind_those_that_were_not(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    served, other = full(slurm)
    las = config(policy="las", policy_settings="limits_gpu_s=1")
    new = slurm.submit("--gres=gpu:4")

    def requeue() -> None:
        slurm.say("scontrol", "requeue", served)
        slurm.waits_for(new, "RUNNING")
        slurm.say("scontrol", "update", f"JobId={served}", "StartTime=now")
        slurm.submit("--gres=gpu:4")
        until(lambda: job(slurm, served).is_ready, what="the requeued job is ready", deadline_s=20.0)

    turns(las, requeue)

    assert queue(slurm)[-1] == served
    assert job(slurm, other).held == (("gn2", 4),)


def test_a_running_job_is_requeued_for_one_before_it_which_then_starts(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    kept = slurm.submit("--gres=gpu:4", "--time=60", "--no-requeue")
    victim = slurm.submit("--gres=gpu:4", "--time=60")
    slurm.waits_for(kept, "RUNNING")
    slurm.waits_for(victim, "RUNNING")
    winner = slurm.submit("--gres=gpu:4", "--time=5")
    slurm.waits_for(winner, "PENDING")

    turns(config(preempt=True))

    slurm.waits_for(winner, "RUNNING")
    seen = job(slurm, victim)
    assert (seen.restarts, seen.reason, seen.held) == (1, "BeginTime", ())
    assert job(slurm, kept).held


def test_a_gate_holds_and_releases_and_its_end_gives_all_back(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    first, _ = full(slurm)
    after, last = slurm.submit("--gres=gpu:4", "--time=5"), slurm.submit("--gres=gpu:4", "--time=10")
    gated = config(gate=True)

    turns(gated)
    assert [(job(slurm, one).priority, job(slurm, one).admin_comment) for one in (after, last)] == 2 * [(0, HELD_MARK)]

    def gone() -> None:
        slurm.say("scancel", first)
        until(lambda: job(slurm, first).held == (), what="its GPUs are free", deadline_s=20.0)

    turns(gated, gone)
    slurm.waits_for(after, "RUNNING")
    assert job(slurm, after).admin_comment == ""
    assert job(slurm, last).is_held_by_us

    assert give_back(gated) == 1
    assert job(slurm, last).admin_comment == ""
    assert 0 < job(slurm, last).priority < 2_000_000_000


def test_an_idle_node_is_put_to_sleep_and_woken_by_slurm_for_a_job(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    sleepy = config(
        power="rule", power_settings="buffer_nodes=0; keep_s=1", power_step_s=1, power_floor=1, power_min_on_s=0,
        always_on="gn1",
    )  # fmt: skip
    engine = Engine(sleepy, Mode.RUN, SlurmCommands(sleepy.slurm_conf, 30.0))

    async def until_asleep() -> None:
        while "gn2" not in (await status(engine))["sleeping"]:
            await engine.turn()
            await asyncio.sleep(0.2)

    async def with_limit() -> None:
        async with asyncio.timeout(60.0):
            await until_asleep()

    asyncio.run(with_limit())
    assert "suspend gn2" in (slurm.folder / "power.log").read_text()

    # Slurm looks only every 30 s whether the nodes of a job are up, so its end is not waited for.
    woken = slurm.submit("--gres=gpu:1", "--nodelist=gn2", script="true")
    until(lambda: job(slurm, woken).held, what="the job has its GPU", deadline_s=60.0, every_s=0.2)
    until(lambda: "IDLE" not in look(slurm).nodes["gn2"].flags, what="the node is woken", deadline_s=60.0, every_s=0.2)
    log = slurm.folder / "power.log"
    until(lambda: "resume gn2" in text_of(log), what="Slurm has run its program", deadline_s=60.0, every_s=0.2)


async def status(engine: Engine) -> dict[str, Any]:
    told = await engine.status({})
    assert isinstance(told, dict)
    return told


def test_a_shadow_changes_nothing_and_says_what_it_would_do(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig], tmp_path: Path
) -> None:
    told = config(preempt=True)
    argv = [
        sys.executable, "-m", "farside", "slurm", "shadow", "--set", "partitions=gpu", "--set", "turn_s=0.2",
        "--set", f"slurm_conf={told.slurm_conf}", "--set", f"state_dir={told.state_dir}", "--set", "policy=srsf",
        "--set", f"admin_socket={told.admin_socket}", "--set", "preempt=true", "--set", "min_run_s=0",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            until(lambda: asked(told, "turns"), what="a turn", deadline_s=60.0, every_s=0.2)
            for _ in range(LEAST_JOBS):
                slurm.submit("--gres=gpu:4", script="sleep 1.1")
            until(lambda: asked(told, "gain"), what="an expected gain", deadline_s=60.0, every_s=0.2)
            full(slurm, "--time=60")
            long, short = slurm.submit("--gres=gpu:4", "--time=60"), slurm.submit("--gres=gpu:4", "--time=5")
            before = {one.job_id: one.priority for one in look(slurm).jobs}
            until(lambda: asked(told, "queue") == [short, long], what="its order", deadline_s=60.0, every_s=0.2)
            shown = subprocess.run(
                [*argv[:4], "status", "--socket", str(told.admin_socket)], capture_output=True, text=True, check=True
            ).stdout
        finally:
            process.terminate()
        assert process.wait(60) == 0

    assert {one.job_id: one.priority for one in look(slurm).jobs if one.job_id in before} == before
    assert slurm.state(long) == slurm.state(short) == "PENDING"
    said = (tmp_path / "log").read_text()
    assert "slurm: the shadow compared Slurm's decision with its own job=" in said
    assert "average wait and completion of" in said
    assert f"requeue job {int(long) - 1} for job {short}" in said
    assert "is watched, nothing is changed: partitions gpu by srsf" in shown
    assert "jobs that have ended, on average" in shown


def asked(config: SlurmConfig, what: str) -> object:
    """What the process says of itself; None as long as it does not answer."""
    try:
        return admin.call(config.admin_socket, "status")[what]
    except PeerError:
        return None


def test_while_slurmctld_is_away_nothing_ends_and_then_it_goes_on(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig], capfd: pytest.CaptureFixture[str]
) -> None:
    full(slurm)
    one, two = slurm.submit("--gres=gpu:4", "--time=60"), slurm.submit("--gres=gpu:4", "--time=5")
    slurm.stop_controller()
    engine = turns(config(command_limit_s=5), lambda: None, slurm.start_controller)

    assert asyncio.run(status(engine))["answers"]
    assert queue(slurm) == [two, one]


def test_an_engine_that_is_killed_leaves_its_marks_and_the_next_one_goes_on(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig], tmp_path: Path
) -> None:
    first, _ = full(slurm)
    after, last = slurm.submit("--gres=gpu:4", "--time=5"), slurm.submit("--gres=gpu:4", "--time=10")
    gated = config(gate=True)
    told = ("partitions", "slurm_conf", "state_dir", "admin_socket", "turn_s", "policy")
    settings = [word for name in told for word in ("--set", f"{name}={getattr(gated, name)}")]
    argv = [sys.executable, "-m", "farside", "slurm", "run", "--set", "gate=true", "--set", "min_run_s=0", *settings]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stderr=log) as process:
        try:
            until(
                lambda: all(job(slurm, one).is_held_by_us for one in (after, last)), what="both are held",
                deadline_s=60.0, every_s=0.2,
            )  # fmt: skip
        finally:
            process.kill()

    assert all(job(slurm, one).is_held_by_us for one in (after, last))

    def gone() -> None:
        slurm.say("scancel", first)
        until(lambda: job(slurm, first).held == (), what="its GPUs are free", deadline_s=20.0)

    turns(gated, gone)
    slurm.waits_for(after, "RUNNING")
    assert job(slurm, last).is_held_by_us
    assert give_back(gated) == 1


def test_a_job_that_is_cancelled_between_look_and_act_keeps_nobody_from_his_place(
    slurm: SlurmCluster, config: Callable[..., SlurmConfig]
) -> None:
    full(slurm)
    long, short = slurm.submit("--gres=gpu:4", "--time=60"), slurm.submit("--gres=gpu:4", "--time=5")

    class Late(SlurmCommands):
        async def look(self) -> Snapshot:
            seen = await super().look()
            await asyncio.to_thread(slurm.say, "scancel", short)
            return seen

    told = config()
    engine = Engine(told, Mode.RUN, Late(told.slurm_conf, told.command_limit_s))
    asyncio.run(engine.turn())

    assert asyncio.run(status(engine))["refused"] == 1
    assert slurm.state(short) == "CANCELLED"
    assert job(slurm, long).is_ours_by_priority
    assert queue(slurm) == [long]


def test_a_partition_that_slurm_has_not_ends_with_one_line(config: Callable[..., SlurmConfig]) -> None:
    with pytest.raises(ConfigError, match="Slurm has no partition 'gpus'; did you mean 'gpu'"):
        turns(config(partitions="gpus"))


def test_a_slurm_that_is_not_installed_is_said_so(
    config: Callable[..., SlurmConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    with pytest.raises(Exception, match="scontrol: is not there; install Slurm's client programs"):
        turns(config())

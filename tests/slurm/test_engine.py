"""The loop, over a Slurm that is made up."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.slurm import state_file as state_files
from farside.scheduler.slurm.action import Hold, PowerDown, Requeue, SetPriority
from farside.scheduler.slurm.engine import MOST_REFUSALS, Engine, Mode
from farside.scheduler.slurm.snapshot import HELD_MARK
from farside.scheduler.slurm.state_file import StateFiles
from tests.slurm.made import NOW_S, TRAITS, FakeSlurm, node, over, running, snapshot, waiting

FULL = (running(1, ("gn1", 4)), running(2, ("gn2", 4)))


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., SlurmConfig]:
    def make(**told: Any) -> SlurmConfig:
        given = {
            "partitions": "gpu", "state_dir": str(tmp_path / "state"), "admin_socket": str(tmp_path / "s.sock"),
            "policy": "las", "policy_settings": "limits_gpu_s=1000", "min_run_s": 0, "turn_s": 0.1,
        }  # fmt: skip
        return load_config(SlurmConfig, (), {**given, **told})

    return make


def engine(config: SlurmConfig, slurm: FakeSlurm, mode: Mode = Mode.RUN) -> Engine:
    return Engine(config, mode, slurm, now_s=lambda: slurm.seen.at_s)


def turn(one: Engine) -> None:
    asyncio.run(one.turn())


def told(one: Engine) -> dict[str, Any]:
    answer = asyncio.run(one.status({}))
    assert isinstance(answer, dict)
    return answer


def actions_file(config: SlurmConfig) -> list[dict[str, Any]]:
    path = config.state_dir / "actions.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_turn_does_what_was_decided_and_the_next_has_nothing_to_do(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4)))
    one = engine(config(preempt=True), slurm)

    turn(one)
    done = list(slurm.done)
    turn(one)

    assert [type(action) for action in done] == [SetPriority, Requeue]
    assert slurm.done == done
    assert [line["what"] for line in actions_file(config())] == [
        "give job 3 priority 2500000000", "requeue job 2 for job 3"
    ]  # fmt: skip
    assert told(one)["changes"] == 2


def test_a_shadow_does_nothing_and_says_each_thing_once(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4)))
    one = engine(config(preempt=True, gate=True), slurm, Mode.SHADOW)

    turn(one)
    turn(one)

    assert slurm.asked == 0
    lines = [line["what"] for line in actions_file(config())]
    assert "requeue job 2 for job 3" in lines
    assert len(lines) == len(set(lines))


def test_while_slurm_is_away_it_is_said_once_and_then_all_goes_on(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4)), is_away=True)
    one = engine(config(), slurm)

    for _ in range(3):
        turn(one)
    assert not told(one)["answers"]
    slurm.is_away = False
    turn(one)

    messages = [record.message for record in caplog.records]
    assert messages.count("Slurm does not answer, so nothing is decided until it does") == 1
    assert slurm.done
    assert told(one)["answers"]


def test_a_slurm_that_refuses_all_is_not_asked_on_and_on(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, *(waiting(at, 4) for at in range(3, 30))), refuses={str(at) for at in range(40)})
    one = engine(config(), slurm)

    turn(one)

    assert slurm.asked == MOST_REFUSALS
    assert told(one)["refused"] == MOST_REFUSALS


def test_what_is_refused_for_one_job_is_done_for_the_others(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4), waiting(4, 4)), refuses={"3"})

    turn(engine(config(), slurm))

    assert [action.job_id for action in slurm.done if isinstance(action, SetPriority)] == ["4"]


def test_a_refused_requeue_is_tried_again(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4)), refuses={"2"})
    one = engine(config(preempt=True), slurm)

    turn(one)
    slurm.refuses.clear()
    turn(one)

    assert isinstance(slurm.done[-1], Requeue)


def test_what_jobs_were_served_outlives_the_process(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(running(1, ("gn1", 4), since_s=900), running(2, ("gn2", 4))))
    turn(engine(config(), slurm))
    job = replace(slurm.seen.jobs[0], phase=waiting(1).phase, held=(), restarts=1, reason="None")
    slurm.seen = snapshot(
        slurm.seen.jobs[1], job, waiting(3, 4, submit_s=NOW_S), nodes=[node("gn1", "DOWN"), node("gn2", used=4)]
    )

    turn(engine(config(), slurm))

    order = sorted((one for one in slurm.seen.jobs if not one.held), key=lambda one: -one.priority)
    assert [one.job_id for one in order] == ["3", "1"]


def test_a_memory_that_cannot_be_read_is_said_and_begun_anew(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    config().state_dir.mkdir()
    (config().state_dir / "memory.msgpack").write_bytes(b"\xc1 no such thing")

    turn(engine(config(), FakeSlurm(snapshot(*FULL, waiting(3, 4)))))

    assert any("memory can't be read" in record.message for record in caplog.records)
    assert StateFiles(config().state_dir).memory().jobs.keys() == {"1", "2", "3"}


def test_jobs_that_ended_are_read_again_without_the_line_that_was_cut_off(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL))
    one = engine(config(), slurm, Mode.SHADOW)
    turn(one)
    slurm.seen = snapshot(*(over(job, NOW_S + 2) for job in FULL), at_s=NOW_S + 5)
    turn(one)
    with (config().state_dir / "ended.jsonl").open("a") as file:
        file.write('{"job_id": "3", "us')

    again = StateFiles(config().state_dir).ended()

    assert again.keys() == {"1", "2"}
    assert again["1"].limit_s == 0
    assert told(engine(config(), slurm))["ended"] == 2


def test_a_disk_that_is_full_is_said_once_and_nothing_ends(
    config: Callable[..., SlurmConfig], caplog: pytest.LogCaptureFixture
) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4)))
    one = engine(config(), slurm)
    for name in ("memory.msgpack.part", "actions.jsonl"):
        (config().state_dir / name).mkdir()  # cannot be written, whoever tries

    turn(one)
    turn(one)

    assert slurm.done
    assert [record.message for record in caplog.records].count("can't write a state file; the engine goes on") == 1


def test_a_file_that_has_grown_too_large_is_set_aside_and_still_read(
    config: Callable[..., SlurmConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_files, "MOST_BYTES", 10)
    slurm = FakeSlurm(snapshot(*FULL))
    one = engine(config(), slurm)
    for at, job in enumerate(FULL, 1):
        turn(one)
        others = [other if other.is_holding else over(other, NOW_S + at) for other in slurm.seen.jobs]
        slurm.seen = snapshot(
            *(over(other, NOW_S + at) if other.job_id == job.job_id else other for other in others), at_s=NOW_S + at
        )
        turn(one)

    assert (config().state_dir / "ended.jsonl.1").exists()
    assert StateFiles(config().state_dir).ended().keys() == {"1", "2"}


def test_the_end_of_a_gate_gives_held_jobs_back(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(*FULL, waiting(3, 4), waiting(4, 4, admin_comment="a note")))
    one = engine(config(gate=True), slurm)

    async def until_held() -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(one.run(stop))
            while len(slurm.done) < 2:
                await asyncio.sleep(0)
            stop.set()

    asyncio.run(asyncio.wait_for(until_held(), 20.0))

    assert all(isinstance(action, Hold) and HELD_MARK in action.comment for action in slurm.done)
    assert slurm.given_back == [("3", ""), ("4", "a note")]


def test_idle_nodes_sleep_in_run_mode_only(config: Callable[..., SlurmConfig]) -> None:
    given = config(power="rule", power_settings="buffer_nodes=0; keep_s=60", power_step_s=60, power_min_on_s=0)
    for mode, expected in ((Mode.RUN, {PowerDown}), (Mode.SHADOW, set())):
        slurm = FakeSlurm(snapshot())
        one = engine(given, slurm, mode)
        for at_s in (0.0, 61.0, 122.0):
            slurm.seen = snapshot(at_s=NOW_S + at_s)
            turn(one)
        assert {type(action) for action in slurm.done} == expected
    assert any(line["what"].startswith("put node") and line["mode"] == "shadow" for line in actions_file(given))


def test_a_partition_that_was_never_there_ends_it_and_one_that_goes_does_not(
    config: Callable[..., SlurmConfig],
) -> None:
    slurm = FakeSlurm(snapshot())
    with pytest.raises(ConfigError, match="no partition 'gpux'"):
        turn(engine(config(partitions="gpux"), slurm))

    one = engine(config(), slurm)
    turn(one)
    slurm.seen = replace(slurm.seen, partitions={})
    turn(one)

    assert not told(one)["answers"]


def test_a_node_in_two_partitions_that_differ_is_one_line(config: Callable[..., SlurmConfig]) -> None:
    slurm = FakeSlurm(snapshot(partitions={"gpu": ("gn1", "gn2"), "big": ("gn2",)}))

    with pytest.raises(ConfigError, match=r"^partitions: 'big' and 'gpu' share gn2, but not all of their nodes; list"):
        turn(engine(config(partitions="gpu,big"), slurm))


def test_a_partition_without_nodes_is_one_line(config: Callable[..., SlurmConfig]) -> None:
    """It would be scheduled for ever, and nothing would happen."""
    slurm = FakeSlurm(snapshot(partitions={"gpu": ()}))

    with pytest.raises(ConfigError, match=r"^partitions: 'gpu' has no nodes in Slurm; give it some in slurm.conf"):
        turn(engine(config(), slurm))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"partitions": " , "}, "partitions: is empty"),
        ({"policy": "lass"}, "no policy 'lass'; did you mean 'las'"),
        ({"power": "rule", "power_settings": "buffer"}, "power_settings: 'buffer' is not NAME=VALUE"),
        ({"placement": "count"}, "does not say on which nodes"),
        ({"placement": "skew"}, "placement: skew chooses the nodes of jobs, and Slurm itself does that"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(
    config: Callable[..., SlurmConfig], given: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        engine(config(**given), FakeSlurm(snapshot(), TRAITS))

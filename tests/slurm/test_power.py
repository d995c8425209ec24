"""Which nodes of a Slurm sleep."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.power.busy_history import KeptPast, continued
from farside.scheduler.power.state import NodePower, Phase
from farside.scheduler.slurm.action import PowerAction, PowerDown, PowerUp
from farside.scheduler.slurm.domain import groups_of
from farside.scheduler.slurm.node_power import fleet_of, nodes_called, waiting_jobs
from farside.scheduler.slurm.power import SlurmPower, check_power_saving
from farside.scheduler.slurm.snapshot import SlurmJob, SlurmNode, Traits
from farside.scheduler.slurm.state_file import StateFiles
from tests.slurm.made import NOW_S, TRAITS, node, snapshot, waiting
from tests.support.waiting import until


def config(tmp_path: Path, **told: object) -> SlurmConfig:
    given = {
        "partitions": "gpu", "state_dir": str(tmp_path), "power": "rule", "power_settings": "buffer_nodes=0; keep_s=60",
        "power_step_s": 60, "power_min_on_s": 0,
    }  # fmt: skip
    return load_config(SlurmConfig, (), {**given, **told})


def sleeper_of(made: SlurmConfig) -> SlurmPower:
    return SlurmPower(made, StateFiles(made.state_dir))


def after(sleeper: SlurmPower, *turns: tuple[float, list[SlurmNode]]) -> tuple[PowerAction, ...]:
    """What is wished at the last of these turns."""
    wishes: tuple[PowerAction, ...] = ()
    for at_s, nodes in turns:
        wishes = sleeper.wishes(nodes, NOW_S + at_s)
    return wishes


@pytest.mark.parametrize(
    ("flags", "phase"),
    [
        ("IDLE", Phase.ON),
        ("MIXED", Phase.ON),
        ("IDLE+CLOUD", Phase.ON),
        ("IDLE+POWER_DOWN", Phase.DRAINING),
        ("IDLE+POWERING_DOWN", Phase.DRAINING),
        ("IDLE+POWERED_DOWN", Phase.OFF),
        ("IDLE+POWER_UP+POWERED_DOWN", Phase.BOOTING),
        ("ALLOCATED+POWERING_UP", Phase.BOOTING),
        ("DOWN+NOT_RESPONDING", Phase.FAILED),
        ("IDLE+DRAIN", Phase.FAILED),
        ("DOWN+POWERED_DOWN", Phase.FAILED),
    ],
)
def test_slurms_states_as_phases(flags: str, phase: Phase) -> None:
    assert fleet_of({}, [node("gn1", *flags.split("+"))], NOW_S)["gn1"].phase is phase


def test_a_stop_is_counted_once_and_kept_for_a_day() -> None:
    fleet: Mapping[str, NodePower] = {}
    for at_s, flags in ((0, "IDLE"), (5, "IDLE+POWER_DOWN"), (10, "IDLE+POWERING_DOWN"), (20, "IDLE+POWERED_DOWN")):
        fleet = fleet_of(fleet, [node("gn1", *flags.split("+"))], NOW_S + at_s)

    assert fleet["gn1"].stops_s == (NOW_S + 5,)
    assert fleet["gn1"].since_s == NOW_S + 20
    assert fleet_of(fleet, [node("gn1")], NOW_S + 90_000)["gn1"].stops_s == ()


def test_a_node_that_boots_for_a_job_is_needed() -> None:
    assert nodes_called([node("gn1", "MIXED", "POWERING_UP", used=1), node("gn2", "IDLE", "POWERING_UP")]) == {"gn1"}


GANG = [node("gn1", "MIXED", used=4), node("gn2"), node("gn3"), node("gn4", "IDLE", "POWERED_DOWN")]


def called(*jobs: SlurmJob, partition: tuple[str, ...] = ("gn1", "gn2", "gn3", "gn4")) -> frozenset[str]:
    seen = snapshot(*jobs, nodes=GANG, partitions={"gpu": partition})
    groups = groups_of(seen.partitions, ["gpu"])
    return nodes_called(GANG, waiting_jobs(seen, groups, is_counting_memory=True))


@pytest.mark.parametrize(
    ("job", "needed"),
    [
        (waiting(1, 4), {"gn2"}),
        (waiting(1, 16), {"gn2", "gn3"}),  # gn1 is busy, and gn4 is Slurm's to wake
        (waiting(1, 20), set()),  # more than there is
        (waiting(1, 8, gpu_model="a100"), set()),
        (waiting(1, 8, reason="Dependency"), set()),
        (waiting(1, 8, partitions=("other",)), set()),
    ],
)
def test_idle_nodes_that_a_waiting_job_would_fill_are_needed(job: SlurmJob, needed: set[str]) -> None:
    assert called(job) == needed


def test_a_job_needs_no_node_of_another_partition() -> None:
    assert called(waiting(1, 8), partition=("gn1", "gn3")) == {"gn3"}


def test_idle_nodes_that_a_waiting_gang_needs_stay_on(tmp_path: Path) -> None:
    nodes, sleeper = GANG[:3], sleeper_of(config(tmp_path))
    seen = snapshot(waiting(1, 12), nodes=nodes)
    gang = waiting_jobs(seen, groups_of(seen.partitions, ["gpu"]), is_counting_memory=True)

    for at_s in (0.0, 61.0, 122.0):
        assert sleeper.wishes(nodes, NOW_S + at_s, gang) == ()
    gone = [sleeper.wishes(nodes, NOW_S + at_s) for at_s in (183.0, 244.0, 305.0)]

    assert {one.node for wishes in gone for one in wishes} == {"gn2", "gn3"}


def test_an_idle_node_sleeps_after_the_rules_time_and_a_busy_one_does_not(tmp_path: Path) -> None:
    seen = [node("gn1", "MIXED", used=1), node("gn2"), node("gn3", "MIXED", used=4)]

    wishes = after(sleeper_of(config(tmp_path)), *((at_s, seen) for at_s in (0.0, 61.0, 122.0)))

    assert [(type(one), one.node) for one in wishes] == [(PowerDown, "gn2")]


def test_ces_lets_an_idle_node_of_a_slurm_sleep_once_it_has_seen_a_day(tmp_path: Path) -> None:
    seen = [node("gn1", "MIXED", used=1), node("gn2"), node("gn3")]
    sleeper = sleeper_of(config(tmp_path, power="ces", power_settings="wakeups_per_day=0.5", power_step_s=3600))

    early = after(sleeper, *((hour * 3600.0, seen) for hour in range(20)))
    late = after(sleeper, *((hour * 3600.0, seen) for hour in range(20, 40)))

    assert early == ()
    assert {(type(one), one.node) for one in late} == {(PowerDown, "gn2"), (PowerDown, "gn3")}


def many_turns(sleeper: SlurmPower, seen: list[SlurmNode], hours: range) -> None:
    after(sleeper, *((hour * 3600.0, seen) for hour in hours))


def first_wishes(sleeper: SlurmPower, seen: list[SlurmNode], at_s: float) -> tuple[PowerAction, ...]:
    """What is wished in the first turn in which it knows the past."""
    found: list[tuple[PowerAction, ...]] = []

    def is_decided() -> bool:
        found.append(sleeper.wishes(seen, NOW_S + at_s))
        return not sleeper.is_learning

    until(is_decided, what="the past is gone through", deadline_s=60)
    return found[-1]


CES = {"power": "ces", "power_settings": "wakeups_per_day=0.5", "power_step_s": 3600}
AHEAD = {**CES, "power_settings": "wakeups_per_day=0.5; forecast=true; wake_ahead=true; forecast_s=3h"}
QUIET = [node("gn1", "MIXED", used=1), node("gn2"), node("gn3")]


@pytest.mark.parametrize("told", [CES, AHEAD])
def test_a_restart_forgets_nothing_of_what_ces_has_seen(told: Mapping[str, object], tmp_path: Path) -> None:
    many_turns(sleeper_of(config(tmp_path, **told)), QUIET, range(40))
    again = sleeper_of(config(tmp_path, **told))

    wishes = first_wishes(again, QUIET, 41 * 3600.0)

    assert {(type(one), one.node) for one in wishes} == {(PowerDown, "gn2"), (PowerDown, "gn3")}


def test_a_forecast_over_a_slurm_says_what_it_needs_and_is_there_at_once_after_a_restart(tmp_path: Path) -> None:
    sleeper = sleeper_of(config(tmp_path, **AHEAD))
    many_turns(sleeper, QUIET, range(48))
    early = sleeper.forecast
    many_turns(sleeper, QUIET, range(48, 500))
    again = sleeper_of(config(tmp_path, **AHEAD))
    first_wishes(again, QUIET, 500 * 3600.0)

    assert early == "no forecast before 15.8 days are known, 2.0 are; rules alone decide"
    assert again.forecast.startswith("a forecast by trees of 16.7 days")
    assert sleeper_of(config(tmp_path, **CES)).forecast == ""


@pytest.mark.long
def test_what_was_busy_is_kept_for_four_weeks_and_no_longer(tmp_path: Path) -> None:
    made = config(tmp_path, **CES)
    many_turns(sleeper_of(made), QUIET, range(900))

    kept = StateFiles(made.state_dir).nodes()

    assert kept is not None
    assert kept.active == (1.0,) * 672
    assert kept.end_s == NOW_S + 899 * 3600.0


def test_what_nobody_saw_during_a_restart_is_taken_to_be_as_it_was_for_a_week_and_then_forgotten() -> None:
    past = KeptPast(of="gpu", end_s=1000.0, step_s=600.0, active=(3.0, 2.0))

    assert continued(past, "gpu", 1000.0, 600.0) == (3.0, 2.0)
    assert continued(past, "gpu", 1000.0 + 1300.0, 600.0) == (3.0, 2.0, 2.0, 2.0)
    assert len(continued(past, "gpu", 1000.0 + 7 * 86400.0, 600.0)) == 2 + 7 * 144
    with pytest.raises(ConfigError, match="it ended more than 7 days ago"):
        continued(past, "gpu", 1000.0 + 7 * 86400.0 + 1.0, 600.0)


GOOD = KeptPast(of="gpu", end_s=NOW_S, step_s=3600.0, active=(1.0,) * 40)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"\xc1" * 40, "MessagePack data is malformed"),
        (b"\x81\xa2of\xa2\xff\xfe", "codec can't decode byte 0xff"),
        (b"\x00" * 1_000_000, "it is too large"),
        (msgspec.msgpack.encode({"of": "gpu", "end_s": 1.0, "step_s": 1.0, "active": ["a"]}), "Expected `float`"),
        (msgspec.msgpack.encode(replace(GOOD, active=(1.0, math.nan))), "its numbers of busy nodes are none"),
        (msgspec.msgpack.encode(replace(GOOD, active=(-1.0,))), "its numbers of busy nodes are none"),
        (msgspec.msgpack.encode(replace(GOOD, active=())), "its numbers of busy nodes are none"),
        (msgspec.msgpack.encode(replace(GOOD, step_s=600.0)), "its intervals are of 600 s, not 3600 s"),
        (msgspec.msgpack.encode(replace(GOOD, end_s=NOW_S + 9e6)), "it ends in the future: a clock was set back"),
        (msgspec.msgpack.encode(replace(GOOD, end_s=math.nan)), "it ends in the future: a clock was set back"),
        (msgspec.msgpack.encode(replace(GOOD, end_s=NOW_S - 8 * 86400.0)), "it ended more than 7 days ago"),
        (msgspec.msgpack.encode(replace(GOOD, of="cpu")), "it is of other nodes, those of 'cpu'"),
    ],
)
def test_a_past_that_makes_no_sense_is_refused_by_one_line_and_learned_anew(
    data: bytes, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "nodes.msgpack").write_bytes(data)
    sleeper = sleeper_of(config(tmp_path, **CES))

    assert sleeper.wishes(QUIET, NOW_S) == ()
    many_turns(sleeper, QUIET, range(40))

    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert line.message == "the record of busy nodes can't be read; it starts anew"
    assert reason in str(vars(line))
    kept = StateFiles(tmp_path).nodes()
    assert kept is not None
    assert len(kept.active) == 39


def test_a_memory_and_ended_jobs_with_text_that_is_no_utf8_are_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "memory.msgpack").write_bytes(b"\x81\xa4jobs\x81\xa2\xff\xfe\x01")
    (tmp_path / "ended.jsonl").write_bytes(b'{"job_id": "\xff\xfe"}\n')
    state_files = StateFiles(tmp_path)

    assert state_files.memory().jobs == {}
    assert state_files.ended() == {}
    assert caplog.messages == ["the engine's memory can't be read; service before this start is not counted"]


def test_a_past_that_can_not_be_written_is_said_and_nodes_sleep_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sleeper = sleeper_of(config(tmp_path, **CES))
    (tmp_path / "nodes.msgpack.part").mkdir()

    many_turns(sleeper, QUIET, range(40))

    assert "can't write a state file; the engine goes on" in caplog.messages
    assert after(sleeper, (40 * 3600.0, QUIET))


def test_nothing_is_switched_before_an_interval_was_seen_whole(tmp_path: Path) -> None:
    asleep = [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]

    assert after(sleeper_of(config(tmp_path)), (0.0, asleep), (59.0, asleep)) == ()


def test_the_floor_is_woken(tmp_path: Path) -> None:
    asleep = [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]

    wishes = after(sleeper_of(config(tmp_path, power_floor=2)), *((at_s, asleep) for at_s in (0.0, 61.0, 122.0)))

    assert [(type(one), one.node) for one in wishes] == [(PowerUp, "gn2")]


def test_nodes_that_are_to_stay_on_do(tmp_path: Path) -> None:
    idle = [node("gn1"), node("gn2")]

    wishes = after(sleeper_of(config(tmp_path, always_on="gn1, gn2")), *((at_s, idle) for at_s in (0.0, 61.0, 122.0)))

    assert wishes == ()


def test_what_sleeps_is_counted_in_kwh(tmp_path: Path) -> None:
    sleeper = sleeper_of(config(tmp_path, idle_w=1000))
    after(sleeper, *((at_s, [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]) for at_s in (0.0, 3600.0)))

    assert sleeper.asleep == ("gn2",)
    assert sleeper.saved_kwh == 1.0


def test_a_slurm_without_power_saving_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no SuspendProgram; give it"):
        check_power_saving(config(tmp_path), Traits(version="22.05.8"))
    check_power_saving(config(tmp_path, power="none", power_settings=""), Traits(version="22.05.8"))
    check_power_saving(config(tmp_path), TRAITS)

"""Which nodes of a Slurm sleep."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from farside.config import SlurmConfig, load_config
from farside.errors import ConfigError
from farside.scheduler.energy.power.state import NodePower, Phase
from farside.scheduler.live.slurm.action import PowerAction, PowerDown, PowerUp
from farside.scheduler.live.slurm.power import fleet_of, lacking
from farside.scheduler.live.slurm.sleeper import Sleeper
from farside.scheduler.live.slurm.snapshot import SlurmNode, Traits
from tests.slurm.made import NOW_S, TRAITS, node


def config(tmp_path: Path, **told: object) -> SlurmConfig:
    given = {
        "partitions": "gpu", "state_dir": str(tmp_path), "power": "rule", "power_settings": "buffer_nodes=0; keep_s=60",
        "power_step_s": 60, "power_min_on_s": 0,
    }  # fmt: skip
    return load_config(SlurmConfig, (), {**given, **told})


def after(sleeper: Sleeper, *turns: tuple[float, list[SlurmNode]]) -> tuple[PowerAction, ...]:
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


def test_a_node_that_boots_for_a_job_is_lacking() -> None:
    assert lacking([node("gn1", "MIXED", "POWERING_UP", used=1), node("gn2", "IDLE", "POWERING_UP")]) == 1


def test_an_idle_node_sleeps_after_the_rules_time_and_a_busy_one_does_not(tmp_path: Path) -> None:
    seen = [node("gn1", "MIXED", used=1), node("gn2"), node("gn3", "MIXED", used=4)]

    wishes = after(Sleeper(config(tmp_path)), *((at_s, seen) for at_s in (0.0, 61.0, 122.0)))

    assert [(type(one), one.node) for one in wishes] == [(PowerDown, "gn2")]


def test_ces_lets_an_idle_node_of_a_slurm_sleep_once_it_has_seen_a_day(tmp_path: Path) -> None:
    seen = [node("gn1", "MIXED", used=1), node("gn2"), node("gn3")]
    sleeper = Sleeper(config(tmp_path, power="ces", power_settings="wakeups_per_day=0.5", power_step_s=3600))

    early = after(sleeper, *((hour * 3600.0, seen) for hour in range(20)))
    late = after(sleeper, *((hour * 3600.0, seen) for hour in range(20, 40)))

    assert early == ()
    assert {(type(one), one.node) for one in late} == {(PowerDown, "gn2"), (PowerDown, "gn3")}


def test_nothing_is_switched_before_an_interval_was_seen_whole(tmp_path: Path) -> None:
    asleep = [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]

    assert after(Sleeper(config(tmp_path)), (0.0, asleep), (59.0, asleep)) == ()


def test_the_floor_is_woken(tmp_path: Path) -> None:
    asleep = [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]

    wishes = after(Sleeper(config(tmp_path, power_floor=2)), *((at_s, asleep) for at_s in (0.0, 61.0, 122.0)))

    assert [(type(one), one.node) for one in wishes] == [(PowerUp, "gn2")]


def test_nodes_that_are_to_stay_on_do(tmp_path: Path) -> None:
    idle = [node("gn1"), node("gn2")]

    wishes = after(Sleeper(config(tmp_path, always_on="gn1, gn2")), *((at_s, idle) for at_s in (0.0, 61.0, 122.0)))

    assert wishes == ()


def test_what_sleeps_is_counted_in_kwh(tmp_path: Path) -> None:
    sleeper = Sleeper(config(tmp_path, idle_w=1000))
    after(sleeper, *((at_s, [node("gn1"), node("gn2", "IDLE", "POWERED_DOWN")]) for at_s in (0.0, 3600.0)))

    assert sleeper.asleep == ("gn2",)
    assert sleeper.saved_kwh == 1.0


def test_a_slurm_without_power_saving_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no SuspendProgram; give it"):
        Sleeper(config(tmp_path)).check(Traits(version="22.05.8"))
    Sleeper(config(tmp_path, power="none", power_settings="")).check(Traits(version="22.05.8"))
    Sleeper(config(tmp_path)).check(TRAITS)

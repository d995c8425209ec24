"""The checker finds each broken rule, and shares no code with what makes plans."""

import msgspec
import pytest

from farside.scheduler.sharing.glet.check import check
from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.scheduler.sharing.glet.profile import DeviceProfile
from tests.sharing.drawn import device, model, slowing
from tests.support.imports import imported_anywhere

# On a whole device: 6, 10, 14, 18, ... ms for batches of 1, 2, 3, 4.
MODELS = {name: model(name, flat=1.0, memory_mb=500.0) for name in ("a", "b", "c", "d")}
SLOWED = device(slowing(MODELS, 0.5))
RATES = {"a": 50.0, "b": 20.0}
SOUND = Plan(
    glets=(
        Glet(
            gpu=0,
            part_pct=60,
            cycle_ms=40.0,
            models=(Portion(model="a", batch=2, rate=50.0), Portion(model="b", batch=1, rate=20.0)),
        ),
        Glet(gpu=0, part_pct=40, cycle_ms=40.0, models=(Portion(model="c", batch=2, rate=50.0),)),
    )
)


def broken(
    plan: Plan, rates: dict[str, float] = RATES, on: DeviceProfile = SLOWED, *, slowed: bool = False
) -> set[str]:
    return {one.rule for one in check(plan, rates, MODELS, on, 2, with_interference=slowed)}


def changed(at: int = 0, **fields: object) -> Plan:
    glets = list(SOUND.glets)
    glets[at] = msgspec.structs.replace(glets[at], **fields)
    return Plan(glets=tuple(glets))


def portion(name: str = "a", batch: int = 2, rate: float = 50.0) -> tuple[Portion, ...]:
    return (Portion(model=name, batch=batch, rate=rate),)


def test_a_sound_plan_breaks_nothing() -> None:
    assert broken(SOUND) == set()
    assert broken(SOUND, slowed=True) == set()


@pytest.mark.parametrize(
    ("rule", "plan"),
    [
        ("C1", changed(gpu=2)),
        ("C1", changed(part_pct=50)),
        ("C1", changed(gpu=-1)),
        ("C1", Plan(glets=tuple(Glet(gpu=0, part_pct=100, cycle_ms=40.0, models=portion(name)) for name in "ab"))),
        ("C1", Plan(glets=(*SOUND.glets, Glet(gpu=0, part_pct=20, cycle_ms=40.0, models=portion())))),
        ("C2", changed(models=portion(batch=9))),
        ("C2", changed(at=1, models=portion("c", batch=9))),
        ("C2", changed(models=portion(batch=0, rate=0.0))),
        ("C2", changed(models=(*portion(rate=25.0), *portion(rate=25.0)))),
        ("C2", changed(cycle_ms=50.0, models=tuple(Portion(model=name, batch=1, rate=1.0) for name in "abcd"))),
        ("C3", changed(models=portion(rate=51.0))),
        ("C4", changed(cycle_ms=9.9, models=portion())),
        ("C5", changed(cycle_ms=95.0, models=portion(batch=6))),
        ("C6", changed(models=portion(rate=49.9))),
    ],
)
@pytest.mark.parametrize("slowed", [False, True], ids=["alone", "beside"])
def test_each_broken_rule_is_found(rule: str, plan: Plan, slowed: bool) -> None:
    assert rule in broken(plan, slowed=slowed)


def test_a_rate_may_be_served_in_several_places_and_no_part_of_it_may_be_missing() -> None:
    assert broken(SOUND, {"a": 50.0, "b": 20.0, "c": 50.0}) == set()
    assert broken(SOUND, {"a": 50.0, "b": 20.0, "c": 50.1}) == {"C6"}
    assert broken(SOUND, {"d": 1.0}) == {"C6"}


def test_memory_counts_each_process_and_each_model_on_a_gpu() -> None:
    # Two processes and three models of 500 MB each.
    assert broken(SOUND, on=device(memory_mb=2500.0)) == set()
    assert broken(SOUND, on=device(memory_mb=2499.0)) == {"C7"}


def test_interference_is_computed_anew_from_the_final_plan() -> None:
    # 10 + 6 ms in a cycle of 16 alone; beside c each takes longer.
    tight = changed(cycle_ms=16.0)

    assert broken(tight) == set()
    assert broken(tight, slowed=True) == {"C4"}


def test_the_checker_reads_nothing_that_plans() -> None:
    ours = {name for name in imported_anywhere("farside.scheduler.sharing.glet.check") if "glet" in name}

    assert ours <= {f"farside.scheduler.sharing.glet.{name}" for name in ("", "plan", "profile")} | {
        "farside.scheduler.sharing.glet"
    }

"""Steps towards the swap that is wanted: from whatever is found they end there, or say why not."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.service.swap_plan import NOTHING, Step, SwapPlan, SwapSeen, UnitState, plan

MIB = 1 << 20
DEVICE = 64 * MIB
LOOKS = 12


@dataclass
class Machine:
    """A unit, a kernel and a borrower as far as swap goes; each look of an agent is followed by ``passes``."""

    unit: UnitState = UnitState.INACTIVE
    area: int | None = None
    told: int | None = None
    has_borrower: bool = True
    has_room: bool = True
    works: bool = True

    def seen(self) -> SwapSeen:
        return SwapSeen(
            unit=self.unit,
            device_bytes=DEVICE if self.has_borrower else None,
            area_bytes=self.area,
            told_bytes=self.told,
            why_kept="" if self.has_room else "memory has no room",
        )

    def do(self, step: Step | None, wanted: int) -> None:
        if step is Step.START:
            self.told = wanted or self.told
            self.unit = UnitState.ACTIVATING
        elif step is Step.STOP:
            self.unit = UnitState.DEACTIVATING

    def passes(self) -> None:
        """What systemd has begun is over, well or not."""
        if self.unit is UnitState.ACTIVATING:
            if self.area is not None:
                self.unit = UnitState.ACTIVE
            elif self.has_borrower and self.works and (self.told or DEVICE) <= DEVICE:
                self.area, self.unit = self.told or DEVICE, UnitState.ACTIVE
            elif self.has_borrower:
                self.unit = UnitState.FAILED
        elif self.unit is UnitState.DEACTIVATING:
            if self.area is None or self.has_room:
                self.area, self.unit = None, UnitState.INACTIVE
            else:
                self.unit = UnitState.FAILED

    def suffers(self, what: str) -> None:
        match what:
            case "borrower":
                self.has_borrower = not self.has_borrower
            case "room":
                self.has_room = not self.has_room
            case "works":
                self.works = not self.works
            case "swapoff":
                self.area = None
            case "attach" if self.area is None:
                self.area = DEVICE
            case "start":
                self.unit = UnitState.ACTIVATING
            case "stop":
                self.unit = UnitState.DEACTIVATING

    def is_as(self, wanted: int | None) -> bool:
        return wanted is None or (self.area or 0) == wanted


WANTED = st.sampled_from((None, 0, 2 * MIB, 32 * MIB, DEVICE, DEVICE + 2 * MIB))
SUFFERED = st.lists(
    st.one_of(
        st.sampled_from(("borrower", "room", "works", "swapoff", "attach", "start", "stop", "look", "look", "look")),
        st.tuples(st.just("want"), WANTED),
    ),
    max_size=25,
)


def look(machine: Machine, wanted: int | None) -> SwapPlan:
    found = plan(wanted, machine.seen())
    machine.do(found.step, wanted or 0)
    machine.passes()
    return found


@given(SUFFERED, WANTED)
def test_whoever_is_killed_when_the_swap_ends_as_wanted_or_it_is_told_why_not(
    suffered: list[str | tuple[str, int | None]], last: int | None
) -> None:
    machine, wanted = Machine(), None
    for what in suffered:
        if isinstance(what, tuple):
            wanted = what[1]
        elif what == "look":
            was_as = machine.is_as(wanted)
            found = look(machine, wanted)
            # At each look: it is so, or something is done, or the reason is told.
            assert was_as or found.step is not None or found.problem
        else:
            machine.suffers(what)

    machine.has_borrower = machine.has_room = machine.works = True
    found = [look(machine, last) for _ in range(LOOKS)][-1]

    if last is not None and last > DEVICE:
        assert found == SwapPlan(problem="its device has 64 MiB")
    else:
        assert found == NOTHING
        assert machine.is_as(last)
        assert last is None or machine.unit in (UnitState.ACTIVE if last else UnitState.INACTIVE, UnitState.FAILED)


@given(SUFFERED)
def test_nothing_is_touched_where_nobody_wants_anything(suffered: list[str | tuple[str, int | None]]) -> None:
    machine = Machine()
    for what in suffered:
        if isinstance(what, str) and what != "look":
            machine.suffers(what)
        assert plan(None, machine.seen()) == NOTHING


@pytest.mark.parametrize("wanted", [0, 32 * MIB])
def test_swap_is_not_switched_off_while_memory_would_not_hold_it(wanted: int) -> None:
    seen = SwapSeen(unit=UnitState.ACTIVE, device_bytes=DEVICE, area_bytes=DEVICE, why_kept="3 GiB are out")

    assert plan(wanted, seen) == SwapPlan(problem="3 GiB are out")


def test_a_device_that_is_no_swap_is_left_alone() -> None:
    found = plan(0, SwapSeen(unit=UnitState.INACTIVE, device_bytes=DEVICE, is_block=True))

    assert (found.step, found.problem) == (None, "its device is attached as a block device: farside swap detach")


def test_without_systemd_swap_that_is_wanted_is_a_problem_and_none_is_none() -> None:
    assert plan(0, SwapSeen(unit=None)) == NOTHING
    assert plan(DEVICE, SwapSeen(unit=None)).problem == "systemd does not know its unit"
    assert plan(0, SwapSeen(unit=None, area_bytes=DEVICE)).problem == "systemd does not know its unit"


def test_a_unit_that_failed_says_why_in_its_own_words() -> None:
    found = plan(DEVICE, SwapSeen(unit=UnitState.FAILED, words="the backup disk lies in memory", device_bytes=DEVICE))

    assert found == SwapPlan(step=Step.START, problem="swap could not be attached: the backup disk lies in memory")

"""Steps by which a node's swap becomes what is wanted, from what is seen of its unit, kernel and borrower. PURE.

How it works
============
Each look gives at most one step, which takes its time; the next look sees what came of it. Nothing is kept of what was
done: agent, manager, borrower and unit may be killed between any two looks, and the next agent goes on from what is
there. Where no step leads further, the plan says why.

Swap that is on, though its unit is not, is adopted first: the unit is started, which finds it attached. Then its stop
switches it off, and so does a shutdown in its turn.
"""

from dataclasses import dataclass
from enum import StrEnum

from farside.geometry import granules_of
from farside.units import format_bytes


class UnitState(StrEnum):
    """What systemd calls the state of a unit."""

    INACTIVE = "inactive"
    ACTIVATING = "activating"
    ACTIVE = "active"
    DEACTIVATING = "deactivating"
    FAILED = "failed"


class Step(StrEnum):
    """What is asked of systemd, as its verb."""

    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSeen:
    """A node's swap device at one look.

    Attributes:
        unit: State of the unit that attaches it; None: there is no such unit, or no systemd.
        words: The last words of that unit; empty: they say nothing.
        device_bytes: Size of the device; None: its borrower does not answer.
        area_bytes: Size of the swap that is on it, whole; None: none is.
        told_bytes: Size that the unit was told for its next start; None: all of the device.
        is_block: It is attached, and not as swap.
        why_kept: Why swap can't be switched off now; empty: it can.
    """

    unit: UnitState | None
    words: str = ""
    device_bytes: int | None = None
    area_bytes: int | None = None
    told_bytes: int | None = None
    is_block: bool = False
    why_kept: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """The next step, and why the swap is not what is wanted; both empty: it is."""

    step: Step | None = None
    problem: str = ""


NOTHING = SwapPlan()
_RESTS = (UnitState.INACTIVE, UnitState.FAILED)


def plan(wanted_bytes: int | None, seen: SwapSeen) -> SwapPlan:
    """The next step towards swap of that size, whole granules; 0: none, None: as it is."""
    if wanted_bytes is None:
        return NOTHING
    if seen.unit is None:
        is_so = not wanted_bytes and seen.area_bytes is None
        return SwapPlan(problem="" if is_so else "systemd does not know its unit")
    if seen.is_block:
        return SwapPlan(problem="its device is attached as a block device: farside swap detach")
    if wanted_bytes and seen.device_bytes is not None and wanted_bytes > seen.device_bytes:
        return SwapPlan(problem=f"its device has {format_bytes(seen.device_bytes)}")
    if seen.unit is UnitState.DEACTIVATING:
        return SwapPlan(problem=_with_words("swap is being switched off", seen))
    if seen.area_bytes is None:
        return _from_none(wanted_bytes, seen)
    if wanted_bytes and granules_of(wanted_bytes) == granules_of(seen.area_bytes):
        # Without its unit nothing would switch it off before the borrower ends at a shutdown.
        return SwapPlan(step=Step.START) if seen.unit in _RESTS else NOTHING
    return _to_none(seen)


def _to_none(seen: SwapSeen) -> SwapPlan:
    """Swap that is on, and is to go, or to be of another size."""
    assert seen.area_bytes is not None
    if seen.why_kept:
        return SwapPlan(problem=seen.why_kept)
    what = f"{format_bytes(seen.area_bytes)} are to be switched off"
    step = Step.START if seen.unit in _RESTS else Step.STOP
    return SwapPlan(step=step, problem=_with_words(what, seen) if seen.unit is UnitState.FAILED else what)


def _from_none(wanted_bytes: int, seen: SwapSeen) -> SwapPlan:
    """No swap is on."""
    if not wanted_bytes:
        return NOTHING if seen.unit in _RESTS else SwapPlan(step=Step.STOP, problem="its unit is being stopped")
    if seen.unit is UnitState.ACTIVE:  # somebody switched it off by hand: the unit starts anew
        return SwapPlan(step=Step.STOP, problem="swap was switched off by hand")
    if seen.unit is UnitState.ACTIVATING:
        told_bytes = seen.told_bytes if seen.told_bytes is not None else seen.device_bytes
        is_other = told_bytes is not None and granules_of(told_bytes) != granules_of(wanted_bytes)
        return SwapPlan(step=Step.STOP if is_other else None, problem=_with_words("swap is being attached", seen))
    what = "swap is to be attached" if seen.unit is UnitState.INACTIVE else "swap could not be attached"
    return SwapPlan(step=Step.START, problem=_with_words(what, seen))


def _with_words(what: str, seen: SwapSeen) -> str:
    return f"{what}: {seen.words}" if seen.words else what

"""A thread with a shorter slice than others: what the kernel says of it."""

import ctypes
import errno
import os
import platform
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.kmod_shim.time_slice import EVERYBODYS_NS, SHORT_NS, set_time_slice, short_time_slice, take_idle_time
from farside.training.loop.turns import SharedNode

_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
_BYTES = 48  # of struct sched_attr in its first version
_RUNTIME_AT = 3  # in words of 8 bytes


def slice_ns() -> int:
    """This thread's slice as the kernel says; 0: it does not say."""
    told = (ctypes.c_uint64 * (_BYTES // 8))()
    number = _SCHED_GETATTR.get(platform.machine())
    if number is None or ctypes.CDLL(None).syscall(number, 0, ctypes.byref(told), _BYTES, 0):
        return 0
    return int(told[_RUNTIME_AT])


def in_thread(work: Callable[[], list[int]]) -> list[int]:
    """What it returns, on a thread of its own, whose slice is nobody else's."""
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join()
    return found


def after_short() -> list[int]:
    before = slice_ns()
    set_time_slice(SHORT_NS)
    return [before, slice_ns()]


@pytest.fixture(autouse=True)
def everybodys_slice() -> None:
    """A job of a test before may have left this thread another slice, which all that it starts would have."""
    set_time_slice(EVERYBODYS_NS)


needs_slices = pytest.mark.skipif(
    os.sched_getscheduler(0) != os.SCHED_OTHER or in_thread(after_short)[-1] != SHORT_NS,
    reason="this kernel gives no thread a slice of its own",
)


@needs_slices
def test_a_thread_has_the_slice_it_asks_for_and_what_it_starts_has_it_too() -> None:
    def work() -> list[int]:
        everybodys = slice_ns()
        with short_time_slice():
            inside = in_thread(lambda: [slice_ns()])
        set_time_slice(SHORT_NS, is_inherited=False)
        apart = in_thread(lambda: [slice_ns()])
        return [*inside, apart[0] - everybodys]

    assert in_thread(work) == [SHORT_NS, 0]


@needs_slices
def test_a_thread_that_asks_for_nothing_has_everybodys_again() -> None:
    def work() -> list[int]:
        before, _ = after_short()
        set_time_slice(EVERYBODYS_NS)
        return [slice_ns() - before]

    assert in_thread(work) == [0]


@needs_slices
def test_a_worker_goes_before_others_until_it_computes_and_after_that(tmp_path: Path) -> None:
    def work() -> list[int]:
        everybodys, found = slice_ns(), []
        turns = SharedNode(str(tmp_path / "nobody"), job="a", worker=0, workers=1)
        for position in (0, 1, 2):  # PULL, COMP, PUSH
            turns.ask(position)
            found.append(slice_ns() - everybodys)
        turns.close()
        return [*found, slice_ns() - everybodys]

    pulls, computes, pushes, after = in_thread(work)

    assert pulls == pushes < 0
    assert computes == after == 0


@needs_slices
def test_another_policy_and_a_niceness_stay() -> None:
    def work() -> list[int]:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        set_time_slice(SHORT_NS)
        return [os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]

    assert in_thread(work) == [os.SCHED_BATCH, os.getpriority(os.PRIO_PROCESS, 0)]


def test_a_process_that_may_not_give_way_goes_on_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the packaged units (SystemCallFilter=~@resources): no model was fitted there."""

    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "nice", refused)
    monkeypatch.setattr(os, "sched_setscheduler", refused)

    take_idle_time()

"""Measure how much memory stays remote after a recall: a live sandbox whose first donor is squeezed."""

import time
from pathlib import Path

from benchmarks.load import BenchmarkError, fill
from benchmarks.result import RecallShare
from benchmarks.sandbox import Layout, Sandbox, sandbox
from farside.sandbox import control

MIB = 1 << 20
DEVICE_BYTES = 192 * MIB
DONOR_BYTES = 512 * MIB
DONORS = 3
VICTIM = "d1"
DEADLINE_S = 5.0  # migrate_deadline_s; a donor gives less of it the less of its HeadRoom is left
STEP_BYTES, STEP_S = 4 * MIB, 0.25  # a donor looks four times a second
WAIT_S = 90.0


def measure(folder: Path, program: Path) -> RecallShare:
    """Fills a device over three donors, takes one donor's memory away bit by bit, and counts what stayed remote.

    The disk is there and has every page, so a page that is not moved in time is not lost, but no longer remote.
    """
    layout = Layout(name="recall", transport="tcp", disk=True, donors=DONORS, donor_memory_bytes=DONOR_BYTES)
    with sandbox(layout, folder / "recall", DEVICE_BYTES) as box:
        _fill(box, program)
        before = box.remote_pages()
        if not before.get(VICTIM):
            raise BenchmarkError(f"{VICTIM} holds no page: {before}")
        started_s = time.monotonic()
        _squeeze(box)
        took_s = time.monotonic() - started_s
        lost = sum(before.values()) - sum(box.remote_pages().values())
    live = before[VICTIM]
    return RecallShare(deadline_s=DEADLINE_S, live_pages=live, remote_pages=max(0, live - lost), took_s=took_s)


def _fill(box: Sandbox, program: Path) -> None:
    deadline_s = time.monotonic() + WAIT_S
    fill(program, box.socket)
    while not box.is_all_remote():
        if time.monotonic() > deadline_s:
            raise BenchmarkError("not all pages became remote")
        time.sleep(1.0)
        fill(program, box.socket)


def _squeeze(box: Sandbox) -> None:
    # First what was free anyway, down to HeadRoom; from there slowly, so that every recall has its time.
    donor = next(d for d in control.blockdev_status(box.state)["donors"] if d["node"] == VICTIM)
    used_bytes = donor["total_bytes"] - donor["used_bytes"] - donor["headroom_bytes"] - 32 * MIB
    deadline_s = time.monotonic() + WAIT_S
    while box.remote_pages().get(VICTIM):
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{VICTIM} was not emptied: {box.remote_pages()}")
        used_bytes = min(donor["total_bytes"], used_bytes + STEP_BYTES)
        control.squeeze(box.state, VICTIM, used_bytes)
        time.sleep(STEP_S)

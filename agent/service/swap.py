"""Node service `swap`: has systemd attach and detach the Farside device that this node swaps to, as it is wanted.

It stands beside the path of the pages: the unit `farside-swap@NAME` attaches, swaps off and detaches, with all its own
checks, and the kernel and the borrower need nobody. So it says what is wanted and looks what is so, once in a while,
whoever was killed in between; what follows is `swap_plan.py`'s to say.

The size of the swap goes to the unit in a drop-in below /run, which is root's and gone after a boot; no file of the
administrator's is changed.
"""

import asyncio
import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from farside import admin
from farside.agent import messages as m
from farside.agent.service.memory_rules import MemoryRules
from farside.agent.service.service import NodeService
from farside.agent.service.swap_plan import Step, SwapSeen, UnitState, plan
from farside.clock import Clock
from farside.errors import FarsideError
from farside.geometry import PAGE_BYTES, granules_of
from farside.kmod_shim.swap.record import live_records
from farside.kmod_shim.swap.refusal import detach_refusals, refusal_line
from farside.kmod_shim.swap.table import find_area, read_room, read_swaps
from farside.log import get_log
from farside.units import format_bytes
from farside.whole_file import write_whole

ASK_LIMIT_S = 1.0
PERIOD_S = 2.0
HEARING_S = 30.0
"""A manager that is there has said by then what it wants."""
RETRY_S = 60.0
"""Before a step is asked for again after the unit failed, or systemd refused: why is read by people."""
RETRY_MAX_S = 3600.0
CALL_LIMIT_S = 20.0
DROP_INS = Path("run/systemd/system")
DROP_IN = "50-ordered.conf"
_OPTION = "ORDERED_SIZE=--size="
_UNHEARD = "no manager has spoken since this agent was started, and jobs may have been promised this swap"

_log = get_log("agent.swap")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.SwapOrder)


class SwapService(NodeService):
    """The service ``swap``.

    Args:
        rules: What the node's owner says; its ``device`` is the one that is swapped to.
        sockets: Admin sockets of the node's borrowers; one of them serves the device.
        root: The folder that has proc/, sys/ and run/.
    """

    name = m.SWAP
    version = 1

    def __init__(self, rules: MemoryRules, sockets: Iterable[Path], *, root: Path, clock: Clock) -> None:
        self._rules, self._sockets, self._root, self._clock = rules, tuple(sockets), root, clock
        self._unit = f"farside-swap@{rules.device}.service"
        self._order: m.SwapOrder | None = None  # None: no manager has said anything
        self._began_s = clock.now_s()
        self._seen = SwapSeen(unit=None)
        self._problem = ""
        self._refused = ""  # why systemd did not take the last step
        self._held: tuple[Step, ...] = ()  # what failed, and is asked for again only later
        self._held_until_s = self._logged_s = -RETRY_S
        self._retry_s = RETRY_S
        self._started_bytes: int | None = None  # size by which its unit was started while no swap was on
        self._wake = asyncio.Event()

    def facts(self) -> bytes:
        """Its `SwapFacts` of the last look."""
        seen, refusal = self._seen, self._rules.swap_refusal
        problem = self._problem or (refusal if self._ordered_bytes is not None else "")
        return _ENCODER.encode(
            m.SwapFacts(
                device_bytes=seen.device_bytes,
                attached_bytes=seen.area_bytes or 0,
                problem=problem[: m.CAUSE_CHARS_MAX],
                refusal=refusal,
                set_bytes=self._rules.swaps(None),
            )
        )

    def obey(self, order: msgspec.Raw) -> None:
        """The size that the swap is to have, a `SwapOrder`."""
        told, before = _ORDER.decode(order), self._order
        self._order = told
        if told != before:
            self._held, self._retry_s, self._started_bytes = (), RETRY_S, None
        self._wake.set()

    def metrics(self) -> Mapping[str, float]:
        """Sizes of device and swap."""
        return {"attached_bytes": self._seen.area_bytes or 0, "device_bytes": self._seen.device_bytes or 0}

    def drained(self) -> bool:
        """Always: what is on the device is this node's own."""
        return True

    async def run(self) -> None:
        """Looks and does what follows, until it is cancelled."""
        while self._rules.device:
            self._wake.clear()
            try:
                await self.look()
            except Exception as error:  # the next look may be possible again, and tasks go on without it
                self._note(f"its swap cannot be looked at: {error}")
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """One look at unit, kernel and borrower, and the step that follows."""
        device_bytes = await self._device_bytes()
        wanted_bytes = self._wanted_bytes
        self._seen = await asyncio.to_thread(self._look, device_bytes, wanted_bytes is not None)
        next_plan, now_s = plan(wanted_bytes, self._seen), self._clock.now_s()
        step = next_plan.step
        self._hold_where_its_unit_has_another_size(now_s)
        is_held = step in self._held and now_s < self._held_until_s
        if not is_held:
            self._refused = ""
        self._note(self._refused or next_plan.problem)
        if step is None and self._seen.told_bytes is not None and self._may_detach and not self._settled_bytes:
            await asyncio.to_thread(self._withdraw)
        if step is None or is_held:
            return
        _log.info("swap", unit=self._unit, verb=step, wanted_bytes=wanted_bytes)
        # A unit that is to adopt what is on is told the size of that, as it would refuse any other.
        problem = await asyncio.to_thread(self._do, step, self._seen.area_bytes or wanted_bytes or 0)
        if problem:
            self._refused = f"systemd refuses: {problem}"
            self._note(self._refused)
        elif step is Step.START and self._seen.area_bytes is None:
            self._started_bytes = wanted_bytes
        if problem or self._seen.unit is UnitState.FAILED:
            self._held, self._held_until_s = (step,), now_s + RETRY_S

    def _hold_where_its_unit_has_another_size(self, now_s: float) -> None:
        """Leaves alone for a while, longer each time, a unit that attached another size than it was started with."""
        started_bytes, area_bytes = self._started_bytes, self._seen.area_bytes
        if started_bytes is None or area_bytes is None:
            return
        self._started_bytes = None
        if granules_of(started_bytes) == granules_of(area_bytes):
            self._retry_s = RETRY_S
            return
        self._refused = f"its unit attaches {format_bytes(area_bytes)}; see SWAP_OPTIONS and ExecStart"
        self._held, self._held_until_s = (Step.START, Step.STOP), now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    @property
    def _ordered_bytes(self) -> int | None:
        return None if self._order is None else self._order.swap_bytes

    @property
    def _settled_bytes(self) -> int | None:
        """What is wanted, once a manager has had its time to speak."""
        return self._rules.swaps(self._ordered_bytes)

    @property
    def _wanted_bytes(self) -> int | None:
        # Its own settings would undo for a moment what a manager has ordered before this agent was started.
        if self._order is None and self._clock.now_s() - self._began_s < HEARING_S:
            return None
        return self._settled_bytes

    @property
    def _may_detach(self) -> bool:
        """Whether swap may be switched off: a manager that has yet to speak may have promised it to jobs."""
        return self._order is not None or bool(self._rules.swap_refusal)

    def _note(self, problem: str) -> None:
        was_well, self._problem, now_s = not self._problem, problem, self._clock.now_s()
        # Sizes in it change at each look: it is logged when it comes, and once in a while.
        if problem and (was_well or now_s - self._logged_s >= RETRY_S):
            self._logged_s = now_s
            _log.warning("this node's swap is not what is wanted", device=self._rules.device, why=problem)

    async def _device_bytes(self) -> int | None:
        """Size of the device, as its borrower says; None: none of them answers that it serves it."""
        told = await asyncio.gather(*(self._ask(socket) for socket in self._sockets))
        return dict(filter(None, told)).get(self._rules.device)

    @staticmethod
    async def _ask(socket: Path) -> tuple[str, int] | None:
        try:
            figures = await admin.ask(socket, "figures", timeout_s=ASK_LIMIT_S)
            return str(figures["name"]), int(figures["size_bytes"])
        except (FarsideError, KeyError, TypeError, ValueError):  # none, or one of a version that does not say it
            return None

    # ---- what takes its time, in threads

    def _look(self, device_bytes: int | None, is_wanted: bool) -> SwapSeen:
        attached = next((one for one in live_records(self._root) if one.export == self._rules.device), None)
        area = None if attached is None else find_area(read_swaps(self._root), attached.device)
        why_kept = ""
        if area is not None and is_wanted:
            refusals = detach_refusals(area, read_room(self._root, area))
            why_kept = "; ".join(map(refusal_line, refusals)) if self._may_detach else _UNHEARD
        unit = self._state() if is_wanted else None
        return SwapSeen(
            unit=unit,
            words=self._words() if unit in (UnitState.FAILED, UnitState.ACTIVATING, UnitState.DEACTIVATING) else "",
            device_bytes=device_bytes,
            # The kernel does not count the page with the area's head.
            area_bytes=None if area is None else area.size_bytes + PAGE_BYTES,
            told_bytes=self._told_bytes(),
            is_block=attached is not None and area is None and not attached.is_swap,
            why_kept=why_kept,
        )

    def _state(self) -> UnitState | None:
        shown = _said("systemctl", "show", "--property=LoadState,ActiveState", self._unit)
        told = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        if told.get("LoadState") != "loaded":
            return None
        with suppress(ValueError):
            return UnitState(told.get("ActiveState", ""))
        return UnitState.ACTIVATING  # reloading, or in maintenance: the next look sees what comes of it

    def _words(self) -> str:
        lines = _said("journalctl", "--unit", self._unit, "--lines=3", "--output=cat", "--no-pager").splitlines()
        # Its own words, and not systemd's of it.
        own = [line for line in lines if line.startswith("farside: ")] or lines
        return own[-1].strip().removeprefix("farside: ") if own else ""

    @property
    def _drop_in(self) -> Path:
        return self._root / DROP_INS / f"{self._unit}.d" / DROP_IN

    def _told_bytes(self) -> int | None:
        with suppress(OSError, ValueError):
            return int(self._drop_in.read_text().partition(_OPTION)[2].strip().strip('"'))
        return None

    def _do(self, step: Step, size_bytes: int) -> str:
        """Ask systemd for a step; why it refuses, empty: it does not. ``size_bytes``: of the swap, for a START."""
        if step is Step.START:
            if size_bytes != self._told_bytes():
                path = self._drop_in
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, f'[Service]\nEnvironment="{_OPTION}{size_bytes}"\n'.encode(), mode=0o644)
            # Each time: an agent that was killed may have written the file, and done no more.
            if problem := _said("systemctl", "daemon-reload", is_problem=True):
                return problem
        # Not waited for: to switch swap off takes minutes, and the node goes on being looked at.
        return _said("systemctl", "--no-block", step, self._unit, is_problem=True)

    def _withdraw(self) -> None:
        """Remove the size of an order that was taken back: the unit's next start is by its own settings."""
        self._drop_in.unlink(missing_ok=True)
        if problem := _said("systemctl", "daemon-reload", is_problem=True):
            _log.warning("systemd refuses to reload", why=problem)


def _said(*argv: str, is_problem: bool = False) -> str:
    """What a program prints, or with ``is_problem`` why it failed; empty: it is not there, or says nothing."""
    try:
        done = _run(argv)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error) if is_problem else ""
    if is_problem:
        return " ".join(done.stderr.split()) or f"exit code {done.returncode}" if done.returncode else ""
    return done.stdout


def _run(argv: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0"}
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=CALL_LIMIT_S,
        env=environment, errors="replace",
    )  # fmt: skip

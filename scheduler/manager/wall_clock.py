"""A clock for the manager's processes that jumps of the system clock do not move."""

import json
import time
from pathlib import Path

from farside.kernel_file import UNKNOWN, boot_id
from farside.log import get_log
from farside.whole_file import write_whole

FILE = "clock.json"
# A difference that is taken for a jump: of less the machine's clock is believed, as NTP sets it right by little.
JUMP_S = 60.0

_log = get_log("manager.clock")


class WallClock:
    """Seconds since the epoch as the machine had them at first, and from then on by the clock that only grows.

    A step of the machine's clock, by an operator or NTP, changes nothing for a process that runs, nor for those after
    it until the machine is booted anew: what the clock began at is kept in ``folder``. So no time limit ends early and
    no node is taken for lost, and a job's attained service is what it was served.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._boot_id = boot_id()
        told_s = time.time() - time.monotonic()
        kept_s = self._read()
        self._offset_s = told_s
        if kept_s is not None and abs(told_s - kept_s) > JUMP_S:
            self._offset_s = kept_s
            _log.warning(
                "the system clock was changed; the manager's times go on as before until the next boot",
                jump_s=round(told_s - kept_s), to_take_the_new_time=f"stop the manager, remove {self._path}",
            )  # fmt: skip
        else:
            self._keep()

    def now_s(self) -> float:
        """Seconds since the epoch."""
        # CLOCK_MONOTONIC begins anew at each boot, so an offset is valid for one boot only (`_read`).
        return time.monotonic() + self._offset_s

    def not_before(self, at_s: float) -> None:
        """Sets it forward to ``at_s`` where it is behind: what is known to have been is past, and time goes on."""
        behind_s = at_s - self.now_s()
        if behind_s > 0:
            self._offset_s += behind_s
            self._keep()
        if behind_s > JUMP_S:
            _log.warning(
                "the system clock is behind the log's last entry; the manager's times go on from that entry",
                by_s=behind_s,
            )

    def _read(self) -> float | None:
        try:
            kept = json.loads(self._path.read_text())
            return float(kept["offset_s"]) if kept["boot_id"] == self._boot_id != UNKNOWN else None
        except (OSError, ValueError, TypeError, KeyError):
            return None  # none yet, or half of one: the machine's clock is believed

    def _keep(self) -> None:
        # By either process, which have the same clock: whoever is last wins.
        kept = json.dumps({"boot_id": self._boot_id, "offset_s": self._offset_s}) + "\n"
        try:
            write_whole(self._path, kept.encode(), mode=0o644)
        except OSError as error:
            _log.warning("the clock can't be saved; a jump while the manager is down will count", reason=str(error))

"""State files of the Slurm engine: its memory, finished jobs, and what it did or would have done.

``memory.msgpack`` (it has infinite values, which JSON lacks) and ``nodes.msgpack`` are replaced whole; the others are
lines of JSON, in files that only grow, up to a limit.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from farside.errors import ConfigError
from farside.log import get_log
from farside.scheduler.energy.seen_series import KEPT_STEPS
from farside.scheduler.power.busy_history import KeptPast
from farside.scheduler.slurm.job_memory import Memory
from farside.scheduler.slurm.shadow_job import Ended

MEMORY, NODES, ENDED, DONE = "memory.msgpack", "nodes.msgpack", "ended.jsonl", "actions.jsonl"
# Jobs that have ended, kept for the simulator: weeks of most clusters, seconds of simulation.
MOST_ENDED = 20_000
# A file of lines that is larger is set aside, in place of the one before.
MOST_BYTES = 64 << 20
# Nine bytes for each interval that is kept at most, and a little.
MOST_NODES_BYTES = 16 * KEPT_STEPS
OLD = ".1"
# What msgspec raises for damaged bytes; text that is no UTF-8 is none of its own errors.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)

_log = get_log("slurm")


class StateFiles:
    """A folder of its own. What can't be written is said once, and no reason to stop.

    Raises:
        ConfigError: The folder can't be made.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        except OSError as error:
            raise ConfigError(f"state_dir {folder}: {error.strerror}", hint="name another folder") from error
        self._folder = folder
        self._is_full = False

    def memory(self) -> Memory:
        """The memory as last saved; an empty one if there is none or it can't be read."""
        try:
            return msgspec.msgpack.decode((self._folder / MEMORY).read_bytes(), type=Memory)
        except FileNotFoundError:
            return Memory()
        except (OSError, *UNREADABLE) as error:
            _log.warning("the engine's memory can't be read; service before this start is not counted", reason=error)
            return Memory()

    def nodes(self) -> KeptPast | None:
        """Number of busy nodes before this process began, as saved.

        Raises:
            ConfigError: What is there can't be read.
        """
        try:
            with (self._folder / NODES).open("rb") as file:
                # One byte more than allowed shows that there is more.
                data = file.read(MOST_NODES_BYTES + 1)
            if len(data) > MOST_NODES_BYTES:
                raise ConfigError("it is too large")
            return msgspec.msgpack.decode(data, type=KeptPast)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            raise ConfigError(getattr(error, "strerror", "") or str(error)) from error

    def keep(self, name: str, what: Memory | KeptPast) -> None:
        """Replaces a whole file."""
        part = self._folder / f"{name}.part"
        with self._writing():
            part.write_bytes(msgspec.msgpack.encode(what))
            part.replace(self._folder / name)

    def ended(self) -> dict[str, Ended]:
        """The last jobs that have ended. A line that was cut off is left out."""
        found: dict[str, Ended] = {}
        lines: list[bytes] = []
        for path in (self._folder / f"{ENDED}{OLD}", self._folder / ENDED):
            with suppress(OSError):
                lines += path.read_bytes().splitlines()
        # A kill may cut the last line off; a full disk any line.
        for line in lines[-MOST_ENDED:]:
            with suppress(*UNREADABLE):
                one = msgspec.json.decode(line, type=Ended)
                found[one.job_id] = one
        return found

    def add(self, name: str, lines: Iterable[object]) -> None:
        """Adds lines to a file: jobs that have ended, or what was done or would have been."""
        text = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        path = self._folder / name
        if not text:
            return
        with self._writing():
            if path.exists() and path.stat().st_size > MOST_BYTES:
                path.replace(path.with_name(f"{name}{OLD}"))
            with path.open("ab") as file:
                file.write(text)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Once, until a write succeeds again: turns come every few seconds.
            if not self._is_full:
                _log.error("can't write a state file; the engine goes on", folder=self._folder, reason=error.strerror)
            self._is_full = True
        else:
            self._is_full = False

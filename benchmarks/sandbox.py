"""Farside itself as a server: ``farside sandbox``, and what its processes say of themselves."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import process, python_program
from farside.sandbox import control

PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How our own server is set up."""

    name: str
    transport: str  # shm or tcp
    disk: bool  # with the backup disk behind it; else with no second copy
    encrypts: bool = True
    donors: int = 1
    donor_memory_bytes: int = 0  # each; 0 is four times the device
    package: Path | None = None  # a folder with another build of the package; None: this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """A running ``farside sandbox``."""

    socket: Path
    state: Path

    def server_processes(self) -> tuple[int, ...]:
        """The borrower: its supervisor, whose child is the server."""
        return (control.record(self.state).blockdev.pid,)

    def donor_processes(self) -> tuple[int, ...]:
        """The donors."""
        return tuple(donor.pid for donor in control.record(self.state).donors)

    def remote_pages(self) -> dict[str, int]:
        """Pages with content that each donor holds now."""
        pages: dict[str, int] = {}
        for slab in control.blockdev_status(self.state)["slabs"]:
            pages[slab["donor"]] = pages.get(slab["donor"], 0) + slab["live_pages"]
        return pages

    def is_all_remote(self) -> bool:
        """True when every page of the device is in donors' memory and nothing waits for the disk."""
        size_bytes = control.record(self.state).size_bytes
        return sum(self.remote_pages().values()) * PAGE_BYTES >= size_bytes and self.is_quiet()

    def is_quiet(self) -> bool:
        """True when nothing waits for the disk."""
        return not control.blockdev_status(self.state)["pending_bytes"]


@contextmanager
def sandbox(layout: Layout, room: Path, device_bytes: int) -> Iterator[Sandbox]:
    """Runs the sandbox until the block ends; enters it when clients may connect."""
    room.mkdir()
    path, log, state = room / "nbd.sock", room / "log", room / "s"
    memory_bytes = layout.donor_memory_bytes or 4 * device_bytes
    command = [python_program("farside"), "sandbox", "--donors", str(layout.donors), "--transport", layout.transport]
    command += ["--donor-memory", str(memory_bytes), "--size", str(device_bytes), "--listen", f"unix:{path}"]
    command += ["--disk", str(room / "disk")] if layout.disk else ["--no-protection"]
    command += ([] if layout.encrypts else ["--clear-pages"]) + ["--state", str(state)]
    if layout.package is not None:
        command = ["env", f"PYTHONPATH={layout.package}", *command]
    with process(command, log, lambda: "ready " in log.read_text(errors="replace")):
        yield Sandbox(socket=path, state=state)

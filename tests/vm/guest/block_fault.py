"""A backup disk that can be made slow, or broken, while it is in use: device-mapper's targets over a file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import run
from tests.vm.guest.swap_plane import LIMIT_S

SECTOR_BYTES = 512
NAME = "backup"


class FaultyDisk:
    """`/dev/mapper/backup`; it is well until it is told otherwise."""

    path = Path("/dev/mapper", NAME)

    def __init__(self, image: Path, size_bytes: int) -> None:
        self._sectors = size_bytes // SECTOR_BYTES
        for module in ("loop", "dm_mod", "dm_delay", "dm_flakey"):
            run(["modprobe", module])
        run(["fallocate", "-l", str(size_bytes), str(image)])
        self._loop = run(["losetup", "--find", "--show", "--direct-io=on", str(image)]).strip()
        run(["dmsetup", "create", NAME, "--noudevsync", "--table", self._table("linear")])
        run(["dmsetup", "mknodes", NAME])

    def slow(self, delay_ms: int) -> None:
        """Every operation takes that much longer."""
        self._become(f"0 {self._sectors} delay {self._loop} 0 {delay_ms}")

    def refuse_writes(self) -> None:
        """Every write fails; what is there can be read."""
        self._become(f"0 {self._sectors} flakey {self._loop} 0 0 86400 1 error_writes")

    def break_down(self) -> None:
        """Every operation fails."""
        self._become(f"0 {self._sectors} error")

    def heal(self) -> None:
        """It is well again, with what was written before."""
        self._become(self._table("linear"))

    def remove(self) -> None:
        """Takes it away; nobody may use it any more."""
        run(["dmsetup", "remove", "--noudevsync", "--retry", NAME], limit_s=LIMIT_S)
        run(["losetup", "--detach", self._loop])

    def _table(self, target: str) -> str:
        return f"0 {self._sectors} {target} {self._loop} 0"

    def _become(self, table: str) -> None:
        run(["dmsetup", "suspend", "--nolockfs", "--noflush", NAME], limit_s=LIMIT_S)
        try:
            run(["dmsetup", "load", NAME, "--table", table], limit_s=LIMIT_S)
        finally:
            run(["dmsetup", "resume", "--noudevsync", NAME], limit_s=LIMIT_S)


@contextmanager
def faulty_disk(folder: Path, size_bytes: int) -> Iterator[FaultyDisk]:
    """One that is gone afterwards."""
    disk = FaultyDisk(folder / "backup.img", size_bytes)
    try:
        yield disk
    finally:
        disk.remove()

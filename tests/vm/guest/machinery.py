"""What faults are made with inside one guest: a network that can be cut, memory that is eaten."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.programs import run
from tests.vm.guest.swap_plane import CGROUPS, Donor


class Room:
    """A network namespace with a donor's address in it, behind a cable of its own."""

    def __init__(self, number: int) -> None:
        self.name = f"room{number}"
        self._cable = f"cable{number}"
        self.address = f"10.78.{number}.2"
        run(["ip", "netns", "add", self.name])
        run(["ip", "link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.name])
        run(["ip", "addr", "add", f"10.78.{number}.1/24", "dev", self._cable])
        run(["ip", "link", "set", self._cable, "up"])
        run(["ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0"])
        run(["ip", "-n", self.name, "link", "set", "eth0", "up"])

    def donor(self, name: str, *, memory_bytes: int, **settings: object) -> Donor:
        """A donor that runs in here."""
        within = ("nsenter", f"--net=/run/netns/{self.name}")
        return Donor(name=name, address=self.address, within=within, memory_bytes=memory_bytes, settings=settings)

    def cut(self) -> None:
        """Every packet vanishes, both ways, without a sign."""
        loss = ("root", "netem", "loss", "100%")
        run(["tc", "qdisc", "add", "dev", self._cable, *loss])
        run(["tc", "-n", self.name, "qdisc", "add", "dev", "eth0", *loss])

    def heal(self) -> None:
        """Undoes `cut`."""
        run(["tc", "qdisc", "del", "dev", self._cable, "root"])
        run(["tc", "-n", self.name, "qdisc", "del", "dev", "eth0", "root"])

    def remove(self) -> None:
        """Takes cable and namespace away."""
        run(["ip", "netns", "del", self.name])


# Page by page: a second copy of it all, for a moment, would have the kernel kill somebody.
_EATER = """
import mmap, sys
memory = mmap.mmap(-1, int(sys.argv[1]))
for page in range(0, len(memory), 4096): memory[page] = 1
print('full', flush=True)
input()
"""


@contextmanager
def eaten(donor: Donor, size_bytes: int) -> Iterator[None]:
    """A program beside the donor, in its cgroup, holds that much memory."""
    enter = f'echo $$ > {CGROUPS / donor.group}/cgroup.procs && exec "$@"'
    program = subprocess.Popen(
        ["sh", "-c", enter, "sh", sys.executable, "-IS", "-c", _EATER, str(size_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == b"full\n"
        yield
    finally:
        program.kill()
        program.communicate()

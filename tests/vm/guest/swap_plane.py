"""Two donors and a borrower in one guest, as an operator starts them, and a program that needs more than it may have.

The donors sit in a cgroup that may not swap: on one machine their slabs would otherwise be swapped to themselves. (On
several machines that is nobody's worry.)
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import PeerError
from farside.keygen import make_key
from tests.support.programs import Outcome, outcome
from tests.support.waiting import until

LIMIT_S = 300.0  # emulated processors, on a host that others use too
CGROUPS = Path("/sys/fs/cgroup")
SIZE = 128 << 20


class Plane:
    """Processes in a folder. ``kill`` is kill -9."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.admin_socket = folder / "blockdev.sock"
        self.nbd_socket = folder / "nbd.sock"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        make_key(folder / "key")
        for number in (1, 2):
            self._settings(
                f"d{number}",
                f'node = "d{number}"\nlisten = ["tcp:127.0.0.1:770{number}"]\nheadroom_bytes = "32MiB"\n'
                f'max_slabs = 8\npreallocate_slabs = 1\nadmin_socket = "{folder}/d{number}.sock"\n',
            )
        (folder / "peers.toml").write_text(
            "".join(f'[[donor]]\nnode = "d{n}"\ncontrol = "tcp:127.0.0.1:770{n}"\n' for n in (1, 2))
        )
        self._settings(
            "blockdev",
            f'size_bytes = {SIZE}\nlisten = ["unix:{self.nbd_socket}"]\npeers_file = "{folder}/peers.toml"\n'
            f'disk_path = "{folder}/disk"\npending_bytes = "16MiB"\nworkers = 2\n'
            f"deadline_s = 5\ngrace_s = 20\n"  # as slow as everything here
            f'admin_socket = "{self.admin_socket}"\nstate_dir = "{folder}"\n',
        )

    def _settings(self, name: str, text: str) -> None:
        common = f'key_file = "{self.folder}/key"\nslab_bytes = "8MiB"\n'
        (self.folder / f"{name}.toml").write_text(text + common)

    def start(self, name: str) -> None:
        program = "blockdev" if name == "blockdev" else "daemon"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, "-m", "farside", program, "--config", str(self.folder / f"{name}.toml")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if program == "daemon":
            group("donors", "memory.swap.max", "0")
            (CGROUPS / "donors/cgroup.procs").write_text(str(self._running[name].pid))

    def start_all(self) -> None:
        for name in ("d1", "d2", "blockdev"):
            self.start(name)
        until(self.is_up, what="a borrower with two donors", deadline_s=LIMIT_S, every_s=0.5)

    def is_up(self) -> bool:
        told = self.status()
        return told is not None and [donor["state"] for donor in told["donors"]] == ["up", "up"]

    def status(self) -> Any | None:
        """What the borrower tells, None while it tells nothing."""
        with suppress(PeerError):
            return admin.call(self.admin_socket, "status", timeout_s=60)
        return None

    def told(self) -> Any:
        return until(self.status, what="the borrower's status", deadline_s=LIMIT_S, every_s=0.5)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running.pop(name).wait()

    def kill_server(self) -> None:
        os.kill(self.told()["server_pid"], signal.SIGKILL)

    def end(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def group(name: str, setting: str, value: str) -> Path:
    """A cgroup with that setting."""
    control = CGROUPS / "cgroup.subtree_control"
    if "memory" not in control.read_text().split():
        control.write_text("+memory")
    folder = CGROUPS / name
    folder.mkdir(exist_ok=True)
    (folder / setting).write_text(value)
    return folder


def swap(*arguments: str, limit_s: float = LIMIT_S) -> Outcome:
    """`farside swap ...`."""
    return outcome([sys.executable, "-m", "farside", "swap", *arguments], limit_s=limit_s)


def swap_must(*arguments: str) -> str:
    """The output of `farside swap ...`, which must succeed."""
    done = swap(*arguments)
    assert done.status == 0, done.stdout + done.stderr
    return done.stdout


def vmstat(name: str) -> int:
    """One of the kernel's counters."""
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(lines[name])


# Every page says which it is and how often it was written; a page of another place or time is found out.
_HOG = """
import mmap, random, struct, sys, time
pages, seconds = int(sys.argv[1]), float(sys.argv[2])
memory, versions, wrong, done, worst = mmap.mmap(-1, pages * 4096), [0] * pages, 0, 0, 0.0
def content(i): return struct.pack("<QQ", i * 0x9E3779B1, versions[i] * pages + i) * 256
def check(i): return memory[i * 4096:(i + 1) * 4096] != content(i)
for i in range(pages): memory[i * 4096:(i + 1) * 4096] = content(i)
print("filled", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    i = random.randrange(pages)
    began = time.monotonic()
    wrong += check(i)
    worst = max(worst, time.monotonic() - began)
    versions[i] += 1
    memory[i * 4096:(i + 1) * 4096] = content(i)
    done += 1
wrong += sum(map(check, range(pages)))
print(f"wrong={wrong} accesses={done} worst_s={worst:.2f}", flush=True)
"""


class Hog:
    """A program with three times the memory that its cgroup allows."""

    def __init__(self, folder: Path, *, limit_mib: int, seconds: float) -> None:
        self._output = folder / "hog.out"
        cgroup = group("hog", "memory.max", f"{limit_mib << 20}")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _HOG, str(3 * limit_mib * 256), str(seconds)], stdout=output, stderr=output
            )
        (cgroup / "cgroup.procs").write_text(str(self._process.pid))

    def wait_filled(self) -> None:
        """Until it has touched everything, which by then is out for two thirds."""
        until(lambda: "filled" in self._output.read_text(), what="the program's pages", deadline_s=LIMIT_S, every_s=0.5)

    def is_running(self) -> bool:
        return self._process.poll() is None

    def pause(self) -> None:
        """It asks for no page any more."""
        self._process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{self._process.pid}/stat")
        until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", what="a stop", deadline_s=LIMIT_S)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> str:
        """Waits for its verdict: `wrong=0 ...`."""
        status = self._process.wait(2 * LIMIT_S)
        said = self._output.read_text()
        assert status == 0, f"it ended with {status}: {said}"
        return said.splitlines()[-1]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def hog(folder: Path, *, limit_mib: int = 12, seconds: float = 20) -> Iterator[Hog]:
    """A running one, that has touched all its pages."""
    one = Hog(folder, limit_mib=limit_mib, seconds=seconds)
    try:
        one.wait_filled()
        yield one
    finally:
        if one.is_running():
            one.kill()


def kernel_errors() -> Sequence[str]:
    """Lines of the kernel log that say that a page was not read or written."""
    done = outcome(["dmesg"], limit_s=60)
    words = (
        "I/O error",
        "Read-error",
        "Write-error",
        "Connection timed out",
        "Dead connection",
        "Receive control failed",
    )
    return [line for line in done.stdout.splitlines() if any(word in line for word in words)]

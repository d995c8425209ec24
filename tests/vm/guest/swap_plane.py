"""Two donors and a borrower in one guest, as an operator starts them, and a program that needs more than it may have.

The donors sit in a cgroup that may not swap: on one machine their slabs would otherwise be swapped to themselves. (On
several machines that is nobody's worry.)
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farside import admin
from farside.cli.keygen import make_key
from farside.errors import PeerError
from tests.support.programs import Outcome, outcome
from tests.support.waiting import until

# Emulated processors; a host that others use too says by how much longer everything may take.
LIMIT_S = 300.0 * float(os.environ.get("FARSIDE_HOST_PATIENCE", "1"))
CGROUPS = Path("/sys/fs/cgroup")
SIZE = 128 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """One that lends. `within` is the command that it runs under, as in another network namespace.

    With `memory_bytes` that is all it and the programs of its cgroup may have, and what it reckons with.
    """

    name: str
    address: str = "127.0.0.1"
    port: int = 7701
    within: tuple[str, ...] = ()
    memory_bytes: int = 0
    settings: Mapping[str, object] = field(default_factory=dict[str, object])

    @property
    def control(self) -> str:
        """Where its borrower reaches it."""
        return f"tcp:{self.address}:{self.port}"

    @property
    def group(self) -> str:
        """Its cgroup."""
        return f"donors/{self.name}"


TWO = (Donor(name="d1"), Donor(name="d2", port=7702))
_SHARED = {"slab_bytes": "8MiB"}
_LENDING = {"headroom_bytes": "32MiB", "max_slabs": 8, "preallocate_slabs": 1}
_BORROWING = {
    "size_bytes": SIZE,
    "pending_bytes": "16MiB",
    "workers": 2,
    # As slow as everything is here.
    "deadline_s": 5,
    "grace_s": 20,
}


class Plane:
    """Processes in a folder.

    ``settings`` are the borrower's own, beside or over the usual ones; None leaves one out.
    """

    def __init__(self, folder: Path, *, donors: Sequence[Donor] = TWO, settings: Mapping[str, object] = {}) -> None:
        self.folder = folder
        self.donors = {donor.name: donor for donor in donors}
        self.admin_socket = folder / "blockdev.sock"
        self.nbd_socket = folder / "nbd.sock"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        make_key(folder / "key")
        for donor in donors:
            mine = {"node": donor.name, "listen": [donor.control], "admin_socket": f"{folder}/{donor.name}.sock"}
            mine |= {"cgroup": donor.group} if donor.memory_bytes else {}
            self.write(donor.name, {**_LENDING, **mine, **donor.settings})
        borrower = {
            "listen": [f"unix:{self.nbd_socket}"],
            "peers_file": f"{folder}/peers.toml",
            "disk_path": f"{folder}/disk",
            "admin_socket": str(self.admin_socket),
            "state_dir": str(folder),
        }
        chosen = {**_BORROWING, **borrower, **settings}
        self.write("blockdev", {name: value for name, value in chosen.items() if value is not None})
        self.write_peers(self.donors)

    def write(self, name: str, settings: Mapping[str, object]) -> None:
        """The settings of one process, as it reads them at its next start."""
        text = toml({"key_file": f"{self.folder}/key", **_SHARED, **settings})
        (self.folder / f"{name}.toml").write_text(text)

    def write_peers(self, names: Iterable[str]) -> None:
        """The donors that the borrower knows."""
        rows = [{"node": name, "control": self.donors[name].control} for name in names]
        (self.folder / "peers.toml").write_text("".join(f"[[donor]]\n{toml(row)}" for row in rows))

    def start(self, name: str) -> None:
        """Starts a donor, or the borrower by the name `blockdev`."""
        donor = self.donors.get(name)
        program = "daemon" if donor else "blockdev"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [
                    *(donor.within if donor else ()),
                    *(sys.executable, "-m", "farside", program, "--config", str(self.folder / f"{name}.toml")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if donor:
            group("donors", "memory.swap.max", "0")
            group(donor.group, "memory.swap.max", "0")
            group(donor.group, "memory.max", str(donor.memory_bytes or "max"))
            (CGROUPS / donor.group / "cgroup.procs").write_text(str(self.pid(name)))

    def start_all(self) -> None:
        """Starts everything, and returns when all donors are up."""
        for name in (*self.donors, "blockdev"):
            self.start(name)
        try:
            until(self.is_up, what="a borrower with its donors", deadline_s=LIMIT_S, every_s=0.5)
        except AssertionError as error:
            logs = (f"{name}: {line}" for name in (*self.donors, "blockdev") for line in self._last_lines(name))
            raise AssertionError("\n".join((str(error), *logs))) from None

    def _last_lines(self, name: str) -> Sequence[str]:
        return (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-12:]

    def is_up(self) -> bool:
        """The borrower answers, and all its donors are up."""
        told = self.status()
        return told is not None and {donor["state"] for donor in told["donors"]} == {"up"}

    def pid(self, name: str) -> int:
        """Of a process that was started here; the borrower's is its supervisor's."""
        return self._running[name].pid

    def is_alive(self, name: str) -> bool:
        """It was started and has not ended."""
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def donor_status(self, name: str) -> Any:
        """What a donor tells."""
        return admin.call(self.folder / f"{name}.sock", "status", timeout_s=60)

    def drain(self, name: str) -> None:
        """Takes a donor out for maintenance; returns when nothing of the borrower is there any more."""
        admin.call(self.folder / f"{name}.sock", "drain", timeout_s=60, deadline_s=LIMIT_S)
        until(lambda: self._is_empty(name), what=f"an empty {name}", deadline_s=2 * LIMIT_S, every_s=1)

    def _is_empty(self, name: str) -> bool:
        counts = self.donor_status(name)["slab_counts"]
        return bool(sum(counts.values()) == counts["ready"])

    def status(self) -> Any | None:
        """What the borrower tells, None while it tells nothing."""
        with suppress(PeerError):
            return admin.call(self.admin_socket, "status", timeout_s=60)
        return None

    def told(self) -> Any:
        return until(self.status, what="the borrower's status", deadline_s=LIMIT_S, every_s=0.5)

    def kill(self, name: str) -> None:
        """kill -9."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def terminate(self, name: str) -> None:
        """SIGTERM, as a service manager stops it; returns when it has ended."""
        self._running[name].terminate()
        self._running.pop(name).wait(LIMIT_S)

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


def toml(settings: Mapping[str, object]) -> str:
    """Settings as a file has them."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def group(name: str, setting: str, value: str) -> Path:
    """A cgroup, below one that may be made too, with that setting."""
    folder = CGROUPS
    for part in name.split("/"):
        control = folder / "cgroup.subtree_control"
        if "memory" not in control.read_text().split():
            control.write_text("+memory")
        folder /= part
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
HOG = """
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
                [sys.executable, "-c", HOG, str(3 * limit_mib * 256), str(seconds)], stdout=output, stderr=output
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

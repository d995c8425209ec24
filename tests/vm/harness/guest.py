"""One virtual machine: woken from a snapshot or booted, spoken to by ssh, and ended in any way one likes."""

import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from tests.vm.harness.emulator import Emulator
from tests.vm.harness.image import Image
from tests.vm.harness.kernel_log import faults
from tests.vm.harness.machine import Paths, Spec, arguments
from tests.vm.harness.program import HarnessError, run
from tests.vm.harness.remote import Outcome, Remote

BOOT_LIMIT_S = 300.0  # 30 s alone on two cores, emulated; others may want the cores too
WAKE_LIMIT_S = 300.0
SNAPSHOT = "ready"
_ANSWER_LIMIT_S = 180.0
_SILENCE_S = 5.0  # of a kernel that has said all that it was asked for
_LOOK_EVERY_S = 0.5


class Guest:
    """Node `number` of a network, `10.77.0.<number>` to the others. Everything of it lies in `folder`."""

    def __init__(
        self, *, number: int, image: Image, spec: Spec, payload: Path, folder: Path, port: Path | None
    ) -> None:
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.77.0.{number}"
        self.folder = folder
        self._image = image
        self._spec = spec
        self._port = port
        self._paths = Paths(
            kernel=image.kernel,
            initrd=image.initrd,
            disk=folder / f"{self.name}.qcow2",
            payload=payload,
            console=folder / f"{self.name}.console",
            serial=folder / f"{self.name}.serial",
            control=folder / f"{self.name}.qmp",
        )
        self._emulator_log = folder / f"{self.name}.qemu"
        self._consoles = ""  # what the serial line said before the last start
        self._emulator: Emulator | None = None
        self._remote: Remote | None = None

    # --- its life

    def wake(self, snapshot: Path) -> None:
        """Goes on from a snapshot, with this moment's clock and fresh random numbers (2 to 5 s, emulated)."""
        self.begin_waking(snapshot)
        self.end_waking()

    def begin_waking(self, snapshot: Path) -> None:
        """First half of `wake`, which returns at once: several guests wake at the same time."""
        self.power_off()
        shutil.copyfile(snapshot, self._paths.disk)
        self._start(wake=SNAPSHOT)

    def end_waking(self) -> None:
        """Second half of `wake`."""
        self._let_in(WAKE_LIMIT_S)
        self.become_node()

    def boot(self, *, fresh: bool = False) -> None:
        """Starts from its disk as that was left, as after a power cut; `fresh`: from the image's disk."""
        self.power_off()
        if fresh:
            backing = ("-F", "raw", "-b", self._image.disk)
            run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, self._paths.disk], limit_s=30)
        self._start(wake="")
        self._let_in(BOOT_LIMIT_S)
        self.run("systemctl is-system-running --wait || systemctl --failed", limit_s=BOOT_LIMIT_S)

    def become_node(self) -> None:
        """Takes its number, address and /farside: to be called after `boot`; waking does it by itself."""
        self.run(f"farside-node {self.number} {time.time():.3f} {secrets.token_hex(64)}")

    def save(self) -> Path:
        """Saves memory and disk, ends, and returns the file that `wake` takes."""
        self.run("sync; echo 3 >/proc/sys/vm/drop_caches")
        self.remote.close()
        self.emulator.snapshot(SNAPSHOT)
        self.power_off()
        return self._paths.disk

    def power_off(self) -> None:
        """Pulls the plug: what was not written is lost. Nothing happens to a guest that is off."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None
        if self._emulator is not None:
            self._emulator.close()
            self._emulator = None
            self._consoles += _text(self._paths.console)

    def wait_off(self, limit_s: float = 120.0) -> None:
        """Returns when the guest has switched itself off, or asked for a reboot: `boot` is the second half of that."""
        self.emulator.wait(limit_s)
        self.power_off()

    @property
    def is_on(self) -> bool:
        """Its emulator runs."""
        return self._emulator is not None and self._emulator.is_running()

    @property
    def emulator(self) -> Emulator:
        """The running emulator."""
        if self._emulator is None:
            raise HarnessError(f"{self.name} is off")
        return self._emulator

    # --- what one does with it

    def run(self, command: str, *, limit_s: float = 180.0, stdin: bytes = b"") -> str:
        """Standard output of a shell command that must succeed."""
        return self.remote.run(command, limit_s=limit_s, stdin=stdin)

    def outcome(self, command: str, *, limit_s: float = 180.0, stdin: bytes = b"") -> Outcome:
        """Status and both outputs of a shell command, whatever they are."""
        return self.remote.outcome(command, limit_s=limit_s, stdin=stdin)

    def spawn(self, command: str) -> "subprocess.Popen[str]":
        """Starts a shell command; its output, both kinds together, comes by the process's stdout."""
        return self.remote.spawn(command)

    def put(self, local: Path, remote: str) -> None:
        """Copies a file into the guest."""
        self.remote.put(local, remote)

    def get(self, remote: str, local: Path) -> None:
        """Copies a file out of the guest."""
        self.remote.get(remote, local)

    def unplug(self) -> None:
        """Pulls the data network's cable: the guest's own link goes down."""
        self.emulator.set_link("nic", up=False)

    def plug(self) -> None:
        """Puts it back."""
        self.emulator.set_link("nic", up=True)

    def pause(self) -> None:
        """Stops its processors: a machine that hangs."""
        self.emulator.execute("stop")

    def resume(self) -> None:
        """Lets them run on."""
        self.emulator.execute("cont")

    def stand_still(self, seconds: float) -> None:
        """It isn't run for so long while its clock goes on, as when it moves to another host."""
        process = self.emulator.process
        process.send_signal(signal.SIGSTOP)
        try:
            threading.Event().wait(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    # --- what its kernel said

    def hear_questions(self) -> None:
        """Has somebody in the guest listen to the serial line: without one `ask_kernel` is not heard."""
        self.run("setsid sleep infinity </dev/ttyS0 >/dev/null 2>&1 &")

    def ask_kernel(self, letters: str = "8mwt") -> str:
        """What the kernel says to these sysrq letters, when no program of the guest may be able to run any more.

        By default memory, blocked tasks, and then all tasks, each with what it waits in. After `hear_questions`. The
        guest stands still while it says so, for a minute and longer where it is emulated: what was under way is late.
        """
        before = len(_text(self._paths.console))
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self._paths.serial))
            for letter in f"{letters}h":  # one question at a time; the last one's answer, a help text, ends all others
                asked = len(_text(self._paths.console))
                self.emulator.execute("chardev-send-break", id="serial")
                line.sendall(letter.encode())
                self._hear("sysrq: HELP" if letter == "h" else "sysrq: ", since=asked)
        return _text(self._paths.console)[before:]

    def _hear(self, word: str, *, since: int) -> None:
        pause, end_s = threading.Event(), time.monotonic() + _ANSWER_LIMIT_S
        while word not in _text(self._paths.console)[since:] and time.monotonic() < end_s:
            pause.wait(_LOOK_EVERY_S)
        size = -1
        while (now := self._paths.console.stat().st_size) != size and time.monotonic() < end_s:
            size = now
            pause.wait(_SILENCE_S)

    def kernel_log(self) -> str:
        """The serial line's warnings since the first start, and all of dmesg where the guest can still be asked."""
        log = self._consoles + _text(self._paths.console)
        if self._remote is not None and self.is_on:
            try:
                log += self.run("dmesg", limit_s=30)
            except HarnessError as error:
                log += f"(dmesg can't be had: {error})\n"
        return log

    def kernel_faults(self) -> tuple[str, ...]:
        """Lines of it that no passing test can excuse."""
        return faults(self.kernel_log())

    @property
    def remote(self) -> Remote:
        """Its shell."""
        if self._remote is None:
            raise HarnessError(f"{self.name} is off")
        return self._remote

    def _start(self, *, wake: str) -> None:
        self._paths.console.unlink(missing_ok=True)
        argv = arguments(self._spec, self._paths, name=self.name, port=self._port, wake=wake)
        self._emulator = Emulator(argv, control=self._paths.control, log=self._emulator_log)
        port = self._emulator.forwarded_port()
        self._remote = Remote(key=self._image.key, port=port, control=self.folder / f"{self.name}.ssh")

    def _let_in(self, limit_s: float) -> None:
        try:
            self.remote.open(limit_s, alive=self.emulator.is_running)
        except HarnessError as error:
            said = f"{_text(self._paths.console)[-2000:]}{_text(self._emulator_log)[-1000:]}"
            self.power_off()
            raise HarnessError(f"{self.name}: {error}\n{said}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return ""

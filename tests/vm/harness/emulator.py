"""A running emulator: a process that cannot outlive us, and its control socket (QMP)."""

import json
import re
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.vm.harness.program import HarnessError

_START_LIMIT_S = 30.0
_COMMAND_LIMIT_S = 120.0  # a snapshot of a busy guest on a busy disk


class Emulator:
    """One `qemu` process.

    The kernel ends it when the thread that made it ends, however that is: make it in the main thread.
    """

    def __init__(self, argv: Sequence[str], *, control: Path, log: Path) -> None:
        self._log = log
        control.unlink(missing_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *argv],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._socket = self._connect(control)
        self._lines = self._socket.makefile("rb")
        self._read()  # greeting
        self.execute("qmp_capabilities")

    def _connect(self, control: Path) -> socket.socket:
        end_s = time.monotonic() + _START_LIMIT_S
        while True:
            if self.process.poll() is not None:
                raise HarnessError(
                    f"the emulator ended with {self.process.returncode}: {self._log.read_text()[-2000:]}"
                )
            found = socket.socket(socket.AF_UNIX)
            try:
                found.connect(str(control))
            except OSError:
                found.close()
                if time.monotonic() > end_s:
                    self.kill()
                    raise HarnessError(f"the emulator made no {control} within {_START_LIMIT_S:g} s") from None
                time.sleep(0.02)
                continue
            found.settimeout(_COMMAND_LIMIT_S)
            return found

    def execute(self, command: str, **arguments: Any) -> Any:
        """What the emulator returns for a QMP command; events that come before it are passed over."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            message = self._read()
            if "error" in message:
                raise HarnessError(f"{command}: {message['error'].get('desc')}")
            if "return" in message:
                return message["return"]

    def human(self, command: str) -> str:
        """What the emulator's human monitor answers; snapshots and the user network have no other door in QEMU 7."""
        return str(self.execute("human-monitor-command", **{"command-line": command})).strip()

    def snapshot(self, name: str) -> None:
        """Saves memory and disk inside the disk's file; the guest is paused from here on."""
        self.execute("stop")
        if said := self.human(f"savevm {name}"):
            raise HarnessError(f"savevm: {said}")

    def forwarded_port(self) -> int:
        """The port of 127.0.0.1 that leads to the guest's sshd."""
        said = self.human("info usernet")
        found = re.search(r"TCP\[HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)", said)
        if found is None:
            raise HarnessError(f"no forwarded port: {said}")
        return int(found.group(1))

    def set_link(self, name: str, *, up: bool) -> None:
        """Plugs or pulls the cable of a network device or of a switch's port."""
        self.execute("set_link", name=name, up=up)

    def is_running(self) -> bool:
        """The process is there; the guest in it may be paused or hung."""
        return self.process.poll() is None

    def wait(self, limit_s: float) -> None:
        """Returns when the guest has switched itself off."""
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"the guest is still on after {limit_s:g} s") from None

    def kill(self) -> None:
        """Pulls the plug; nothing that the guest holds in memory is written."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Ends the process and forgets the socket."""
        self.kill()
        self._lines.close()
        self._socket.close()

    def _read(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except TimeoutError:
            raise HarnessError(f"the emulator did not answer within {_COMMAND_LIMIT_S:g} s") from None
        if not line:
            raise HarnessError(f"the emulator hung up: {self._log.read_text()[-2000:]}")
        message: dict[str, Any] = json.loads(line)
        return message

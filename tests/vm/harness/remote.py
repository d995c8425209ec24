"""Commands and files by ssh: one connection that is opened once, and one channel of it for each command (0.2 s)."""

import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.vm.harness.program import HarnessError


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a command left behind in the guest."""

    status: int
    stdout: str
    stderr: str


class Remote:
    """Root's shell in a guest."""

    def __init__(self, *, key: Path, port: int, control: Path) -> None:
        self._control = control
        self._base = [
            *("ssh", "-q", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
            *("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=10"),
            *("-F", "none", "-p", str(port), "-S", str(control)),
        ]
        self._master: subprocess.Popen[bytes] | None = None

    def open(self, limit_s: float, *, alive: Callable[[], bool]) -> None:
        """Returns when the guest's sshd has let us in; tries until then.

        Raises:
            HarnessError: Not within `limit_s`, or `alive` became false.
        """
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s and alive():
            master = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._base, "-M", "-N", "root@127.0.0.1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            while master.poll() is None and time.monotonic() < end_s and alive():
                if self._control.exists():
                    self._master = master
                    return
                time.sleep(0.02)
            master.kill()
            master.wait()
            time.sleep(0.2)
        raise HarnessError(f"no ssh within {limit_s:g} s" if alive() else "the guest ended before it let us in")

    def close(self) -> None:
        """Ends the connection, if it is still there."""
        if self._master is not None:
            self._master.kill()
            self._master.wait()
            self._master = None
        self._control.unlink(missing_ok=True)

    def argv(self, command: str) -> list[str]:
        """Command line that runs `command` in the guest's shell; also for a person to paste."""
        return [*self._base, "root@127.0.0.1", command]

    def outcome(self, command: str, *, limit_s: float = 60.0, stdin: bytes = b"") -> Outcome:
        """Runs a shell command to its end, whatever its status is.

        Raises:
            HarnessError: It took longer than `limit_s`, or the connection broke (ssh's own status 255).
        """
        try:
            done = subprocess.run(self.argv(command), input=stdin, capture_output=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as error:
            said = (error.stdout or b"")[-2000:].decode(errors="replace")
            raise HarnessError(f"not done within {limit_s:g} s in the guest: {command}\n{said}") from None
        stdout, stderr = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        if done.returncode == 255:
            raise HarnessError(f"the connection to the guest broke during: {command}\n{stdout[-1000:]}{stderr[-1000:]}")
        return Outcome(status=done.returncode, stdout=stdout, stderr=stderr)

    def run(self, command: str, *, limit_s: float = 60.0, stdin: bytes = b"") -> str:
        """Standard output of a shell command that must succeed.

        Raises:
            HarnessError: It failed; with both its outputs.
        """
        done = self.outcome(command, limit_s=limit_s, stdin=stdin)
        if done.status:
            said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            raise HarnessError(f"{command!r} ended with {done.status} in the guest:\n{said}")
        return done.stdout

    def spawn(self, command: str) -> "subprocess.Popen[str]":
        """Starts a shell command and returns at once; the caller waits for it or kills it."""
        return subprocess.Popen(
            self.argv(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def put(self, local: Path, remote: str) -> None:
        """Copies a file into the guest, with its mode."""
        name = shlex.quote(remote)
        mode = local.stat().st_mode & 0o777
        self.run(f"cat >{name} && chmod {mode:o} {name}", stdin=local.read_bytes(), limit_s=120)

    def get(self, remote: str, local: Path) -> None:
        """Copies a file out of the guest."""
        argv = self.argv(f"cat {shlex.quote(remote)}")
        with local.open("wb") as file:
            done = subprocess.run(argv, stdout=file, stderr=subprocess.PIPE, timeout=120, check=False)
        if done.returncode:
            raise HarnessError(f"no {remote} in the guest: {done.stderr.decode(errors='replace').strip()}")

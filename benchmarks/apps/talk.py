"""A program in a guest that is spoken to line by line, over the ssh connection that is there already."""

import json
import queue
import subprocess
import threading
from typing import Any

from benchmarks.load import BenchmarkError
from tests.vm.harness.guest import Guest

LIMIT_S = 240.0


class Talk:
    """One such program; ended with its standard input, and when this object is closed."""

    def __init__(self, guest: Guest, command: str) -> None:
        self._command = command
        self._process = subprocess.Popen(
            guest.remote.argv(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, line: str) -> None:
        """Sends a line.

        Raises:
            BenchmarkError: The program has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise BenchmarkError(f"{self._command}: {error}") from error

    def hear(self, limit_s: float = LIMIT_S) -> str:
        """Its next line.

        Raises:
            BenchmarkError: None came in time, or the program has ended.
        """
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise BenchmarkError(f"no word within {limit_s:g} s of {self._command}") from None
        if line is None:
            raise BenchmarkError(f"it has ended: {self._command}")
        return line

    def ask(self, line: str, limit_s: float = LIMIT_S) -> str:
        """What it answers to a line."""
        self.say(line)
        return self.hear(limit_s)

    def ask_json(self, line: str, limit_s: float = LIMIT_S) -> Any:
        """The same, decoded."""
        return json.loads(self.ask(line, limit_s))

    def close(self) -> None:
        """Ends it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._lines.put(line.rstrip("\n"))
        except ValueError:  # closed under us
            pass
        self._lines.put(None)

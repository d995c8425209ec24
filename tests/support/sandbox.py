"""What tests need besides `farside.sandbox.session`: the command line, and a look for leftovers."""

import os
import signal
import sys
from pathlib import Path

from farside.sandbox.control import END_LIMIT_S
from farside.sandbox.layout import read_record
from tests.support.waiting import until


def farside(*arguments: str) -> list[str]:
    """Command line of `farside` with these arguments, by the interpreter that runs the tests."""
    return [sys.executable, "-m", "farside", *arguments]


def processes_naming(text: str) -> list[str]:
    """Command lines of all processes of this machine that contain `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # ended since it was listed
        if text in line:
            found.append(line)
    return found


def kill_agent(state: Path, name: str) -> None:
    """Ends a node agent with SIGKILL and returns when the sandbox has noticed; its tasks run on."""
    pid = read_record(state).agent(name).pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: read_record(state).agent(name).pid != pid, what=f"the end of agent {name}", deadline_s=END_LIMIT_S)

"""What tests need besides `farside.sandbox.session`: the command line, a port, and a look for leftovers."""

import socket
import sys
from pathlib import Path


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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

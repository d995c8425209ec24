"""The supervisor's loop, over a server process that the test plays."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import until

# Of what a server says, silence is heard as one more message; it ends at once, so that no signal comes after the loop.
SUPERVISE = """
import os, sys
from farside.blockdev import fdpass
from farside.blockdev.supervisor import MEMORY, Supervisor

receive = fdpass.receive

def received(end):
    try:
        return receive(end)
    except BlockingIOError:
        return fdpass.Message(op="")

fdpass.receive, sys.executable = received, sys.argv[1]
os._exit(Supervisor({name: os.memfd_create(name) for name in MEMORY}, on_ready=lambda: None).run())
"""


def test_a_server_that_never_stops_talking_holds_up_neither_signals_nor_its_end(tmp_path: Path) -> None:
    server, began = tmp_path / "server", tmp_path / "began"
    server.write_text(f"#!/bin/sh\ntouch {began}\nexec sleep 60\n")
    server.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", SUPERVISE, os.fspath(server)]) as supervisor:
        try:
            until(began.exists, what="the server", deadline_s=30)

            def has_ended() -> bool:
                supervisor.send_signal(signal.SIGTERM)  # the second one ends the server whatever it does
                return supervisor.poll() is not None

            until(has_ended, what="the end", deadline_s=30)
        finally:
            supervisor.kill()

    assert supervisor.returncode == 0

"""The emulator's process and its control socket, against programs that stand for QEMU."""

import json
import sys
from pathlib import Path

import pytest

from tests.vm.harness.emulator import Emulator
from tests.vm.harness.program import HarnessError

# Answers each command by the next line of its script, after QMP's greeting.
FAKE = """
import socket, sys
path, *answers = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(1)
client, _ = listener.accept()
lines = client.makefile("rwb")
for answer in ['{"QMP": {}}', '{"return": {}}', *answers]:
    if answer.startswith('{"return') or answer.startswith('{"error'):
        lines.readline()
    lines.write(answer.encode() + b"\\n")
    lines.flush()
lines.readline()
"""


def emulator(folder: Path, *answers: object) -> Emulator:
    words = [json.dumps(answer) for answer in answers]
    control = folder / "qmp"
    return Emulator([sys.executable, "-c", FAKE, str(control), *words], control=control, log=folder / "log")


def test_an_emulator_that_ends_at_once_says_why(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo machine type does not exist; exit 3"]

    with pytest.raises(HarnessError, match="the emulator ended with 3: machine type does not exist"):
        Emulator(argv, control=tmp_path / "qmp", log=tmp_path / "log")


def test_events_between_a_command_and_its_answer_are_passed_over(tmp_path: Path) -> None:
    found = emulator(tmp_path, {"event": "STOP"}, {"return": {"status": "paused"}})
    try:
        assert found.execute("query-status") == {"status": "paused"}
    finally:
        found.close()


def test_a_refused_command_is_an_error_with_the_emulators_words(tmp_path: Path) -> None:
    found = emulator(tmp_path, {"error": {"class": "GenericError", "desc": "no device nic9"}})
    try:
        with pytest.raises(HarnessError, match="set_link: no device nic9"):
            found.set_link("nic9", up=False)
    finally:
        found.close()


def test_a_snapshot_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    found = emulator(tmp_path, {"return": {}}, {"return": "Error: No space left on device\r\n"})
    try:
        with pytest.raises(HarnessError, match="savevm: Error: No space left on device"):
            found.snapshot("ready")
    finally:
        found.close()


def test_the_forwarded_port_is_read_from_the_human_monitor(tmp_path: Path) -> None:
    table = (
        "Hub -1 (admin):\r\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n"
        "  TCP[HOST_FORWARD]  13       127.0.0.1 39803       10.0.2.15    22     0     0\r\n"
    )
    found = emulator(tmp_path, {"return": table})
    try:
        assert found.forwarded_port() == 39803
    finally:
        found.close()


def test_an_emulator_that_was_killed_is_not_running(tmp_path: Path) -> None:
    found = emulator(tmp_path)
    assert found.is_running()

    found.close()

    assert not found.is_running()

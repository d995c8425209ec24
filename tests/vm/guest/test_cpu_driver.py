"""Parts of CPU cores with cgroup v2, in a service that its group is delegated to."""

import json
import os
import subprocess
import sys
from typing import Any


def in_service(*properties: str) -> dict[str, Any]:
    """What cpu_parts.py prints as a service of systemd."""
    done = subprocess.run(
        ["systemd-run", "--wait", "--pipe", "--collect", "--quiet",
         *(word for one in properties for word in ("-p", one)),
         "-p", f"WorkingDirectory={os.getcwd()}", "-E", f"PYTHONPATH={os.pathsep.join(sys.path)}",
         sys.executable, "-m", "tests.vm.guest.cpu_parts"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_in_a_delegated_group_parts_of_a_core_get_no_more_than_their_share() -> None:
    found = in_service("Delegate=cpu cpuset")

    assert found["limits"] == ["2700 10000", "6300 10000"]
    assert found["bursts"] == ["2700", "6300"]
    small, large = found["got"]
    assert 0 < small < 0.29
    assert small < large < 0.66  # less than 0.63 where the host has not the time to emulate it
    assert found["cores"] == "0"
    assert "cgroup v2" in found["isolation"]
    assert found["resized"]
    assert found["left"] == []

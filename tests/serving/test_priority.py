"""The front goes before others that want its cores, and what it starts does not."""

import json
import os
import subprocess
import sys

import pytest

_PROGRAM = """
import json, os, subprocess, sys
from farside.agent.serving.priority import go_first

def place():
    return [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK]

os.nice(int(sys.argv[1]))
go_first()
go_first()
child = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
print(json.dumps([place(), int(subprocess.run(child, capture_output=True, check=True).stdout)]))
"""


def may_go_first() -> bool:
    """Whether this process may have a lower niceness, which root of a container need not."""
    return subprocess.run([sys.executable, "-c", "import os; os.nice(-1)"], capture_output=True).returncode == 0


def played(nice: int, *before: str) -> object:
    """The program's niceness and policy, and the niceness of its child."""
    command = [*before, sys.executable, "-c", _PROGRAM, str(nice)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) != 0, reason="these tests run with a niceness of their own")
def test_what_goes_first_starts_processes_that_do_not() -> None:
    assert played(0) == [[-10 if may_go_first() else 0, os.SCHED_OTHER], 0]


@pytest.mark.skipif(os.getpriority(os.PRIO_PROCESS, 0) != 0, reason="these tests run with a niceness of their own")
def test_a_place_that_was_set_by_hand_stays() -> None:
    assert played(5) == [[5, os.SCHED_OTHER], 5]
    assert played(0, "chrt", "--batch", "0") == [[0, os.SCHED_BATCH], 0]

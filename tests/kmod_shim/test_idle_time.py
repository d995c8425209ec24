"""A process that computes while nobody else wants to: what the kernel says of it."""

import os
import subprocess
import sys

WORDS = (
    "import os; from farside.kmod_shim.time_slice import take_idle_time; take_idle_time();"
    "print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
)


def test_a_process_may_compute_in_idle_time_alone() -> None:
    told = subprocess.run([sys.executable, "-c", WORDS], check=True, capture_output=True, text=True).stdout

    assert told.split() == [str(os.SCHED_IDLE), "19"]


def test_a_kernel_that_refuses_leaves_the_lowest_priority() -> None:
    refused = f"import os\ndef refuse(*_): raise PermissionError\nos.sched_setscheduler = refuse\n{WORDS}"

    told = subprocess.run([sys.executable, "-c", refused], check=True, capture_output=True, text=True).stdout

    assert told.split()[1] == "19"

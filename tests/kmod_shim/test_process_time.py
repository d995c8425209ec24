"""Processor time of other processes."""

import os
import subprocess
import sys
import time

from farside.kmod_shim.process_time import processor_time_ns, processors_of


def test_a_process_s_time_is_what_it_says_itself() -> None:
    program = "import time\nwhile time.process_time() < 0.05: pass\nprint(time.process_time_ns(), flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        said_ns = int(other.stdout.readline())
        found_ns = processor_time_ns(other.pid)
        assert found_ns is not None
        assert found_ns >= said_ns > 0
        assert processors_of(other.pid) == len(os.sched_getaffinity(0))
        other.communicate("\n")

    assert processor_time_ns(other.pid) is None
    assert processors_of(other.pid) is None


def test_all_threads_of_this_process_are_in_its_time() -> None:
    before_ns = time.process_time_ns()
    found_ns = processor_time_ns(os.getpid())
    assert found_ns is not None
    assert before_ns <= found_ns <= time.process_time_ns()


def test_a_process_of_another_namespace_has_no_number_and_no_time() -> None:
    assert (processor_time_ns(0), processors_of(0)) == (None, None)

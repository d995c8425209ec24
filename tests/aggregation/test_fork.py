"""A member that has forked: its children have no part in its lanes."""

import errno
import os
import signal
import socket
import subprocess
import sys

from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorEventKind, Rule
from tests.aggregation.rig import JOB, make_job
from tests.support.waiting import until

# A member and a child of it, as PyTorch's DataLoader has them; the child lives until its standard input ends.
MEMBER = """
import os, sys
from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Member, Rule
from tests.aggregation.rig import make_job
member = Member(make_job(Rule.SUM), 0)
member.start(0)
member.own(0, 5, 0, 1)
member.attach(0, int(sys.argv[1]), shm=False)
child = os.fork()
if child == 0:
    found = []
    for call in (
        lambda: member.push(0, 5, 1), lambda: member.wait(0, 5, 1, 5), lambda: member.wait_lane(5),
        lambda: member.result(0), lambda: member.own(0, 5, 0, 2),
    ):
        try:
            call()
        except EngineError as error:
            found.append(error.errno)
    member.close()
    del member
    print(os.getpid(), *found, flush=True)
    sys.stdin.read()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_killed_member_is_seen_at_once_though_its_forked_children_live() -> None:
    aggregator = Aggregator(1 << 24)
    aggregator.add_job(JOB, make_job(Rule.SUM))
    aggregator.own(JOB, 0, 5, 1)
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as member:  # fmt: skip
        theirs.close()
        aggregator.attach(JOB, 0, ours.detach(), None)
        assert member.stdout is not None
        child, *told = map(int, member.stdout.readline().split())

        member.send_signal(signal.SIGKILL)
        event = until(aggregator.next_event, what="the lane to end")

        assert event is not None
        assert (event.kind, event.job, event.rank) == (AggregatorEventKind.LANE_ENDED, JOB, 0)
        os.kill(child, 0)
        assert told == [errno.EBADF] * 5
    aggregator.close()


def test_a_member_goes_on_after_it_has_forked() -> None:
    code = MEMBER.replace("sys.stdin.read()", "").replace("Rule.SUM", "Rule.SUM, members=1")
    code += "member.push(0, 5, 1)\nmember.wait(0, 5, 1, 60)\nprint('done')"
    aggregator = Aggregator(1 << 24)
    job = make_job(Rule.SUM, members=1)
    aggregator.add_job(JOB, job)
    aggregator.own(JOB, 0, 5, 1)
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        [sys.executable, "-c", code, str(theirs.fileno())],
        pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True,
    ) as member:  # fmt: skip
        theirs.close()
        aggregator.attach(JOB, 0, ours.detach(), None)
        assert member.stdout is not None
        assert member.stdout.read().split()[-1] == "done"
    aggregator.close()

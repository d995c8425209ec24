"""A member as a process: `... member_process FOLDER ENDPOINT RANK MEMBERS RULE STEPS CHILDREN JOB`.

Prints the process ids of CHILDREN that it forks, as a data loader does. Then a line for each iteration that it has the
results of: its number, and a hash of them. Ends with one line on standard error if it can't go on.

Where there is a file FOLDER/JOB.last, it names the last iteration that members may begin for now.
"""

import hashlib
import os
import signal
import sys
from functools import partial
from pathlib import Path

from farside.errors import FarsideError
from farside.training.member import MemberSession
from tests.aggregation.service import HYPER, TENSORS, push, put_start, source
from tests.support.waiting import until

WAIT_S = 1800.0  # a test on emulated machines may take that long between two words


def main(folder: str, endpoint: str, rank: int, members: int, rule: str, steps: int, children: int, job: str) -> None:
    """Trains to iteration ``steps``."""
    plan = source(Path(folder), [endpoint], rank, members=members, job=job)
    session = MemberSession(plan, rule=rule, tensors=TENSORS)
    session.connect(partial(put_start, session) if session.has_optimizer else None)
    if session.has_optimizer:
        session.member.hyper(0, 1, HYPER)
    print("children", *(_fork() for _child in range(children)), flush=True)
    for iteration in range(session.iteration + 1, steps + 1):
        until(partial(_may_begin, Path(folder, f"{job}.last"), iteration), what="leave to go on", deadline_s=WAIT_S)
        push(session, rank, iteration)
        session.wait(0, len(session.layout.chunks), iteration)
        results = b"".join(bytes(session.member.result(index)) for index in range(len(session.layout.chunks)))
        print(iteration, hashlib.sha256(results).hexdigest(), flush=True)
    session.close()


def _may_begin(last: Path, iteration: int) -> bool:
    return not last.exists() or iteration <= int(last.read_text() or 0)


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


if __name__ == "__main__":
    try:
        folder, endpoint, rank, members, rule, steps, children, job = sys.argv[1:]
        main(folder, endpoint, int(rank), int(members), rule, int(steps), int(children), job)
    except FarsideError as error:
        sys.exit(str(error))

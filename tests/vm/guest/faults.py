"""A borrower that swaps to a donor of another machine by RDMA, while somebody outside makes faults.

    python3 -m tests.vm.guest.faults ADDRESS KEY

A line `fault ...` into the named pipe WORDS begins a row of the table of survival, of that name; the line `end` has all
pages read, and writes the row. Each line is answered on standard output, by itself or with what was wrong.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import until
from tests.vm.guest.far_donor import FOLDER, MIB, plane_of
from tests.vm.guest.load import load
from tests.vm.guest.survival import survived
from tests.vm.guest.swap_plane import LIMIT_S, swap_must
from tests.vm.guest.watch import watched

WORDS = Path("/run/words")
# What is on its way then has waited too long when the machine goes on, and the kernel gives the socket up.
STANDSTILL = "the borrower's own machine stands still for a minute"


def words() -> Iterator[str]:
    """Lines of the pipe, as they come."""
    while True:
        with WORDS.open() as pipe:
            yield from (line.strip() for line in pipe)


def say(text: str) -> None:
    """To who makes the faults."""
    print(text, flush=True)


def main() -> None:
    """As the module says; it never ends by itself."""
    plane = plane_of(sys.argv[1], sys.argv[2], transport="rdma", disk_bytes=128 * MIB)
    plane.start("blockdev")
    until(plane.is_up, what="the donor", deadline_s=LIMIT_S, every_s=0.5)
    swap_must("attach", "--socket", str(plane.admin_socket), "--connections", "1")
    os.mkfifo(WORDS)
    with watched(FOLDER), load(FOLDER, limit_mib=8) as witness:
        witness.tell()
        heard = words()
        say("ready")
        for word in heard:
            try:
                with survived(word, plane, witness, processes=(), may_lose_sockets=word == STANDSTILL):
                    say(word)
                    assert next(heard) == "end"
            except AssertionError as error:
                say(f"failed: {error}")
            else:
                say("judged")


if __name__ == "__main__":
    main()

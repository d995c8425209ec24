"""Aggregators and members that wait long enough for an emulated machine to make a queue pair.

`python3 -m tests.vm.guest.slow_pairs aggregator --config FILE`, or `... member WORDS` as of
tests/aggregation/member_process.py.
"""

import sys

from farside.agent.aggregator import entrance, pairing
from farside.cli import main as command
from farside.errors import FarsideError
from farside.training import queue_pair
from tests.aggregation import member_process

LIMIT_S = 120.0


def main() -> None:
    """Runs what it is asked for."""
    pairing.PAIR_LIMIT_S = LIMIT_S
    entrance.DOOR_LIMIT_S = queue_pair.DIAL_LIMIT_S = 2 * LIMIT_S
    if sys.argv[1] == "aggregator":
        command()
        return
    folder, endpoint, rank, members, rule, steps, children, job = sys.argv[2:]
    try:
        member_process.main(folder, endpoint, int(rank), int(members), rule, int(steps), int(children), job)
    except FarsideError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

"""Our Aggregator, in a process of its own: ``python -m benchmarks.aggregation.aggregator UNIX_SOCKET``.

It says the port of its TCP door first. A lane begins with the job's number and the rank; on the unix socket the
member's region comes along. Orders: ``add`` a job, ``drop`` it, ``plan`` who owns all its chunks and to whom they move,
``link`` it with another Aggregator for that, and say how many have moved (``told``).
"""

import contextlib
import json
import socket
import struct
import sys
import threading
from collections.abc import Mapping
from typing import Any

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, AggregatorEventKind, Chunk, Job, Rule

MEMORY_BYTES = 16 << 30
LANE_HEAD = struct.Struct("<QI")
# Lanes by TCP have codes, as those of `farside aggregator` have.
MEMBER_KEYS = bytes(range(32))
AGGREGATOR_KEYS = MEMBER_KEYS[16:] + MEMBER_KEYS[:16]
AGGREGATORS = 1000  # an Aggregator's number in the place of a rank


def main(path: str) -> None:
    """Serves until standard input ends."""
    aggregator = Aggregator(MEMORY_BYTES)
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen()
    remote = socket.create_server(("127.0.0.1", 0))
    for listener in (local, remote):
        threading.Thread(target=_accept, args=(aggregator, listener), daemon=True).start()
    print(json.dumps({"ready": True, "port": remote.getsockname()[1]}), flush=True)
    for line in sys.stdin:
        try:
            answer = _obey(aggregator, json.loads(line))
        except (EngineError, OSError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _obey(aggregator: Aggregator, order: Mapping[str, Any]) -> dict[str, Any]:
    number: int = order["job"]
    match order["do"]:
        case "add":
            chunks = tuple(Chunk(count) for count in order["chunks"])
            aggregator.add_job(number, Job(order["members"], Rule[order["rule"]], chunks))
        case "drop":
            aggregator.drop_job(number)
        case "plan":
            aggregator.plan(number, 0, order["count"], **order["place"])
        case "link":
            lane = socket.socket(socket.AF_UNIX)
            lane.connect(order["path"])
            lane.sendall(LANE_HEAD.pack(number, AGGREGATORS + order["me"]))
            aggregator.attach_next(number, order["to"], lane.detach())
        case "told":
            told = aggregator.told(number)
            kinds = {"copied": AggregatorEventKind.COPIED, "pushed": AggregatorEventKind.PUSHED}
            return {name: sum(one.count for one in told if one.kind is kind) for name, kind in kinds.items()}
    return {}


def _accept(aggregator: Aggregator, listener: socket.socket) -> None:
    while True:
        lane, _ = listener.accept()
        with lane, contextlib.suppress(EngineError, OSError):
            head, regions, _, _ = socket.recv_fds(lane, LANE_HEAD.size, 1)
            number, rank = LANE_HEAD.unpack(head)
            if rank >= AGGREGATORS:
                aggregator.attach_previous(number, rank - AGGREGATORS, lane.fileno())
            else:
                region, keys = (regions[0], b"") if regions else (None, AGGREGATOR_KEYS)
                aggregator.attach(number, rank, lane.fileno(), region, keys=keys)
            lane.detach()


if __name__ == "__main__":
    main(sys.argv[1])

"""Our Aggregator, in a process of its own: ``python -m benchmarks.aggregation.aggregator UNIX_SOCKET``.

It says the port of its TCP door first. A lane begins with the job's number and the rank; on the unix socket the
member's region comes along. Orders: ``add`` a job, ``drop`` it.
"""

import contextlib
import json
import socket
import struct
import sys
import threading

from farside.errors import EngineError
from farside.kmod_shim.engine.aggregation import Aggregator, Chunk, Job, Rule

MEMORY_BYTES = 16 << 30
LANE_HEAD = struct.Struct("<QI")


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
        order = json.loads(line)
        answer = {}
        try:
            if order["do"] == "add":
                job = Job(order["members"], Rule.SUM, tuple(Chunk(count) for count in order["chunks"]))
                aggregator.add_job(order["job"], job)
                aggregator.own(order["job"], 0, len(job.chunks), 1)
            else:
                aggregator.drop_job(order["job"])
        except EngineError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


def _accept(aggregator: Aggregator, listener: socket.socket) -> None:
    while True:
        lane, _ = listener.accept()
        with lane, contextlib.suppress(EngineError, OSError):
            head, regions, _, _ = socket.recv_fds(lane, LANE_HEAD.size, 1)
            number, rank = LANE_HEAD.unpack(head)
            aggregator.attach(number, rank, lane.fileno(), regions[0] if regions else None)
            lane.detach()


if __name__ == "__main__":
    main(sys.argv[1])

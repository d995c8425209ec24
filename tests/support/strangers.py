"""Strangers at a donor's door, who have no key: `python -m tests.support.strangers ADDRESS PORT COUNT SOURCE...`

Opens COUNT connections from the SOURCE addresses in turn, as fast as the donor's machine takes them, and holds them.
A third says nothing, a third sends half a frame and stalls, a third sends noise. Prints a line when all are open, and
ends when its standard input does.
"""

import random
import resource
import socket
import struct
import sys
from contextlib import suppress

NOISE_BYTES = 200
BEGUN = struct.pack("<IHHI", 200, 1, 1, 0) + bytes(50)  # a HELLO of which the rest never comes


def open_all(address: str, port: int, count: int, sources: list[str]) -> list[socket.socket]:
    """The connections, or what became of them: the donor may have closed some by now."""
    rng = random.Random(1)
    said = [b"", BEGUN, rng.randbytes(NOISE_BYTES)]
    opened = []
    for number in range(count):
        sock = socket.socket()
        sock.bind((sources[number % len(sources)], 0))
        sock.connect((address, port))
        with suppress(OSError):  # closed again by now
            sock.sendall(said[number % len(said)])
        opened.append(sock)
    return opened


def main(address: str, port: int, count: int, sources: list[str]) -> None:
    """The process itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = open_all(address, port, count, sources)
    print(len(opened), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])

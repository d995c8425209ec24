"""Strangers at a donor's door, who have no key: `python -m tests.support.strangers ADDRESS PORT COUNT HELLO SOURCE...`

Opens COUNT connections from the SOURCE addresses in turn, one after the other, as fast as the donor's machine takes
them, and holds them. In turn they say nothing, send half a frame and stall, and send noise. HELLO is a borrower's first
message as it was seen on the wire, in hex; unless it is empty, others send a whole first message under a key that the
donor does not have, and others again repeat HELLO with a wrong answer behind it: a fifth does each then. Prints a line
when all are open, and ends when its standard input does.
"""

import random
import resource
import socket
import struct
import sys
from contextlib import suppress

from farside.daemon.control.protocol import Connection, Output, Side

NOISE_BYTES = 200
BEGUN = struct.pack("<IHHI", 200, 1, 1, 0) + bytes(50)  # a HELLO of which the rest never comes


def wrong_messages(rng: random.Random) -> tuple[bytes, bytes]:
    """Both messages of a borrower under a key of its own, whose donor had that key."""
    borrower, donor = (
        Connection(side=side, keys=(bytes(32),), nonce=rng.randbytes(32), node="stranger")
        for side in (Side.BORROWER, Side.DONOR)
    )
    first = borrower.start()
    donor.receive(first)
    reply = donor.next_event()
    assert isinstance(reply, Output)
    borrower.receive(reply.data)
    answer = borrower.next_event()
    assert isinstance(answer, Output)
    return first, answer.data


def open_all(address: str, port: int, count: int, seen: bytes, sources: list[str]) -> list[socket.socket]:
    """The connections, or what became of them: the donor may have closed some by now."""
    rng = random.Random(1)
    said = [b"", BEGUN, rng.randbytes(NOISE_BYTES)]
    if seen:
        first, answer = wrong_messages(rng)
        said += [first, seen + answer]
    opened = []
    for number in range(count):
        sock = socket.socket()
        sock.bind((sources[number % len(sources)], 0))
        sock.connect((address, port))
        with suppress(OSError):  # closed again by now
            sock.sendall(said[number % len(said)])
        opened.append(sock)
    return opened


def main(address: str, port: int, count: int, seen: bytes, sources: list[str]) -> None:
    """The process itself."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = open_all(address, port, count, seen, sources)
    print(len(opened), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), bytes.fromhex(sys.argv[4]), sys.argv[5:])

"""Fuzz target: the NBD negotiation. `python -m tests.fuzz.fuzz_handshake CORPUS -max_total_time=5`.

Any bytes give a Step, never an exception; what is sent is whole replies; and nothing large is asked for.
"""

import struct
import sys

import atheris
from atheris.import_hook import instrument_imports

with instrument_imports(include=["farside"], enable_loader_override=False):
    from farside.blockdev.client.handshake import OPTION_MAX_BYTES, REPLY_MAGIC, Export, Handshake, Next, Step, TlsRule

EXPORT = Export(name="swap0", description="remote memory", size_bytes=64 << 20)
REPLY = struct.Struct(">QIII")


def check_replies(data: bytes) -> None:
    """Option replies, whole, one behind the other."""
    while data:
        magic, _, _, length = REPLY.unpack_from(data)
        assert magic == REPLY_MAGIC
        assert REPLY.size + length <= len(data)
        data = data[REPLY.size + length :]


def answered(shake: Handshake, *, is_refused: bool) -> Step:
    """What the listener does when a client asks for the export."""
    return shake.refuse("no worker is free") if is_refused else shake.accept()


def negotiate(data: bytes) -> None:
    """One connection: byte 0 says whether the export is refused, and what of TLS; the rest is what the client sends."""
    first = data[0] if data else 0
    rule, is_refused, is_secure = list(TlsRule)[(first >> 1) % len(TlsRule)], bool(first & 1), False
    shake = Handshake(EXPORT, rule)
    rest, step = data[1:], Step()
    while step.next is Next.READ and len(rest) >= shake.needed():
        assert 0 < shake.needed() <= OPTION_MAX_BYTES
        part, rest = rest[: shake.needed()], rest[shake.needed() :]
        step = shake.receive(part)
        check_replies(step.send)
        if step.next is Next.START_TLS:
            assert rule is not TlsRule.NONE
            assert not is_secure
            shake.secured()
            step, is_secure = Step(), True
        if step.next is Next.ASKED:
            assert is_secure or rule is not TlsRule.REQUIRED
            step = answered(shake, is_refused=is_refused)
            assert is_refused or step.next is Next.TRANSMIT
            if step.next is Next.READ:
                check_replies(step.send)


if __name__ == "__main__":
    atheris.Setup(sys.argv, negotiate)
    atheris.Fuzz()

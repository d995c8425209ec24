"""libnbd's client, by its Python binding, against our server."""

import textwrap

import pytest

from tests.interop.server import MIB, Server
from tests.support.programs import nbdsh, nbdsh_unconnected


def test_size_and_flags_are_what_a_swap_client_needs(server: Server) -> None:
    printed = nbdsh(
        server.uri,
        textwrap.dedent("""
        print(h.get_size())
        print(h.is_read_only(), h.is_rotational())
        print(h.can_flush(), h.can_fua(), h.can_trim(), h.can_zero(), h.can_multi_conn())
        """),
    )

    lines = printed.split("\n")
    assert lines[0] == str(server.size_bytes)
    assert lines[1] == "False False"
    assert lines[2] == "True True True True True"


def test_the_block_size_is_a_page(server: Server) -> None:
    if server.is_reference:
        pytest.skip("nbdkit serves single bytes")

    sizes = "h.get_block_size(nbd.SIZE_MINIMUM), h.get_block_size(nbd.SIZE_PREFERRED)"
    smallest, preferred = nbdsh(server.uri, f"print({sizes})").split()

    assert int(smallest) == 4096
    assert int(preferred) % 4096 == 0


def test_what_is_written_is_read_back(server: Server) -> None:
    nbdsh(
        server.uri,
        textwrap.dedent("""
        import os
        for offset, length in ((0, 4096), (8192, 131072), (2097152 - 4096, 8192), (16 * 1048576 - 65536, 131072)):
            data = os.urandom(length)
            h.pwrite(data, offset)
            assert h.pread(length, offset) == data, offset
        """),
    )


def test_a_large_request_crosses_many_granules(server: Server) -> None:
    nbdsh(
        server.uri,
        textwrap.dedent("""
        import os
        h.set_strict_mode(0)
        data = os.urandom(1048576) * 32
        h.pwrite(data, 1048576)
        assert h.pread(len(data), 1048576) == data
        """),
    )


def test_force_unit_access_and_flush_succeed(server: Server) -> None:
    nbdsh(
        server.uri,
        textwrap.dedent("""
        h.pwrite(b"x" * 4096, 40960, nbd.CMD_FLAG_FUA)
        h.flush()
        assert h.pread(4096, 40960) == b"x" * 4096
        """),
    )


def test_trimmed_and_zeroed_ranges_read_as_zeros(server: Server) -> None:
    nbdsh(
        server.uri,
        textwrap.dedent("""
        h.pwrite(b"t" * 4194304, 0)
        h.trim(2097152, 0)
        assert h.pread(2097152, 0) == bytes(2097152)
        assert h.pread(4096, 2097152) == b"t" * 4096
        h.zero(1048576, 2097152)
        assert h.pread(1048576, 2097152) == bytes(1048576)
        h.zero(4096, 3145728, nbd.CMD_FLAG_NO_HOLE)
        assert h.pread(8192, 3145728) == bytes(4096) + b"t" * 4096
        """),
    )


ERRNO_OF = """
import errno
h.set_strict_mode(0)
def errno_of(call, *args):
    try:
        call(*args)
    except nbd.Error as ex:
        return errno.errorcode[ex.errnum]
    return "none"
"""


def test_a_read_past_the_end_is_einval(server: Server) -> None:
    printed = nbdsh(
        server.uri,
        ERRNO_OF
        + textwrap.dedent("""
        print(errno_of(h.pread, 4096, h.get_size()))
        print(errno_of(h.pread, 8192, h.get_size() - 4096))
        assert len(h.pread(4096, 0)) == 4096
        """),
    )

    assert printed.split() == ["EINVAL", "EINVAL"]


def test_a_write_past_the_end_is_enospc(server: Server) -> None:
    printed = nbdsh(
        server.uri,
        ERRNO_OF
        + textwrap.dedent("""
        print(errno_of(h.pwrite, bytes(4096), h.get_size()))
        print(errno_of(h.pwrite, bytes(8192), h.get_size() - 4096))
        print(errno_of(h.zero, 8192, h.get_size() - 4096))
        assert len(h.pread(4096, 0)) == 4096
        """),
    )

    assert printed.split() == ["ENOSPC", "ENOSPC", "ENOSPC"]


def test_a_trim_past_the_end_is_refused_and_the_connection_lives(server: Server) -> None:
    printed = nbdsh(
        server.uri,
        ERRNO_OF
        + textwrap.dedent("""
        print(errno_of(h.trim, 8192, h.get_size() - 4096))
        h.pwrite(b"a" * 4096, 0)
        assert h.pread(4096, 0) == b"a" * 4096
        """),
    )

    assert printed.split()[0] in {"EINVAL", "ENOSPC"}


def test_an_unknown_command_flag_is_einval(server: Server) -> None:
    printed = nbdsh(
        server.uri,
        ERRNO_OF
        + textwrap.dedent("""
        print(errno_of(h.pread, 4096, 0, 1 << 12))
        print(errno_of(h.pwrite, bytes(4096), 0, 1 << 12))
        assert len(h.pread(4096, 0)) == 4096
        """),
    )

    assert printed.split() == ["EINVAL", "EINVAL"]


def test_the_export_name_path_of_the_handshake_works(server: Server) -> None:
    # Without "structured replies" and the modern GO option: what old clients do (EXPORT_NAME).
    nbdsh_unconnected(
        textwrap.dedent(f"""
        h.set_handshake_flags(nbd.HANDSHAKE_FLAG_FIXED_NEWSTYLE)
        h.set_request_structured_replies(False)
        h.connect_uri({server.uri!r})
        assert h.get_size() == {server.size_bytes}
        h.pwrite(b"n" * 4096, 4096)
        assert h.pread(4096, 4096) == b"n" * 4096
        """)
    )


def test_options_can_be_asked_one_by_one(server: Server) -> None:
    printed = nbdsh_unconnected(
        textwrap.dedent(f"""
        h.set_opt_mode(True)
        h.connect_uri({server.uri!r})
        names = []
        h.opt_list(lambda name, description: names.append(name))
        h.set_export_name(names[0] if names else "")
        h.opt_info()
        print(h.get_size(), h.get_block_size(nbd.SIZE_MAXIMUM))
        h.opt_go()
        h.pread(4096, 0)
        """)
    )

    size, largest = printed.split()
    assert int(size) == server.size_bytes
    assert int(largest) in {0, 32 * MIB} or int(largest) >= 32 * MIB


def test_an_aborted_negotiation_leaves_the_server_well(server: Server) -> None:
    nbdsh_unconnected(
        textwrap.dedent(f"""
        h.set_opt_mode(True)
        h.connect_uri({server.uri!r})
        h.opt_abort()
        """)
    )

    assert nbdsh(server.uri, "print(h.get_size())").strip() == str(server.size_bytes)


def test_a_client_that_vanishes_does_not_disturb_the_next(server: Server) -> None:
    if server.is_reference:
        pytest.skip("nbdkit 1.32 itself fails an assertion here (connections.c, raw_send_socket)")

    nbdsh_unconnected(
        textwrap.dedent(f"""
        import os, nbd
        for i in range(20):
            c = nbd.NBD()
            c.connect_uri({server.uri!r})
            buf = nbd.Buffer(1048576)
            for j in range(8):
                c.aio_pread(buf, j * 1048576)
            del c
        """)
    )

    nbdsh(server.uri, "h.pwrite(b'v' * 4096, 0); assert h.pread(4096, 0) == b'v' * 4096")


# Eight connections, each with 64 requests in flight over an area of its own, every read checked against a copy in
# memory (the idea is tests/aio-parallel.c of libnbd). At the end another connection reads everything back.
PARALLEL = """
import random, select, nbd
AREA, BLOCK, DEPTH, ROUNDS, CONNS = 8 * 1048576, 65536, 64, 800, 8
shadow = [bytearray(AREA) for _ in range(CONNS)]
handles = []
for i in range(CONNS):
    c = nbd.NBD()
    c.connect_uri(URI)
    handles.append(c)
    c.zero(AREA, i * AREA)

def one(i):
    c, rng = handles[i], random.Random(i)
    flying = {}
    left = ROUNDS
    while left or flying:
        busy = {block for block, _, _, _ in flying.values()}
        while left and len(flying) < DEPTH:
            block = rng.randrange(AREA // BLOCK)
            if block in busy:
                break
            busy.add(block)
            left -= 1
            at = block * BLOCK
            if rng.random() < 0.5:
                data = rng.randbytes(BLOCK)
                buf = nbd.Buffer.from_bytearray(bytearray(data))
                flying[c.aio_pwrite(buf, i * AREA + at)] = (block, "w", buf, data)
            else:
                buf = nbd.Buffer(BLOCK)
                flying[c.aio_pread(buf, i * AREA + at)] = (block, "r", buf, None)
        c.poll(100)
        for cookie in [k for k in flying if c.aio_command_completed(k)]:
            block, kind, buf, data = flying.pop(cookie)
            at = block * BLOCK
            if kind == "w":
                shadow[i][at:at + BLOCK] = data
            else:
                assert buf.to_bytearray() == shadow[i][at:at + BLOCK], (i, block)

import threading
wrong = []
def guarded(i):
    try:
        one(i)
    except BaseException as ex:
        wrong.append(repr(ex))
threads = [threading.Thread(target=guarded, args=(i,)) for i in range(CONNS)]
[t.start() for t in threads]
[t.join() for t in threads]
assert not wrong, wrong
for i in range(CONNS):
    other = handles[(i + 1) % CONNS]
    for at in range(0, AREA, 1048576):
        assert other.pread(1048576, i * AREA + at) == shadow[i][at:at + 1048576], (i, at)
"""


def test_eight_connections_with_64_requests_each_agree_with_a_shadow_copy(server: Server) -> None:
    nbdsh_unconnected(f"URI = {server.uri!r}\n" + PARALLEL)

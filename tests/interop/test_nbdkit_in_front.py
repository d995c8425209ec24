"""nbdkit's nbd plugin as our client, with its filters in between: what a client sees is then nbdkit's retelling."""

import random
import textwrap
from pathlib import Path

from tests.interop.server import MIB, Server
from tests.support.programs import need, run


def through_nbdkit(server: Server, filters: list[str], parameters: list[str], script: str) -> str:
    """Output of a libnbd script that reaches our server through nbdkit with these filters."""
    need("nbdkit", "nbdinfo")
    names = [f"--filter={name}" for name in filters]
    shell = f"/usr/bin/python3 -m nbd -u \"$uri\" -c '{textwrap.dedent(script)}'"
    return run(["nbdkit", "-U", "-", *names, "nbd", f"uri={server.uri}", *parameters, "--run", shell])


def test_the_plugin_passes_everything_through(server: Server) -> None:
    through_nbdkit(
        server,
        [],
        [],
        """
        h.pwrite(b"p" * 65536, 4096)
        h.flush()
        assert h.pread(65536, 4096) == b"p" * 65536
        h.trim(4096, 4096)
        h.zero(4096, 8192)
        assert h.pread(8192, 4096) == bytes(8192)
        """,
    )


def test_four_connections_copied_through_the_plugin_agree(server: Server, tmp_path: Path) -> None:
    need("nbdkit", "nbdcopy")
    data = tmp_path / "data"
    data.write_bytes(random.Random(4).randbytes(8 * MIB))
    copy = f"nbdcopy --connections=4 {data} $uri && nbdcopy --connections=4 $uri {tmp_path / 'back'}"

    run(["nbdkit", "-U", "-", "nbd", f"uri={server.uri}", "--run", copy])

    with (tmp_path / "back").open("rb") as back:
        assert back.read(8 * MIB) == data.read_bytes()


def test_slow_requests_stay_right(server: Server) -> None:
    through_nbdkit(
        server,
        ["delay"],
        ["rdelay=20ms", "wdelay=20ms"],
        """
        pending = []
        for i in range(32):
            buf = nbd.Buffer.from_bytearray(bytearray(bytes([i + 1]) * 4096))
            pending.append((h.aio_pwrite(buf, i * 4096), buf))
        while pending:
            h.poll(1000)
            pending = [(c, b) for c, b in pending if not h.aio_command_completed(c)]
        for i in range(32):
            assert h.pread(4096, i * 4096) == bytes([i + 1]) * 4096, i
        """,
    )


def test_injected_errors_reach_the_client_and_data_written_before_stays(server: Server) -> None:
    printed = through_nbdkit(
        server,
        ["error"],
        ["error-pread=EIO", "error-pread-rate=50%"],
        """
        h.pwrite(b"e" * 4096, 0)
        good = bad = 0
        for _ in range(200):
            try:
                assert h.pread(4096, 0) == b"e" * 4096
                good += 1
            except nbd.Error:
                bad += 1
        print(good > 0 and bad > 0)
        """,
    )

    assert printed.strip() == "True"

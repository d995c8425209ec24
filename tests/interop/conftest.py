"""Where the interop tests' server comes from.

One sandbox for the whole folder. With FARSIDE_INTEROP_PEER=nbdkit the same tests are held against nbdkit's memory
plugin instead: a test that fails there is itself wrong.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farside.sandbox.session import open_sandbox
from tests.interop.server import MIB, Server
from tests.support.ports import free_port
from tests.support.programs import need
from tests.support.waiting import until

SIZE_BYTES = 256 * MIB


@pytest.fixture(scope="package", params=["shm", "tcp"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server on a unix socket and a TCP port, used by all interop tests one after the other."""
    folder = tmp_path_factory.mktemp("interop")
    if os.environ.get("FARSIDE_INTEROP_PEER") == "nbdkit":
        if request.param == "tcp":
            pytest.skip("nbdkit has no donors, hence no second transport")
        with _nbdkit(folder) as found:
            yield found
    else:
        with _sandbox(folder, request.param) as found:
            yield found


@contextmanager
def _nbdkit(folder: Path) -> Iterator[Server]:
    # nbdkit listens in one place only; the second place is a second nbdkit that forwards to the first.
    need("nbdkit")
    path, port = folder / "s", free_port()
    with ExitStack() as stack:
        for argv in (
            ["nbdkit", "-f", "-U", str(path), "memory", str(SIZE_BYTES)],
            ["nbdkit", "-f", "-i", "127.0.0.1", "-p", str(port), "nbd", f"socket={path}", "shared=true"],
        ):
            child = stack.enter_context(subprocess.Popen(argv))
            stack.callback(child.terminate)
            until(path.exists, what="nbdkit's socket")
        until(lambda: _answers(port), what="nbdkit's port")
        yield Server(socket=str(path), tcp_host="127.0.0.1", tcp_port=port, size_bytes=SIZE_BYTES, is_reference=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _sandbox(folder: Path, transport: str) -> Iterator[Server]:
    path, port = folder / "s", free_port()
    arguments = ["--donors", "3", "--donor-memory", "256MiB", "--size", f"{SIZE_BYTES // MIB}MiB"]
    arguments += ["--transport", transport, "--listen", f"unix:{path}", "--listen", f"tcp:127.0.0.1:{port}"]
    with open_sandbox(arguments, state=folder / "state"):
        yield Server(socket=str(path), tcp_host="127.0.0.1", tcp_port=port, size_bytes=SIZE_BYTES)

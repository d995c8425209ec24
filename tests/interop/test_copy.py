"""Whole device copies by nbdcopy, with several connections and many requests at once."""

from pathlib import Path

from tests.interop.server import MIB, Server
from tests.support.programs import need, run

PATTERN = ["nbdkit", "--exit-with-parent", "pattern", str(128 * MIB)]


def test_a_pattern_copied_in_by_four_connections_comes_back_the_same(server: Server, tmp_path: Path) -> None:
    need("nbdcopy", "nbdkit", "qemu-img")

    run(["nbdcopy", "--connections=4", "--requests=64", "--", "[", *PATTERN, "]", server.uri])

    back = tmp_path / "back"
    run(["nbdcopy", "--connections=4", "--requests=64", server.uri, str(back)])
    with back.open("r+b") as file:
        file.truncate(128 * MIB)
    compare = f"qemu-img compare -f raw -F raw {back} $uri"
    assert "identical" in run(["nbdkit", "-U", "-", *PATTERN[2:], "--run", compare])


def test_a_sparse_file_copied_over_old_content_leaves_zeros_in_its_holes(server: Server, tmp_path: Path) -> None:
    need("nbdcopy", "nbdkit")
    run(["nbdcopy", "--", "[", *PATTERN, "]", server.uri])
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(64 * MIB)
        file.seek(10 * MIB)
        file.write(b"island" * 1000)

    run(["nbdcopy", str(sparse), server.uri])

    back = tmp_path / "back"
    run(["nbdcopy", server.uri, str(back)])
    with back.open("rb") as file:
        assert file.read(64 * MIB) == sparse.read_bytes()

"""A borrower that has another key than the donors: refused and counted, and nobody else notices."""

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.errors import PeerError
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.programs import nbdsh
from tests.support.second_borrower import DONORS, second_borrower
from tests.support.waiting import until


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """Two donors and a borrower that has their key."""
    with open_sandbox(DONORS, state=tmp_path_factory.mktemp("key") / "state") as session:
        yield session


@pytest.fixture
def stranger(sandbox: Session, tmp_path: Path) -> Iterator[Path]:
    """Admin socket of a borrower with another key."""
    key = tmp_path / "other.key"
    key.touch(mode=0o600)
    key.write_text(secrets.token_hex(32) + "\n")
    argv = second_borrower(sandbox, tmp_path, {"key_file": str(key)})
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        yield tmp_path / "own" / "admin.sock"
        process.terminate()


@pytest.mark.long
def test_a_wrong_key_is_refused_and_counted_and_the_right_one_still_served(sandbox: Session, stranger: Path) -> None:
    def told() -> dict[str, Any]:
        try:
            status: dict[str, Any] = admin.call(stranger, "status")
        except PeerError:
            return {}
        return status

    def refusals() -> int:
        return int(control.donor_status(sandbox.state, "d1")["counters"]["refused"])

    until(lambda: refusals() > 0, what="the donor to refuse it", deadline_s=20)
    until(lambda: any(donor["reason"] for donor in told().get("donors", ())), what="a reason", deadline_s=20)

    assert all(donor["state"] != "up" for donor in told()["donors"])
    nbdsh(sandbox.uri, "h.pwrite(b'k' * 4096, 0); assert h.pread(4096, 0) == b'k' * 4096")
    donors = control.blockdev_status(sandbox.state)["donors"]
    assert [donor["state"] for donor in donors] == ["up", "up"]

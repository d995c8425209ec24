"""`farside doctor` on donors, the key, and settings that this machine can't meet."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farside.kmod_shim.engine.binding import features
from tests.daemon.test_process import daemon, status, write_config
from tests.support.programs import outcome
from tests.support.sandbox import farside
from tests.support.waiting import until


@pytest.fixture
def donor(tmp_path: Path) -> Iterator[Path]:
    """A running donor's folder, with its key."""
    folder = tmp_path / "donor"
    folder.mkdir()
    with daemon(write_config(folder)):
        until(lambda: status(folder), what="the donor")
        yield folder


def examined(folder: Path, **settings: str) -> dict[str, Any]:
    """What the doctor says of a borrower with these settings, by the check's name; of donors the last."""
    (folder / "peers.toml").write_text(f'[[donor]]\nnode = "d1"\ncontrol = "unix:{folder}/donor/donor.sock"\n')
    values = {
        "slab_bytes": "2MiB",
        "size_bytes": "64MiB",
        "disk_path": str(folder / "disk"),
        "peers_file": str(folder / "peers.toml"),
        "key_file": str(folder / "donor/key"),
        "admin_socket": str(folder / "none.sock"),
    } | settings
    config = folder / "blockdev.toml"
    config.write_text("".join(f"{name} = {value!r}\n" for name, value in values.items()))
    done = outcome(farside("doctor", "--config", str(config), "--json"))
    return {check["name"]: check for check in json.loads(done.stdout)}


def test_a_donor_that_answers_is_told(tmp_path: Path, donor: Path) -> None:
    check = examined(tmp_path)["donor"]

    assert check["outcome"] == "ok"
    assert "answers, and knows our key" in check["found"]


def test_a_wrong_key_is_one_line_with_the_way_out(tmp_path: Path, donor: Path) -> None:
    key = tmp_path / "other"
    key.write_text(secrets.token_hex(32))
    key.chmod(0o600)

    check = examined(tmp_path, key_file=str(key))["donor"]

    assert check["outcome"] == "failed"
    assert "knows none of our keys" in check["found"]
    assert "copy" in check["advice"]


def test_slabs_of_another_size_are_told(tmp_path: Path, donor: Path) -> None:
    check = examined(tmp_path, slab_bytes="4MiB")["donor"]

    assert check["outcome"] == "failed"
    assert "has slabs of 2 MiB, ours have 4 MiB" in check["found"]


def test_a_donor_that_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "donor").mkdir()
    (tmp_path / "donor/key").write_text(secrets.token_hex(32))
    (tmp_path / "donor/key").chmod(0o600)

    check = examined(tmp_path)["donor"]

    assert check["outcome"] == "warning"
    assert "No such file" in check["found"]
    assert "is `farside daemon` running there" in check["advice"]


def test_rdma_or_nothing_without_a_device_fails(tmp_path: Path) -> None:
    if Path("/sys/class/infiniband").exists() and list(Path("/sys/class/infiniband").iterdir()):
        pytest.skip("this machine has an RDMA device")
    (tmp_path / "donor").mkdir()

    check = examined(tmp_path, transport="rdma")["transport"]

    assert check["outcome"] == "failed"
    assert "no RDMA device" in check["found"]


def test_a_file_of_tls_that_a_device_would_refuse_is_a_failure(tmp_path: Path) -> None:
    """[M11]"""
    if "tls" not in features():
        pytest.skip("the engine was built without GnuTLS (Debian: libgnutls28-dev)")
    users = tmp_path / "users"
    users.write_text(f"n1:{secrets.token_hex(32)}\n")
    (tmp_path / "donor").mkdir()

    users.chmod(0o644)
    readable = examined(tmp_path, tls_psk_file=str(users))["nbd tls"]
    users.chmod(0o600)
    sound = examined(tmp_path, tls_psk_file=str(users))["nbd tls"]

    assert (readable["outcome"], sound["outcome"]) == ("failed", "ok")
    assert f"chmod 0600 {users}" in readable["found"] + readable["advice"]
    assert sound["found"] == str(users)
    assert "nbd tls" not in examined(tmp_path), "nobody asked for it"

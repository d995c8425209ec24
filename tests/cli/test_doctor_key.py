"""`farside doctor` on the key file: what the programs would refuse is a failure here."""

import os
import secrets
from pathlib import Path

import pytest

from farside.cli.doctor.key import key_check, key_checks
from farside.kmod_shim.preflight import Outcome


def key_file(tmp_path: Path, content: bytes) -> Path:
    """A key file of that content, with the right mode."""
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.mark.parametrize("content", [b"", b"# none yet\n", os.urandom(200), b"\xff\xfe\0", b"a" * 5000])
def test_a_file_without_keys_fails_with_the_way_out(tmp_path: Path, content: bytes) -> None:
    path = key_file(tmp_path, content)

    check = key_check(path)

    assert check.outcome is Outcome.FAILED
    assert str(path) in check.found
    assert "copy it from a node that has it" in check.advice


def test_a_key_is_well(tmp_path: Path) -> None:
    path = key_file(tmp_path, secrets.token_hex(32).encode())

    assert (key_check(path).outcome, key_check(path).found) == (Outcome.OK, str(path))


def test_a_key_that_is_missing_fails_with_the_command_that_makes_it(tmp_path: Path) -> None:
    check = key_check(tmp_path / "key")

    assert check.outcome is Outcome.FAILED
    assert check.advice.startswith(f"farside keygen {tmp_path}/key")


def test_a_key_that_only_root_may_read_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = key_file(tmp_path, secrets.token_hex(32).encode())
    monkeypatch.setattr(os, "access", lambda *_: False)

    assert key_check(path).outcome is Outcome.WARNING


def test_a_machine_without_settings_lacks_no_key() -> None:
    assert [check.outcome for check in key_checks(())] == [Outcome.WARNING]

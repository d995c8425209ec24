"""The key file: what is accepted, and that everything else is one clear line."""

import base64
import errno
import os
from pathlib import Path
from unittest.mock import patch

import pytest

from farside.daemon.control.keys import KeyRing, parse_keys, read_keys
from farside.errors import ConfigError

A, B = bytes(range(32)), b"\xff" * 32


def write(path: Path, text: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


def test_hex_and_base64_keys_are_read_in_their_order(tmp_path: Path) -> None:
    text = b"# old key goes on Friday\n" + B.hex().encode() + b"\n\n" + base64.b64encode(A) + b"\n"

    assert read_keys(write(tmp_path / "key", text)) == (B, A)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "key", A.hex().encode(), mode)

    with pytest.raises(ConfigError, match="others may use it"):
        read_keys(path)


@pytest.mark.parametrize(
    "text",
    [b"", b"# nothing\n", b"abc", A.hex().encode()[:-2], A.hex().encode() + b"00", b"zz" * 32, b"\xff\xfe" * 32],
)
def test_what_is_not_a_key_is_refused_with_its_place(text: bytes) -> None:
    with pytest.raises(ConfigError, match="key file /k"):
        parse_keys(text, "/k")


def test_three_keys_or_one_twice_are_refused() -> None:
    line = A.hex().encode() + b"\n"

    with pytest.raises(ConfigError, match="twice"):
        parse_keys(line * 2, "/k")
    with pytest.raises(ConfigError, match="holds 3 keys"):
        parse_keys(line * 3, "/k")


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="farside keygen"):
        read_keys(tmp_path / "none")


def test_a_fifo_in_its_place_does_not_hang_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "key", 0o600)

    with pytest.raises(ConfigError, match="not a regular file"):
        read_keys(tmp_path / "key")


def test_no_error_shows_a_key() -> None:
    secret = A.hex()[:-1] + "x"

    with pytest.raises(ConfigError) as caught:
        parse_keys(secret.encode(), "/k")

    assert secret[:16] not in str(caught.value)


def test_a_changed_file_that_was_refused_is_taken_once_its_mode_is_mended(tmp_path: Path) -> None:
    path = write(tmp_path / "key", A.hex().encode())
    ring = KeyRing(path)
    write(tmp_path / "new", f"{B.hex()}\n{A.hex()}\n".encode(), 0o644).replace(path)
    before = ring.current()

    path.chmod(0o600)

    assert (before, ring.current()) == ((A,), (B, A))


def test_a_changed_file_that_its_disk_does_not_give_leaves_the_keys_as_they_were(tmp_path: Path) -> None:
    """It was raised where a stranger's time was over, and ended the donor."""
    path = write(tmp_path / "key", A.hex().encode())
    ring = KeyRing(path)
    write(path, f"{B.hex()}\n{A.hex()}\n".encode())

    with patch.object(os, "read", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))):
        before = ring.current()

    assert (before, ring.current()) == ((A,), (B, A))

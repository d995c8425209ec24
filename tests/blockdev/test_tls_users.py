"""The file of pre-shared keys, and the files of TLS as they change."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from farside.blockdev.client import tls_keys as subject
from farside.blockdev.client.tls_keys import TlsKeys
from farside.blockdev.client.tls_users import parse_users, read_users
from farside.config import BlockdevConfig
from farside.errors import ConfigError
from farside.kmod_shim.engine.binding import features
from farside.kmod_shim.engine.tls import Tls
from tests.support.certificates import SERVER, Authority
from tests.support.programs import need, run

KEY = "ab" * 32

has_tls = pytest.mark.skipif("tls" not in features(), reason="the engine was built without GnuTLS (libgnutls28-dev)")


def test_each_line_is_a_user_and_a_key() -> None:
    told = parse_users(f"n1:{KEY}\n\nwith:colon:{'0F' * 16}\r\n".encode(), "FILE")

    assert told == {b"n1": bytes.fromhex(KEY), b"with:colon": b"\x0f" * 16}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "FILE: holds 0 keys, needs 1 to 1024"),
        ("n1", "FILE:1: not USER:HEX"),
        (f":{KEY}", "FILE:1: not USER:HEX"),
        (f"{'x' * 129}:{KEY}", "FILE:1: not USER:HEX"),
        (f"n1:{KEY}\nn2:{KEY[:-1]}", "FILE:2: the key is not 16 to 64 bytes in hex"),
        (f"n1:{KEY[:30]}", "FILE:1: the key is not 16 to 64 bytes in hex"),
        (f"n1:{'ab' * 65}", "FILE:1: the key is not 16 to 64 bytes in hex"),
        (f"n1:{KEY[:-2]}zz", "FILE:1: the key is not 16 to 64 bytes in hex"),
        (f"n1:{KEY[:40]} {KEY[40:]}", "FILE:1: the key is not 16 to 64 bytes in hex"),
        (f"n1:{KEY}\nn1:{KEY}", "FILE:2: this user has a key above"),
        (f"# of n1\nn1:{KEY}", "FILE:1: not USER:HEX"),
        (f"#6e31:{KEY}", "FILE:1: begins with #; there are no comments here"),
        ("\n".join(f"n{number}:{KEY}" for number in range(1025)), "FILE: holds 1025 keys"),
    ],
)
def test_a_line_that_is_no_key_is_named_and_the_key_is_not(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_users(text.encode(), "FILE")

    assert str(caught.value).startswith(f"tls_psk_file {says}")
    assert KEY[:20] not in str(caught.value)


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "psk"
    file.write_text(f"n1:{KEY}\n")
    file.chmod(0o640)

    with pytest.raises(ConfigError, match=r"tls_psk_file .*/psk: others may use it \(mode 0640\); chmod 0600"):
        read_users(file)


def test_a_file_that_is_not_there_says_how_one_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls_psk_file .*/psk: No such file or directory; make one: psktool -u"):
        read_users(tmp_path / "psk")


def test_psktools_own_file_is_one(tmp_path: Path) -> None:
    need("psktool")
    for user in ("n1", "n2"):
        run(["psktool", "-u", user, "-p", str(tmp_path / "psk")])

    told = read_users(tmp_path / "psk")

    assert set(told) == {b"n1", b"n2"}
    assert len(set(told.values())) == 2


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@has_tls
def test_a_change_of_the_file_counts_for_who_comes_next_and_damage_changes_nothing(tmp_path: Path) -> None:
    """[M11]"""
    file = private(tmp_path / "psk", f"n1:{KEY}\n")
    keys = TlsKeys(BlockdevConfig(tls_psk_file=file), must=True)
    first = keys.current()

    with patch.object(subject, "log") as log:
        assert keys.current() is first
        private(file, "damaged by an editor\n")
        assert keys.current() is first
        assert keys.current() is first
    (said,) = log.error.call_args_list  # once
    assert "not USER:HEX" in str(said.kwargs["reason"])
    private(file, f"n2:{KEY}\n")
    assert keys.current() is not first


@has_tls
def test_a_device_that_goes_on_does_so_without_its_files_and_has_them_when_they_are_back(tmp_path: Path) -> None:
    file = tmp_path / "psk"
    config = BlockdevConfig(tls_psk_file=file)

    with pytest.raises(ConfigError, match="No such file"):
        TlsKeys(config, must=True)
    keys = TlsKeys(config, must=False)
    with pytest.raises(ConfigError, match="No such file"):
        keys.current()
    private(file, f"n1:{KEY}\n")

    assert isinstance(keys.current(), Tls)


@has_tls
def test_certificates_that_can_not_serve_are_one_line_each(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    sound, expired = authority.make("device", says=SERVER), authority.make("old", says=SERVER, days=0)
    damaged = private(tmp_path / "damaged", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    config = BlockdevConfig(tls_cert=sound.cert, tls_key=sound.key, tls_client_ca=authority.cert)

    TlsKeys(config, must=True).current()
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"tls_cert": expired.cert, "tls_key": expired.key}, f"tls_cert {expired.cert}: has expired"),
        ({"tls_cert": tmp_path / "none"}, f"tls_cert {tmp_path}/none: No such file"),
        ({"tls_key": expired.key}, f"tls_key {expired.key}: is not the key of tls_cert"),
        ({"tls_client_ca": damaged}, f"tls_client_ca {damaged}: is damaged"),
    )
    for changed, says in changes:
        with pytest.raises(ConfigError) as caught:
            TlsKeys(replace(config, **changed), must=True)
        assert str(caught.value).startswith(says)
        assert "\n" not in str(caught.value)
    sound.key.chmod(0o644)
    with pytest.raises(ConfigError, match=r"all users may read it; chmod o="):
        TlsKeys(config, must=True)

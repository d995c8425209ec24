"""Certificates that change while a manager runs: who comes next meets the new ones."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.scheduler.manager.auth.tls_reload import TlsReload
from farside.tls import TlsFiles, server_tls, tls_problem
from tests.house.test_tls import ask, files, serving
from tests.support.certificates import SERVER, Authority, Made

Ask = Callable[[Made], str]


class Door:
    """A server whose files a test changes, and what clients are told there."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        own = authority.make("manager", says=SERVER)
        self.authority, self.ca = authority, folder / "clients.pem"
        self.put(authority.cert.read_bytes())
        tls = TlsFiles(ca=self.ca, cert=own.cert, key=own.key)
        self.context = server_tls(tls)
        self.renewal = TlsReload(self.context, tls)
        self._changes = 0

    def put(self, *parts: bytes) -> None:
        self.ca.write_bytes(b"".join(parts))

    def change(self, *parts: bytes) -> None:
        self.put(*parts)
        self._changes += 1
        os.utime(self.ca, ns=(0, self._changes))
        self.renewal.look()

    def told(self, made: Made) -> str:
        """What goes wrong for who shows this certificate; empty: nothing."""

        async def run() -> str:
            async with serving(self.context) as port:
                try:
                    await asyncio.to_thread(ask, port, files(made, self.authority.cert))
                except OSError as error:
                    return str(tls_problem(error, "HERE"))  # type: ignore[arg-type]
                return ""

        return asyncio.run(run())


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path, Authority(tmp_path))


def test_a_ca_that_is_added_counts_without_a_restart(door: Door, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    stranger = other.make("stranger")
    assert door.told(stranger).startswith("HERE: it does not know who signed our certificate")

    door.change(door.authority.cert.read_bytes(), other.cert.read_bytes())

    assert door.told(stranger) == ""
    assert door.told(door.authority.make("n1")) == ""


def test_a_certificate_that_is_revoked_counts_no_more_without_a_restart(door: Door) -> None:
    first, second, kept = (door.authority.make(name) for name in ("first", "second", "kept"))
    before = [door.told(one) for one in (first, second, kept)]

    door.change(door.authority.revoking(first, issued="20260101000000Z").read_bytes())
    then = [door.told(one) for one in (first, second, kept)]
    door.change(door.authority.revoking(first, second, issued="20260102000000Z").read_bytes())
    last = [door.told(one) for one in (first, second, kept)]

    assert [[bool(one) for one in some] for some in (before, then, last)] == [
        [False, False, False],
        [True, False, False],
        [True, True, False],
    ]
    assert last[0].startswith("HERE: it says that our certificate was revoked")


def test_a_ca_that_is_taken_away_counts_until_a_restart_and_the_log_says_so(
    door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")

    door.change(other.cert.read_bytes())

    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.message == "a CA was removed from tls_client_ca, but is trusted until a restart"
    assert warning.__dict__["farside_fields"]["ca"] == "commonName=ca"
    assert door.told(door.authority.make("n1")) == ""


def test_a_context_of_earlier_files_takes_up_those_of_now_at_the_first_look(door: Door, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    door.put(door.authority.cert.read_bytes(), other.cert.read_bytes())
    door.renewal = TlsReload(door.context, door.context.files, is_of_files=False)  # type: ignore[attr-defined]
    assert door.told(other.make("stranger")) != ""

    door.renewal.look()

    assert door.told(other.make("stranger")) == ""


@pytest.mark.parametrize("text", [b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_that_is_half_written_changes_nothing_and_is_read_once_it_is_whole(
    text: bytes, door: Door, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = Authority(tmp_path, "other")
    door.change(text)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert door.told(door.authority.make("n1")) == ""

    door.change(door.authority.cert.read_bytes(), other.cert.read_bytes())

    assert warnings == ["a certificate can't be reloaded"]
    assert door.told(other.make("stranger")) == ""

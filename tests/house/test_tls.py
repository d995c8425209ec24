"""Contexts out of PEM files, and what an administrator or user reads when TLS does not work."""

import asyncio
import http.client
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from farside.errors import ConfigError, FarsideError
from farside.log import Rarely
from farside.scheduler.manager.api.limit.handshake import forget_failed
from farside.tls import TlsFiles, client_tls, load_own, server_tls, tls_problem
from tests.support.certificates import SERVER, Authority, Made


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "other")


@pytest.fixture(scope="module")
def server(authority: Authority) -> Made:
    return authority.make("manager", says=SERVER)


@pytest.fixture(scope="module")
def node(authority: Authority) -> Made:
    return authority.make("n1", says="URI:farside://node/n1")


def files(made: Made | None = None, ca: Path | None = None) -> TlsFiles:
    own = TlsFiles() if made is None else TlsFiles(cert=made.cert, key=made.key)
    return own if ca is None else replace(own, ca=ca)


@asynccontextmanager
async def serving(context: ssl.SSLContext | None) -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_http = (await reader.read(4096)).startswith(b"GET ")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % (b"200 OK" if is_http else b"400 Bad Request"))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listener:
        yield listener.sockets[0].getsockname()[1]


def ask(port: int, tls: TlsFiles, host: str = "127.0.0.1") -> http.client.HTTPSConnection:
    connection = http.client.HTTPSConnection(host, port, context=client_tls(tls), timeout=60)
    try:
        connection.request("GET", "/")
        assert connection.getresponse().status == 200
    finally:
        connection.close()
    return connection


def said_to(tls: TlsFiles, context: ssl.SSLContext | None, host: str = "127.0.0.1") -> str:
    """What a client reads that can't come in."""

    async def run() -> str:
        async with serving(context) as port:
            with pytest.raises(ssl.SSLError) as caught:
                await asyncio.to_thread(ask, port, tls, host)
            return str(tls_problem(caught.value, "HERE", tls))

    return asyncio.run(run())


def test_both_sides_know_each_other_by_their_certificates(authority: Authority, server: Made, node: Made) -> None:
    async def run() -> None:
        async with serving(server_tls(files(server, authority.cert), is_required=True)) as port:
            await asyncio.to_thread(ask, port, files(node, authority.cert))

    asyncio.run(run())


def test_a_client_needs_no_certificate_where_none_is_required(authority: Authority, server: Made) -> None:
    async def run() -> None:
        async with serving(server_tls(files(server, authority.cert))) as port:
            await asyncio.to_thread(ask, port, files(ca=authority.cert))

    asyncio.run(run())


def test_a_client_is_told_what_is_wrong_with_its_certificate(
    authority: Authority, other: Authority, server: Made
) -> None:
    asks = server_tls(files(server, authority.cert), is_required=True)
    expired, foreign = authority.make("old", days=0), other.make("n1")

    assert said_to(files(expired, authority.cert), asks).startswith(
        f"HERE: it says that our certificate {expired.cert} (commonName=old, issued by commonName=ca) has expired; "
    )
    assert said_to(files(foreign, authority.cert), asks) == (
        f"HERE: it does not know who signed our certificate {foreign.cert} (commonName=n1, issued by commonName=other);"
        " its CA must be in the manager's tls_client_ca"
    )
    none = "HERE: it wants a certificate, and was shown none; name yours: tls_cert and tls_key"
    assert said_to(files(ca=authority.cert), asks) == none


def test_a_wrong_certificate_is_refused_also_where_none_is_required(
    authority: Authority, other: Authority, server: Made
) -> None:
    told = said_to(files(other.make("n2"), authority.cert), server_tls(files(server, authority.cert)))

    assert told.startswith("HERE: it does not know who signed our certificate ")


def test_a_certificate_that_was_revoked_is_refused_and_its_neighbour_is_not(
    authority: Authority, server: Made, node: Made
) -> None:
    stolen = authority.make("stolen")
    asks = server_tls(files(server, authority.revoking(stolen)))

    async def run() -> None:
        async with serving(asks) as port:
            await asyncio.to_thread(ask, port, files(node, authority.cert))

    assert said_to(files(stolen, authority.cert), asks).startswith(
        f"HERE: it says that our certificate {stolen.cert} (commonName=stolen, issued by commonName=ca) was revoked; "
    )
    asyncio.run(run())


def test_a_client_says_what_is_wrong_with_the_servers_certificate(
    authority: Authority, other: Authority, server: Made
) -> None:
    sound, expired = server_tls(files(server)), server_tls(files(authority.make("past", says=SERVER, days=0)))
    elsewhere = server_tls(files(authority.make("elsewhere", says="DNS:elsewhere.example,IP:192.0.2.1")))
    ours = files(ca=authority.cert)

    assert said_to(files(ca=other.cert), sound) == (
        "HERE: its certificate (commonName=manager, issued by commonName=ca) was signed by nobody who is known here; "
        f"name the certificate of its CA: ca_file, now {other.cert}"
    )
    for context, host, name, why in (
        (expired, "127.0.0.1", "past", "has expired; have it renewed there; "),
        (elsewhere, "127.0.0.1", "elsewhere", "is for another address; "),
        (elsewhere, "localhost", "elsewhere", "is for another name; "),
    ):
        names = f"(commonName={name}, issued by commonName=ca)"
        assert said_to(ours, context, host).startswith(f"HERE: its certificate {names} {why}")


def failures_at(tls: TlsFiles, context: ssl.SSLContext, *, times: int = 1) -> list[dict[str, str]]:
    """The lines of a server's log about clients with these files that fail, by their fields."""

    async def run() -> None:
        forget_failed(asyncio.get_running_loop())
        async with serving(context) as port:
            for _ in range(times):
                with pytest.raises(ssl.SSLError):
                    await asyncio.to_thread(ask, port, tls)

    with patch("farside.tls._rarely", Rarely()), patch("farside.tls._log") as log:
        asyncio.run(run())
    return [line.kwargs for line in log.warning.call_args_list]


def test_a_servers_log_names_the_certificate_that_it_does_not_know_once_a_minute_for_an_address(
    authority: Authority, other: Authority, server: Made
) -> None:
    """[L6] Each of a stranger's handshakes cost a line, which said neither whose it was nor what to do."""
    asks = server_tls(files(server, authority.cert))

    (line,) = failures_at(files(other.make("n7"), authority.cert), asks, times=5)

    assert line == {
        "why": "unable to get local issuer certificate", "address": "127.0.0.1",
        "certificate": "commonName=n7, issued by commonName=other",
        "hint": f"if it is one of ours, put its CA into tls_client_ca {authority.cert}",
    }  # fmt: skip


def test_a_servers_log_says_that_a_client_does_not_know_its_ca(other: Authority, server: Made) -> None:
    (line,) = failures_at(files(ca=other.cert), server_tls(files(server)))

    assert line == {
        "why": "the client does not know who signed our certificate", "address": "127.0.0.1",
        "certificate": "commonName=manager, issued by commonName=ca",
        "hint": f"give it the certificate of the CA of tls_cert {server.cert}",
    }  # fmt: skip


def test_a_clock_that_is_off_is_thought_of_where_a_certificate_is_not_valid_yet() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate is not yet valid")
    error.verify_code = 9  # X509_V_ERR_CERT_NOT_YET_VALID

    told = str(tls_problem(error, "HERE"))

    assert told.startswith("HERE: its certificate is not valid yet; is a clock wrong? `date` here, and there ")


def test_names_of_a_certificate_that_nobody_vouches_for_are_one_short_line(
    authority: Authority, tmp_path: Path
) -> None:
    made = Authority(tmp_path, "x" * 60).make("a\nb\x1b[31m")
    stranger = Made(cert=made.cert.rename(tmp_path / "n.pem"), key=made.key.rename(tmp_path / "n.key"))

    told = said_to(files(stranger, authority.cert), server_tls(files(authority.make("m", says=SERVER), authority.cert)))

    assert told.isprintable()
    assert "commonName=a?b?[31m, issued by commonName=xxx" in told


def test_a_server_without_tls_is_told_apart(authority: Authority) -> None:
    told = said_to(files(ca=authority.cert), None)

    assert told == "HERE: does not use TLS; write http:// or ws:// if it has no certificate on purpose"


def test_a_renewed_certificate_is_shown_to_who_comes_next(authority: Authority, server: Made) -> None:
    async def run() -> None:
        context = server_tls(files(authority.make("past", says=SERVER, days=0)))
        async with serving(context) as port:
            load_own(context, files(server))
            await asyncio.to_thread(ask, port, files(ca=authority.cert))

    asyncio.run(run())


def test_each_mistake_with_the_files_is_one_line_that_names_setting_and_file(
    authority: Authority, server: Made, node: Made, tmp_path: Path
) -> None:
    empty, locked, shared = tmp_path / "empty.pem", tmp_path / "locked.key", tmp_path / "shared.key"
    damaged = tmp_path / "damaged.pem"
    empty.touch()
    damaged.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    shared.write_bytes(server.key.read_bytes())
    shared.chmod(0o644)
    subprocess.run(
        ["openssl", "pkey", "-in", server.key, "-aes128", "-passout", "pass:secret", "-out", locked],
        check=True, capture_output=True,
    )  # fmt: skip
    wrong: list[tuple[TlsFiles, str]] = [
        (files(replace(server, cert=tmp_path / "none.pem")), f"tls_cert {tmp_path}/none.pem: No such file"),
        (files(replace(server, cert=empty)), f"tls_cert {empty}: has no certificate; "),
        (files(replace(server, cert=damaged)), f"tls_cert {damaged}, tls_key {server.key}: "),
        (files(replace(server, key=server.cert)), f"tls_key {server.cert}: has no private key; "),
        (files(replace(server, key=node.key)), f"tls_key {node.key}: is not the key of tls_cert {server.cert}; "),
        (files(replace(server, key=locked)), f"tls_key {locked}: wants a passphrase"),
        (files(replace(server, key=shared)), f"tls_key {shared}: all users may read it; chmod o= "),
        (files(server, empty), f"tls_client_ca {empty}: has no certificate; "),
        (files(server, damaged), f"tls_client_ca {damaged}: is damaged; "),
    ]

    for told, says in wrong:
        with pytest.raises(ConfigError) as caught:
            server_tls(told)
        assert str(caught.value).startswith(says)
        assert "\n" not in str(caught.value)


def test_a_clients_mistakes_bear_the_names_that_its_user_knows(tmp_path: Path) -> None:
    told = TlsFiles(ca=tmp_path / "none.pem", name=lambda setting: f"FARSIDE_{setting.upper()}")

    with pytest.raises(ConfigError, match=r"FARSIDE_CA_FILE .*/none.pem: No such file"):
        client_tls(told)


@pytest.mark.parametrize("reason", ["SSLV3_ALERT_HANDSHAKE_FAILURE", "UNEXPECTED_EOF_WHILE_READING", ""])
def test_what_nobody_thought_of_is_told_as_it_is(reason: str) -> None:
    error = ssl.SSLError(1, "something")
    error.reason = reason

    found = tls_problem(error, "HERE")

    assert isinstance(found, FarsideError)
    assert str(found).startswith("HERE: TLS: ")

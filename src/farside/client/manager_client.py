"""Client of the manager: HTTP over its unix socket, or over TCP with a token or a certificate.

Where it is, the first of these that is given says: ``--manager``, the sandbox of ``--state``, FARSIDE_MANAGER, the
sandbox of FARSIDE_STATE, /run/farside/manager.sock. A token comes from FARSIDE_TOKEN, or the file that
FARSIDE_TOKEN_FILE names, a certificate from FARSIDE_TLS_CERT and FARSIDE_TLS_KEY; FARSIDE_CA_FILE has those that may
have signed the manager's. With FARSIDE_AUTH=munge this machine's munged proves who the user is, instead of a token.
"""

import http.client
import json
import os
import secrets
import select
import socket
import ssl
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from farside.client.state_folder import state_told
from farside.errors import ConfigError, FarsideError, PeerError, RefusedError
from farside.http_header import IDEMPOTENCY_KEY, TAKES
from farside.tls import TlsFiles, client_tls, tls_problem

STANDARD = "unix:/run/farside/manager.sock"
SOCKET_IN_STATE = "manager.sock"
LIMIT_S = 60.0
_AGAIN_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerAddress:
    """Where a manager is: ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT``."""

    endpoint: str
    token: str = ""
    munge_socket: Path | None = None
    tls: TlsFiles = field(default_factory=TlsFiles)


def find_manager(endpoint: str | None = None, state: Path | None = None) -> ManagerAddress:
    """Where the manager is that a command shall talk to.

    Raises:
        ConfigError: The token's file can't be read, the endpoint is none, or both are told.
    """
    if endpoint and state is not None:
        raise ConfigError("--manager and --state both say which manager is meant", hint="keep one of them")
    told = endpoint or ("" if state is not None else os.environ.get("FARSIDE_MANAGER", ""))
    folder = state_told(state)
    if not told and folder is not None and not folder.is_dir():
        option = "--state" if state is not None else "FARSIDE_STATE"
        raise ConfigError(
            f"{option} {folder}: no such folder", hint="`farside sandbox --cluster 4x8 --state` makes one"
        )
    if not told:
        told = f"unix:{folder.absolute() / SOCKET_IN_STATE}" if folder is not None else STANDARD
    if not told.startswith(("unix:/", "http://", "https://")):
        raise ConfigError(
            f"manager '{told}': is not an address", hint="write unix:/PATH, http://HOST:PORT or https://..."
        )
    tls = _tls_files() if told.startswith("https:") else TlsFiles()
    is_near = told.startswith("unix:")  # where the kernel says it anyway
    return ManagerAddress(endpoint=told, token=_token(), tls=tls, munge_socket=None if is_near else _munge_socket())


def _munge_socket() -> Path | None:
    auth = os.environ.get("FARSIDE_AUTH", "") or "token"
    if auth not in ("token", "munge"):
        raise ConfigError(f"FARSIDE_AUTH '{auth:.60}': is not known", hint="use token or munge")
    told = os.environ.get("FARSIDE_MUNGE_SOCKET", "") or "/run/munge/munge.socket.2"
    return Path(told) if auth == "munge" else None


def variable(setting: str) -> str:
    """The variable that says a setting of the agent's: FARSIDE_CA_FILE, FARSIDE_TLS_CERT, FARSIDE_TLS_KEY."""
    return f"FARSIDE_{setting.upper()}"


def _tls_files() -> TlsFiles:
    ca, cert, key = (os.environ.get(variable(name), "") for name in ("ca_file", "tls_cert", "tls_key"))
    if bool(cert) != bool(key):
        missing, other = ("tls_key", "tls_cert") if cert else ("tls_cert", "tls_key")
        raise ConfigError(f"{variable(missing)}: is not set, and {variable(other)} is", hint="set both, or neither")
    places = [Path(told).absolute() if told else Path() for told in (ca, cert, key)]
    return TlsFiles(ca=places[0], cert=places[1], key=places[2], name=variable)


def _token() -> str:
    if os.environ.get("FARSIDE_TOKEN"):
        return os.environ["FARSIDE_TOKEN"]
    file = os.environ.get("FARSIDE_TOKEN_FILE")
    if not file:
        return ""
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise ConfigError(f"FARSIDE_TOKEN_FILE {file}: {error.strerror}") from error


class UnixConnection(http.client.HTTPConnection):
    """HTTP over the unix socket at a path; a connection is made at the first request."""

    def __init__(self, path: str, limit_s: float = LIMIT_S) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        """Connects to it."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ManagerClient(AbstractContextManager["ManagerClient"]):
    """One connection, kept open over several requests until it is closed, or with ``with``.

    A server closes one that was idle, which may cross with what is asked next. What was asked is asked again then, on a
    new connection, where that does nothing twice: jobs and reservations bear a key by which the manager knows that it
    has them, if its answers say that it looks for one; all else says how something shall be.
    """

    def __init__(self, address: ManagerAddress, *, limit_s: float = LIMIT_S) -> None:
        """Nothing is asked yet; ``limit_s`` seconds are waited for each answer.

        Raises:
            ConfigError: A certificate can't be used.
        """
        self._address, self._limit_s = address, limit_s
        self._takes_keys = False
        self._connection = self._open()

    def _open(self) -> http.client.HTTPConnection:
        endpoint = self._address.endpoint
        if endpoint.startswith("unix:"):
            return UnixConnection(endpoint.removeprefix("unix:"), self._limit_s)
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = client_tls(self._address.tls)
            return http.client.HTTPSConnection(host, parts.port or 7680, timeout=self._limit_s, context=context)
        return http.client.HTTPConnection(host, parts.port or 7680, timeout=self._limit_s)

    def close(self) -> None:
        """Closes it."""
        self._connection.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, *path: str, **query: str) -> Any:
        """What is at ``/v1/`` and these parts of a path.

        Raises:
            PeerError: Nobody answers there.
            FarsideError: It was refused; the manager's own words.
        """
        return self._ask("GET", path, query, None)

    def post(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        """The answer to a command; errors as those of `get`."""
        return self._ask("POST", path, {}, body)

    def put(self, *path: str, body: Mapping[str, object]) -> Any:
        """The answer to what says how something is; errors as those of `get`."""
        return self._ask("PUT", path, {}, body)

    def delete(self, *path: str, **query: str) -> Any:
        """The answer to what takes something away; errors as those of `get`."""
        return self._ask("DELETE", path, query, None)

    def _ask(self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: object) -> Any:
        if not all(path):
            raise ConfigError("a name is empty", hint="`farside queue` lists jobs")
        where = "/v1/" + "/".join(quote(part, safe="") for part in path)
        headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        if method == "POST":
            headers[IDEMPOTENCY_KEY] = secrets.token_hex(16)
        path_and_query = where + (f"?{urlencode(query)}" if query else "")
        self._drop_if_closed()
        is_kept = self._connection.sock is not None
        while True:
            try:
                return _read(*self._exchange(method, path_and_query, payload, headers), self._address.endpoint)
            except (OSError, http.client.HTTPException) as error:
                self._connection.close()
                may_repeat = is_kept and (method != "POST" or self._takes_keys)
                if isinstance(error, TimeoutError) or not may_repeat:
                    raise self._no_answer(error) from error
                is_kept = False  # once more, on a new connection

    def _drop_if_closed(self) -> None:
        """Hangs up if the other side has: there is something to read though nothing was asked, which is the end."""
        if self._connection.sock is None:
            return
        look = select.poll()
        look.register(self._connection.sock, select.POLLIN)
        if look.poll(0):
            self._connection.close()

    def _exchange(
        self, method: str, where: str, payload: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, str]:
        """Status, body and Retry-After of the answer."""
        if self._address.munge_socket is not None:
            headers = {**headers, "Authorization": self._munged(method, where, payload, headers)}
        self._connection.request(method, where, payload, headers)
        response = self._connection.getresponse()
        self._takes_keys = IDEMPOTENCY_KEY in response.headers.get(TAKES, "")
        return response.status, response.read(), response.headers.get("Retry-After", "")

    def _munged(self, method: str, where: str, payload: bytes | None, headers: Mapping[str, str]) -> str:
        """A credential for this request alone; each attempt needs another."""
        from farside.munge import SCHEME, make_credential, request_mark

        assert self._address.munge_socket is not None
        mark = request_mark(method, where, headers.get(IDEMPOTENCY_KEY, ""), payload or b"")
        return f"{SCHEME} {make_credential(mark, self._address.munge_socket)}"

    def _no_answer(self, error: Exception) -> FarsideError:
        where = self._address.endpoint
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return PeerError(f"{where}: no manager answers there", hint="is it running? name it with --manager")
        if isinstance(error, ssl.SSLError):
            return tls_problem(error, where, self._address.tls)
        if isinstance(error, http.client.BadStatusLine) and where.startswith("http:"):
            return PeerError(f"{where}: does not answer by HTTP", hint="if it has a certificate, write https://")
        return PeerError(f"{where}: {getattr(error, 'strerror', None) or error or type(error).__name__}")


def _read(status: int, text: bytes, again_in_s: str, where: str) -> Any:
    if status == 413:
        raise ConfigError(
            "the request is larger than the manager accepts", hint="put it into a file that the job reads"
        )
    if status == 204:
        return None
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise PeerError(f"{where}: answers {status}, and is no Farside manager") from error
    if status < 400:
        return answer
    detail = answer.get("detail", status) if isinstance(answer, dict) else status
    if status >= 500:
        raise PeerError(str(detail), code=status)
    if status == 422:
        raise ConfigError(str(detail))
    # A date is of another server, and so is what is longer, which int() may refuse.
    seconds = int(again_in_s) if again_in_s.isdecimal() and len(again_in_s) <= _AGAIN_DIGITS_MAX else 0
    raise RefusedError(str(detail), code=status, again_in_s=seconds)

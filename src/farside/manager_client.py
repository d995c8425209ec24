"""The manager as its users reach it: HTTP over its unix socket, or over TCP with a token.

Where it is, the first of these that is told says: ``--manager``, FARSIDE_MANAGER, the sandbox of ``--state`` or
FARSIDE_STATE, /run/farside/manager.sock. A token comes from FARSIDE_TOKEN, or the file that FARSIDE_TOKEN_FILE names.
"""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from farside.errors import ConfigError, FarsideError, PeerError

STANDARD = "unix:/run/farside/manager.sock"
SOCKET_IN_STATE = "manager.sock"
LIMIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerAddress:
    """Where a manager is: ``unix:PATH``, ``http://HOST:PORT`` or ``https://HOST:PORT``."""

    endpoint: str
    token: str = ""


def find_manager(endpoint: str | None = None, state: Path | None = None) -> ManagerAddress:
    """Where the manager is that a command shall talk to.

    Raises:
        ConfigError: The token's file can't be read, or the endpoint is none.
    """
    told = endpoint or os.environ.get("FARSIDE_MANAGER", "")
    folder = state or (Path(os.environ["FARSIDE_STATE"]) if os.environ.get("FARSIDE_STATE") else None)
    if not told:
        told = f"unix:{folder / SOCKET_IN_STATE}" if folder is not None else STANDARD
    if not told.startswith(("unix:/", "http://", "https://")):
        raise ConfigError(f"manager '{told}': is no address", hint="write unix:/PATH, http://HOST:PORT or https://...")
    return ManagerAddress(endpoint=told, token=_token())


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

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        """Connects to it."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class ManagerClient:
    """One connection, kept open over several requests until it is closed, or with ``with``."""

    def __init__(self, address: ManagerAddress) -> None:
        self._address = address
        self._connection = self._open()

    def _open(self) -> http.client.HTTPConnection:
        endpoint = self._address.endpoint
        if endpoint.startswith("unix:"):
            return UnixConnection(endpoint.removeprefix("unix:"))
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, parts.port or 7680, timeout=LIMIT_S, context=context)
        return http.client.HTTPConnection(host, parts.port or 7680, timeout=LIMIT_S)

    def close(self) -> None:
        """Closes it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

    def _ask(self, method: str, path: tuple[str, ...], query: Mapping[str, str], body: object) -> Any:
        where = "/v1/" + "/".join(quote(part, safe="") for part in path)
        headers = {"Authorization": f"Bearer {self._address.token}"} if self._address.token else {}
        payload = None
        if body is not None:
            payload, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        path_and_query = where + (f"?{urlencode(query)}" if query else "")
        is_kept = self._connection.sock is not None
        try:
            status, text = self._exchange(method, path_and_query, payload, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if not (is_kept and method == "GET"):
                raise self._no_answer(error) from error
            status, text = self._once_more(path_and_query, headers)
        return _read(status, text, self._address.endpoint)

    def _exchange(
        self, method: str, where: str, payload: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        self._connection.request(method, where, payload, headers)
        response = self._connection.getresponse()
        return response.status, response.read()

    def _once_more(self, where: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """On a new connection: a server closes one that was idle, and that crosses with what is asked next."""
        try:
            return self._exchange("GET", where, None, headers)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise self._no_answer(error) from error

    def _no_answer(self, error: Exception) -> PeerError:
        where = self._address.endpoint
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            return PeerError(f"{where}: no manager answers there", hint="is it running? name it with --manager")
        return PeerError(f"{where}: {getattr(error, 'strerror', None) or error or type(error).__name__}")


def _read(status: int, text: bytes, where: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise PeerError(f"{where}: answers {status}, and is no Farside manager") from error
    if status < 400:
        return answer
    detail = answer.get("detail", status) if isinstance(answer, dict) else status
    wrong = ConfigError if status == 422 else FarsideError
    raise wrong(str(detail))

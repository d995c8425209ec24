"""Authentication: find the caller of a request by unix socket, munge, token, certificate or cookie.

Permission, what the caller may do, is checked by arguments of the routes: `scheduler/manager/api/route_arguments.py`.

How it works
  On a unix socket the kernel says which user has connected (SO_PEERCRED, unix(7)); no token is needed and none counts.
  `PeerProtocol` puts that into the place of the client's address, as ``uid:N``, which no TCP client can have. Over TCP
  a token counts, and it says a name and a role. A token is known by its SHA-256; the file can't give it away.

  Where munge is used, a user of another machine shows a credential that munged made there for this one request
  (munge_user.py). It is opened once, by `meet`, before anybody asks who calls.

  Over TLS a client may show a certificate (certificate.py). Who sends a token besides is whom the token is for; so a
  certificate can be asked of everybody, and tokens still say who is who.

  Browsers come too, for the page. They may carry a cookie in place of the token, which is good for looking only
  (web_session.py). And they may be sent here by a page of somebody else: where that would count, on the unix socket
  behind a forwarded port, as to a cookie or a browser's certificate, what another site asks for is refused.
"""

import asyncio
import hashlib
import hmac
import os
import pwd
import re
import secrets
import socket
import stat
import struct
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farside.errors import ConfigError
from farside.munge import SCHEME
from farside.proof import key_id
from farside.scheduler.manager.auth.certificate import named_in
from farside.scheduler.manager.auth.munge_user import uid_of
from farside.scheduler.manager.auth.web_session import COOKIE, WebSessions, marks_of

# struct ucred of socket(7): pid, uid, gid.
_UCRED = struct.Struct("3i")
_PEER = "uid:"
_HASH = re.compile("[0-9a-f]{64}")
_MET = "farside.caller"  # in the scope of a request whose credential was opened
PROVED_KEY = "farside.key"  # in the scope of an agent's session: hash of the token that it has proved to have
CERTIFICATE = "certificate"


class Proof(StrEnum):
    """Proof of a caller's name. Only the kernel's word, here or at munged, allows jobs to run as that user."""

    KERNEL = "uid"
    MUNGE = "munge uid"
    TOKEN = "token"  # noqa: S105 - a word
    CERTIFICATE = "certificate"


class Role(StrEnum):
    """Role of a caller: users see and stop their own jobs, operators all; nodes only report."""

    USER = "user"
    OPERATOR = "operator"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """A caller.

    Attributes:
        name: Of the user or node; empty in a token for any node, as versions before made them: it lets no node in.
        uid: -1 if nothing proves it.
    """

    name: str
    role: Role
    uid: int = -1
    proof: Proof = Proof.TOKEN

    @property
    def is_operator(self) -> bool:
        """Whether it may see and change everything."""
        return self.role is Role.OPERATOR

    @property
    def told(self) -> str:
        """The caller and the proof as text in the log: ``user ann, uid 1000``, ``operator carl, token``."""
        uid = f" {self.uid}" if self.uid >= 0 else ""
        return f"{self.role} {self.name or '(any)'}, {self.proof}{uid}"


class PeerProtocol(HttpToolsProtocol):
    """HTTP as uvicorn speaks it, that knows the user at the other end of a unix socket, and a client's certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Asks the kernel once a connection."""
        super().connection_made(transport)
        self.client = peer_of(transport) or self.client
        secured = self.transport.get_extra_info("ssl_object")
        if secured is not None and (certificate := secured.getpeercert()):
            self.app_state = {**self.app_state, CERTIFICATE: certificate}  # a WebSocket inherits it


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """What is used in place of the client's address on a unix socket: the user there; None on others."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family != socket.AF_UNIX:
        return None
    # SO_PEERCRED is who called connect(2), not who holds the descriptor now: it can't be changed later.
    _, uid, _ = _UCRED.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return peer_host(uid), 0


def peer_host(uid: int) -> str:
    """The text used instead of a client's address on a unix socket."""
    return f"{_PEER}{uid}"


def is_peer(host: str) -> bool:
    """Whether it is a user of this machine, by the kernel's word."""
    return host.startswith(_PEER)


class Callers:
    """Finds out who calls. The tokens' file is read again when it changes."""

    def __init__(
        self,
        tokens_file: Path,
        operators: frozenset[str],
        own_uid: int,
        sessions: WebSessions | None = None,
        *,
        munge_socket: Path | None = None,
    ) -> None:
        """Without ``sessions`` no cookie counts, without ``munge_socket`` no credential of munge."""
        self._munge_socket = munge_socket
        self._file = tokens_file
        self._sessions = sessions
        self._operators = operators
        self._own_uid = own_uid
        self._stamp: tuple[int, int] | None = None
        self._tokens: Mapping[str, Caller] = {}
        self._keys: Mapping[bytes, bytes] = {}  # by their names
        self._marks: Mapping[str, str] = {}
        self._refresh()

    def of(self, connection: HTTPConnection) -> Caller:
        """The caller of a request.

        Raises:
            HTTPException: 401, it is nobody; 403, another site's page sent it here.
        """
        proved = connection.scope.get(PROVED_KEY)
        if isinstance(proved, str):
            return self._of_hash(proved)
        client = connection.client
        if client is not None and client.host.startswith(_PEER):
            refuse_other_sites(connection)
            return self._of_uid(int(client.host.removeprefix(_PEER)), Proof.KERNEL)
        # A token that is shown wins over certificate and cookie, as both are sent without being asked for.
        if "authorization" not in connection.headers:
            by_certificate = self._of_certificate(connection)
            if by_certificate is not None:
                return by_certificate
            cookie = connection.cookies.get(COOKIE, "")
            if cookie:
                return self._of_cookie(connection, cookie)
        # munged refuses a credential that was decoded before, so the answer of the first time is kept in the scope.
        met = connection.scope.get(_MET)
        if isinstance(met, Caller):
            return met
        scheme, _, token = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == SCHEME.lower():
            raise unknown_caller("credentials of munge do not count here: the manager's `auth` is not munge")
        if scheme.lower() != "bearer" or not token.strip():
            raise unknown_caller("no token: give one as `Authorization: Bearer TOKEN`, or use the unix socket")
        caller = self.of_token(token.strip())
        if caller is None:
            raise unknown_caller("this token is not known here")
        return caller

    async def meet(self, connection: HTTPConnection) -> None:
        """Opens the credential of munge that a request may have, for `of`; it can be opened but once.

        Raises:
            HTTPException: 401, it proves nothing; 503, munged does not answer.
        """
        if self._munge_socket is None or not self.is_sealed(connection) or not isinstance(connection, Request):
            return
        credential = connection.headers["authorization"].partition(" ")[2]
        uid = await uid_of(connection, credential.strip(), self._munge_socket)
        connection.scope[_MET] = self._of_uid(uid, Proof.MUNGE)

    def is_sealed(self, connection: HTTPConnection) -> bool:
        """Whether it has a credential of munge that counts here and was not opened yet."""
        scheme = connection.headers.get("authorization", "").partition(" ")[0]
        return scheme.lower() == SCHEME.lower() and self._munge_socket is not None and _MET not in connection.scope

    def cookie_for(self, token: str, now_s: float) -> str:
        """A cookie for a browser that has shown this token, which is known.

        Raises:
            HTTPException: 403, no cookies count here.
        """
        if self._sessions is None:
            raise HTTPException(403, "this manager has no page")
        return self._sessions.open(hash_of(token), now_s)

    def _of_certificate(self, connection: HTTPConnection) -> Caller | None:
        certificate = connection.scope.get("state", {}).get(CERTIFICATE)
        try:
            named = None if certificate is None else named_in(certificate)
        except ValueError as error:
            raise unknown_caller(str(error)) from error
        if named is None:
            return None
        refuse_other_sites(connection)
        role, name = named
        return Caller(name=name, role=Role(role), proof=Proof.CERTIFICATE)

    def _of_cookie(self, connection: HTTPConnection, cookie: str) -> Caller:
        refuse_other_sites(connection)
        self._refresh()
        mark = None if self._sessions is None else self._sessions.mark_in(cookie, time.time())
        caller = self._tokens.get(self._marks.get(mark or "", ""))
        if caller is None:
            raise unknown_caller("you are not signed in any more: give your token again")
        # A WebSocket has no method, so a cookie does not open an agent's session either.
        if connection.scope.get("method") not in ("GET", "HEAD"):
            raise HTTPException(403, "the page's cookie is read-only; make changes by the command line")
        return caller

    def _of_uid(self, uid: int, proof: Proof) -> Caller:
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = str(uid)
        # The user that the manager runs as here may be anybody on another machine: such uids are given out by chance.
        is_self = uid == self._own_uid and proof is Proof.KERNEL
        is_operator = uid == 0 or is_self or name in self._operators
        return Caller(name=name, role=Role.OPERATOR if is_operator else Role.USER, uid=uid, proof=proof)

    def tokens_stamp(self) -> tuple[int, int] | None:
        """What changes whenever the tokens' file does; None without one. Raises ConfigError where it can't be read."""
        self._refresh()
        return self._stamp

    def key_named(self, key_id: bytes) -> bytes | None:
        """The key of the token that an agent names without giving it away; None: there is none."""
        self._refresh()
        return self._keys.get(key_id)

    def _of_hash(self, token_hash: str) -> Caller:
        self._refresh()
        caller = self._tokens.get(token_hash)
        if caller is None:
            raise unknown_caller("this token is not known here")
        return caller

    def of_token(self, token: str) -> Caller | None:
        """The caller that a token is for."""
        self._refresh()
        given = hash_of(token)
        # All of them are compared: how long it takes says nothing.
        found = [caller for known, caller in self._tokens.items() if hmac.compare_digest(known, given)]
        return found[0] if found else None

    def _refresh(self) -> None:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._stamp, self._tokens, self._marks, self._keys = None, {}, {}, {}
            return
        # Both, as two writes may fall into one tick of the file system's clock.
        stamp = status.st_mtime_ns, status.st_size
        if stamp != self._stamp:
            self._tokens = read_tokens(self._file)
            self._marks = marks_of(self._tokens)
            self._keys = {key_id(key): key for key in map(bytes.fromhex, self._tokens)}
            self._stamp = stamp


def refuse_other_sites(connection: HTTPConnection) -> None:
    """Refuses what a browser sends because another site's page wants it to; other programs send none of this.

    Sec-Fetch-Site comes with every request of today's browsers; Origin with those that can change something. A name of
    the site's own that leads here (DNS rebinding) looks like our own to a browser, but has a dot, which a forwarded
    port's ``localhost`` has not; a manager behind a real name has a certificate for it, and is asked for a token.

    Raises:
        HTTPException: 403.
    """
    told, host = connection.headers, connection.headers.get("host", "")
    site, origin = told.get("sec-fetch-site", ""), told.get("origin", "")
    is_ours = site in ("", "same-origin", "none") and (not origin or urlsplit(origin).netloc == host)
    is_peer = connection.client is not None and connection.client.host.startswith(_PEER)
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    is_rebound = is_peer and bool(site or origin) and "." in name and not name.replace(".", "").isdigit()
    if not is_ours or is_rebound:
        raise HTTPException(403, "another site's page sent this request")


def unknown_caller(text: str) -> HTTPException:
    """The answer to who is nobody."""
    return HTTPException(401, text, headers={"WWW-Authenticate": "Bearer"})


def hash_of(token: str) -> str:
    """Hash of a token in the tokens' file: the token is random and long, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(file: Path) -> Mapping[str, Caller]:
    """The callers of a tokens' file by the hash of their token: ``[[token]]`` with name, role, sha256.

    Raises:
        ConfigError: It can't be read, others may read or change it, or an entry is not right.
    """
    try:
        with file.open("rb") as stream:
            # Whoever reads a hash can pose as the manager to that node. [H2]
            if os.fstat(stream.fileno()).st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise ConfigError(f"{file}: others may read or change it", hint=f"chmod 600 {file}")
            rows = tomllib.load(stream).get("token", [])
        found: dict[str, Caller] = {}
        for number, row in enumerate(rows, 1):
            if set(row) != {"name", "role", "sha256"} or not _HASH.fullmatch(row["sha256"]):
                raise ConfigError(f"{file}: token {number}: needs name, role and sha256", hint="see `farside token`")
            found[row["sha256"]] = Caller(name=row["name"], role=Role(row["role"]))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ConfigError(f"{file}: {reason}", hint="make tokens by `farside token`") from error
    return found


def add_token(file: Path, name: str, role: Role) -> str:
    """Makes a token, appends its hash to the file, which only its owner may read, and returns it."""
    if any(character in name for character in '"\\\n') or not name.isprintable():
        raise ConfigError(f"'{name:.60}' is not a name of a user or node")
    if not name.strip():
        hint = "give each node a token of its own: farside token NAME"
        raise ConfigError("a token needs a name: there are none for any node", hint=hint)
    token = secrets.token_urlsafe(32)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    with file.open("a") as stream:
        stream.write(f'[[token]]\nname = "{name}"\nrole = "{role}"\nsha256 = "{hash_of(token)}"\n')
    return token

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
import hmac
import os
import pwd
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import HTTPException, Request
from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from farside.listen import peer_uid
from farside.munge import SCHEME
from farside.proof import key_id
from farside.scheduler.manager.auth.certificate import named_in
from farside.scheduler.manager.auth.munge_user import uid_of
from farside.scheduler.manager.auth.token_file import Role, TokenRow, hash_of, read_tokens
from farside.scheduler.manager.auth.web_session import COOKIE, WebSessions, marks_of
from farside.scheduler.manager.model.record import Admission
from farside.units import format_moment

_PEER = "uid:"
_MET = "farside.caller"  # in the scope of a request whose credential was opened
PROVED_KEY = "farside.key"  # in the scope of an agent's session: hash of the token that it has proved to have
CERTIFICATE = "certificate"
UNTOLD = "farside.untold"
"""In the state of an agent's connection: what to call once its HELLO has come, or it has ended; again does no harm."""


class Proof(StrEnum):
    """Proof of a caller's name. Only the kernel's word, here or at munged, allows jobs to run as that user."""

    KERNEL = "uid"
    MUNGE = "munge uid"
    TOKEN = "token"  # noqa: S105 - a word
    CERTIFICATE = "certificate"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofKey:
    """Key by which an agent and this manager prove themselves to each other. ``is_invitation``: it counts once."""

    secret: bytes
    is_invitation: bool = False


class _AdmissionIndex:
    """Keys and invitations of one state of the admissions.

    Attributes:
        admissions: What it follows from; a change replaces that as a whole.
        nodes: By hash in hex, as the admission has it, whose key or invitation that is.
        hashes: These hashes, by the names of the keys.
    """

    def __init__(self, admissions: Mapping[str, Admission]) -> None:
        self.admissions = admissions
        self.nodes = {told: node for node, one in admissions.items() for told in (one.invitation, one.key) if told}
        self.hashes = {key_id(bytes.fromhex(told)): told for told in self.nodes}


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
    return peer_host(peer_uid(peer)), 0


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
        admissions: Callable[[], Mapping[str, Admission]] = dict,
    ) -> None:
        """Without ``sessions`` no cookie counts, without ``munge_socket`` no credential of munge.

        ``admissions``: those of the log, by node.
        """
        self._admissions = admissions
        self._index = _AdmissionIndex({})
        self._munge_socket = munge_socket
        self._file = tokens_file
        self._sessions = sessions
        self._operators = operators
        self._own_uid = own_uid
        self._stamp: tuple[int, ...] | None = None
        self._tokens: Mapping[str, TokenRow] = {}  # by hash
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
        caller = self._of_row(self._tokens.get(self._marks.get(mark or "", "")))
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

    def tokens_stamp(self) -> object:
        """A value that differs once a token may have ended. Raises ConfigError where the file can't be read."""
        self._refresh()
        return self._stamp, sum(row.expires_s <= time.time() for row in self._tokens.values())

    def key_named(self, name: bytes, now_s: float) -> ProofKey:
        """The key of the token, or of the invitation, that an agent names without giving it away.

        Raises:
            HTTPException: 401, there is none.
        """
        self._refresh()
        secret = self._keys.get(name)
        if secret is not None and self._of_row(self._tokens[secret.hex()]) is not None:
            return ProofKey(secret=secret)
        index = self._index_of(self._admissions())
        found = index.hashes.get(name)
        if found is not None:
            node = index.nodes[found]
            admission = index.admissions[node]
            if found == admission.key:
                return ProofKey(secret=bytes.fromhex(found))
            if admission.expires_s <= now_s:
                over = format_moment(admission.expires_s)
                raise unknown_caller(f"the invitation ended {over}: `farside node invite {node}` makes another")
            return ProofKey(secret=bytes.fromhex(found), is_invitation=True)
        raise unknown_caller("this token is not known here; an invitation counts once, `farside node invite` makes one")

    def _of_hash(self, token_hash: str) -> Caller:
        self._refresh()
        caller = self._of_row(self._tokens.get(token_hash))
        if caller is not None:
            return caller
        node = self._index_of(self._admissions()).nodes.get(token_hash)
        if node is not None:
            return Caller(name=node, role=Role.NODE)
        raise unknown_caller("this token is not known here")

    def _index_of(self, admissions: Mapping[str, Admission]) -> "_AdmissionIndex":
        # All nodes are gone through once a change: for each stranger it would take 2 ms of the loop at 2,000 nodes.
        if self._index.admissions is not admissions:
            self._index = _AdmissionIndex(admissions)
        return self._index

    def of_token(self, token: str) -> Caller | None:
        """The caller that a token is for."""
        self._refresh()
        given = hash_of(token)
        # All of them are compared: how long it takes says nothing.
        found = [row for known, row in self._tokens.items() if hmac.compare_digest(known, given)]
        return self._of_row(found[0]) if found else None

    @staticmethod
    def _of_row(row: TokenRow | None) -> Caller | None:
        """The caller whose token a row of the file is; None: there is no row, or its time is over."""
        if row is None or row.expires_s <= time.time():
            return None
        return Caller(name=row.name, role=row.role)

    def _refresh(self) -> None:
        try:
            status = self._file.stat()
        except FileNotFoundError:
            self._stamp, self._tokens, self._marks, self._keys = None, {}, {}, {}
            return
        # The size too, as two writes may fall into one tick of the file system's clock; whose it is and who may read it
        # can change while the manager runs.
        stamp = status.st_mtime_ns, status.st_size, status.st_mode, status.st_uid
        if stamp != self._stamp:
            self._tokens = {row.sha256: row for row in read_tokens(self._file, owners=frozenset({0, os.geteuid()}))}
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

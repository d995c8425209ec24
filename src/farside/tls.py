"""TLS of manager and clients: contexts from PEM files, and errors in one line.

How it works
  A server that asks for certificates verifies them in the handshake. asyncio, as of Python 3.11, drops the connection
  when that fails, without a word to either side; `_TellingHandshake` has the alert sent first, so that the client can
  say what is wrong with its certificate, and logs the reason here.

  A certificate that is refused is named, by its subject and issuer: OpenSSL keeps it as the chain that it verified in
  vain, which Python hands out only inside before 3.13.
"""

import _ssl
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from farside.errors import ConfigError, FarsideError, PeerError
from farside.log import Rarely, get_log

_CERTIFICATE, _KEY, _REVOCATIONS = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----", b"-----BEGIN X509 CRL-----"

_NONE_SHOWN = "PEER_DID_NOT_RETURN_A_CERTIFICATE"

NAMES_MAX = 200  # characters that are told of a certificate's names, which are anybody's text

PEER: ContextVar[str] = ContextVar("PEER", default="")
"""Address of whoever a server's handshake is with, where the listener sets it; a handshake does not know it itself."""

_log = get_log("tls")
_rarely = Rarely()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """PEM files of one side; a path that is not absolute stands for none.

    Attributes:
        ca: Certificates that may have signed the other side's; a server's may hold their revocation lists too.
        cert: Our own certificate, with what stands between it and its CA.
        key: Its private key.
        name: What the user knows a setting by: ``ca_file`` as FARSIDE_CA_FILE, say.
    """

    ca: Path = Path()
    cert: Path = Path()
    key: Path = Path()
    name: Callable[[str], str] = str


NO_FILES = TlsFiles()


def client_tls(files: TlsFiles) -> ssl.SSLContext:
    """TLS context of a client; without ``ca`` the system's certificates count. Files are read at each call.

    Raises:
        ConfigError: A file can't be read or is not what it should be.
    """
    name = files.name("ca_file")
    if files.ca.is_absolute():
        _pem(name, files.ca, _CERTIFICATE)
    try:
        context = ssl.create_default_context(cafile=files.ca if files.ca.is_absolute() else None)
    except ssl.SSLError as error:
        raise _damaged(name, files.ca) from error
    context.sslsocket_class, context.sslobject_class = _NamingSocket, _NamingHandshake
    if files.cert.is_absolute():
        load_own(context, files)
    return context


def server_tls(files: TlsFiles, *, is_required: bool = False) -> ssl.SSLContext:
    """What a server needs. With ``ca`` clients are asked for a certificate, and those that show a wrong one, or with
    ``is_required`` none, are turned away.

    Raises:
        ConfigError: A file can't be read or is not what it should be.
    """
    context = _ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.files = files
    load_own(context, files)
    context.sslobject_class = _TellingHandshake
    if files.ca.is_absolute():
        load_clients_ca(context, files)
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        # Each connection is a handshake of its own: one that is resumed would not be asked for its certificate again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


def check_server(files: TlsFiles) -> None:
    """Return when a server whose clients must show a certificate can use these files.

    Raises:
        ConfigError: A file can't be read, is not what it should be, the two don't belong together, or the certificate
            is not valid now.
    """
    server_tls(files, is_required=True)
    name = files.name("tls_cert")
    told = _ssl._test_decode_cert(files.cert)  # type: ignore[attr-defined] # there since Python 2.6
    now_s = time.time()
    if now_s >= ssl.cert_time_to_seconds(told["notAfter"]):
        raise ConfigError(f"{name} {files.cert}: has expired ({told['notAfter']})", hint="have it renewed")
    if now_s < ssl.cert_time_to_seconds(told["notBefore"]):
        hint = "is this machine's clock wrong?"
        raise ConfigError(f"{name} {files.cert}: is not valid yet ({told['notBefore']})", hint=hint)


def load_clients_ca(context: ssl.SSLContext, files: TlsFiles) -> tuple[str, ...]:
    """Has a server's context trust the CAs of ``files.ca`` too, and heed its revocation lists, from now on.

    Returns:
        The subjects of CAs that are not in the file any more: OpenSSL takes none back, so they count as before.

    Raises:
        ConfigError: The file can't be read or is not what it should be.
    """
    name = files.name("tls_client_ca")
    text = _pem(name, files.ca, _CERTIFICATE)
    try:
        told = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        told.load_verify_locations(files.ca)  # all of it is sound before any of it counts
        context.load_verify_locations(files.ca)
    except ssl.SSLError as error:
        raise _damaged(name, files.ca) from error
    if _REVOCATIONS in text:
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    kept = set(told.get_ca_certs(binary_form=True))
    both = zip(context.get_ca_certs(binary_form=True), context.get_ca_certs(), strict=True)
    return tuple(_name_in(one, "subject") for code, one in both if code not in kept)


def _name_in(certificate: Mapping[str, object], which: str) -> str:
    """``commonName=our cluster``, as `openssl x509 -subject` says it; ``which``: subject or issuer."""
    parts = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get(which, ()))
    text = ", ".join(f"{key}={value}" for part in parts for key, value in part)
    return "".join(one if one.isprintable() else "?" for one in text)[:NAMES_MAX]


def _names_of(certificate: Mapping[str, object]) -> str:
    """Whose certificate it is, and who signed it; empty: nobody knows the certificate."""
    if not certificate:
        return ""
    subject, issuer = (_name_in(certificate, which) or "nobody" for which in ("subject", "issuer"))
    return f"{subject}, issued by {issuer}"


def _shown_by(side: ssl.SSLObject | ssl.SSLSocket) -> str:
    """Names of the certificate that the other side showed, also where it was refused; empty: it showed none."""
    chain: Sequence[Any] | None = getattr(getattr(side, "_sslobj", None), "get_verified_chain", tuple)()
    return _names_of(chain[0].get_info()) if chain else ""


def _names_in(path: Path) -> str:
    """Names of the certificate in a PEM file, the first; empty: none can be read."""
    try:
        return _names_of(_ssl._test_decode_cert(path))  # type: ignore[attr-defined] # there since Python 2.6
    except (OSError, ssl.SSLError):
        return ""


def load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    """Load this certificate into a context.

    Raises:
        ConfigError: A file can't be read, is not what it should be, or the two don't belong together.
    """
    cert, key = files.name("tls_cert"), files.name("tls_key")
    _pem(cert, files.cert, _CERTIFICATE)
    text = _pem(key, files.key, _KEY)
    if b"ENCRYPTED" in text:
        raise ConfigError(
            f"{key} {files.key}: wants a passphrase, for which nobody is there",
            hint=f"write it without: openssl pkey -in {files.key} -out FILE",
        )
    if stat.S_IMODE(files.key.stat().st_mode) & 0o007:
        raise ConfigError(f"{key} {files.key}: all users may read it", hint=f"chmod o= {files.key}")
    try:
        context.load_cert_chain(files.cert, files.key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"{key} {files.key}: is not the key of {cert} {files.cert}", hint="name a matching pair"
            ) from error
        raise ConfigError(
            f"{cert} {files.cert}, {key} {files.key}: {error.reason or 'can not be read'}",
            hint="`openssl x509 -noout -text -in FILE` and `openssl pkey -noout -in FILE` say more",
        ) from error


def _pem(name: str, path: Path, wanted: bytes) -> bytes:
    if not path.is_absolute():
        raise ConfigError(f"{name}: is empty", hint="give an absolute path")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}", hint="is it there, and may this user read it?") from error
    if wanted not in text:
        what = "private key" if wanted is _KEY else "certificate"
        raise ConfigError(f"{name} {path}: has no {what}", hint=f"PEM has a line -----BEGIN {what.upper()}-----")
    return text


def _damaged(name: str, path: Path) -> ConfigError:
    return ConfigError(f"{name} {path}: is damaged", hint="`openssl x509 -noout -text -in FILE` says more")


class _NamingHandshake(ssl.SSLObject):
    """A client's handshake whose error has the names of the certificate that it refuses, as a note."""

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as error:
            error.add_note(_shown_by(self))
            raise


class _NamingSocket(ssl.SSLSocket):
    """A blocking client's socket, with the same note."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except ssl.SSLCertVerificationError as error:
            error.add_note(_shown_by(self))
            raise


class _ServerContext(ssl.SSLContext):
    """A server's context, with the files that it was made of, for what is said of a handshake that fails."""

    files: TlsFiles = NO_FILES


class _TellingHandshake(ssl.SSLObject):
    """A server's handshake that says why it fails: to the client by TLS's alert, to the administrator by the log."""

    _fault: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        if self._fault is not None:
            raise self._fault
        try:
            super().do_handshake()
        except ssl.SSLWantReadError:
            raise
        except ssl.SSLError as error:
            self._say(error)
            is_about_it = isinstance(error, ssl.SSLCertVerificationError) or error.reason == _NONE_SHOWN
            if not is_about_it:  # it may not speak TLS at all, and would wait for an answer
                raise
            self._fault = error
            # As if there were more to come: so what OpenSSL has to say is sent. The client hangs up when it has it.
            raise ssl.SSLWantReadError from error

    def _say(self, error: ssl.SSLError) -> None:
        """Once a minute for each address and reason: whoever reaches the port may fail again and again. [L6]"""
        why = getattr(error, "verify_message", "") or (error.reason or str(error)).replace("_", " ").lower()
        left_out = _rarely.may((PEER.get(), why))
        if left_out is None:
            return
        files = self.context.files if isinstance(self.context, _ServerContext) else NO_FILES
        told = {"address": PEER.get(), "certificate": _shown_by(self), "hint": ""}
        if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _UNKNOWN_CODES:
            told["hint"] = f"if it is one of ours, put its CA into {files.name('tls_client_ca')} {files.ca}"
        elif (error.reason or "").endswith("ALERT_UNKNOWN_CA"):
            why, told["certificate"] = "the client does not know who signed our certificate", _names_in(files.cert)
            told["hint"] = f"give it the certificate of the CA of {files.name('tls_cert')} {files.cert}"
        fields = {name: text for name, text in told.items() if text}
        _log.warning("a TLS handshake failed", why=why, **fields, **({"more_like_it": left_out} if left_out else {}))


# ---------------------------------------------------------------------------------------------- what went wrong

_ENDS = "openssl x509 -noout -dates -in FILE"
# By X509_V_ERR_ numbers of OpenSSL: what is wrong with the certificate of a server, what to do.
_OF_SERVER = {
    9: ("is not valid yet", f"is a clock wrong? `date` here, and there {_ENDS}"),
    10: ("has expired", f"have it renewed there; {_ENDS}"),
    62: ("is for another name", "use a name that is in it, or have one made for this name (subjectAltName)"),
    64: ("is for another address", "use a name that is in it, or have one made for this address (subjectAltName)"),
}
# No issuer is known, a CA of its own that nobody knows, none locally, none for the leaf, a loop.
_UNKNOWN_CODES = frozenset({2, 18, 19, 20, 21})
_UNKNOWN = ("was signed by nobody who is known here", "name the certificate of its CA: {ca_file}")
# By the alert that a server sends: what it thinks of our certificate, what to do.
_OF_OURS = {
    "CERTIFICATE_EXPIRED": ("it says that {ours} has expired", f"have it renewed; {_ENDS}"),
    "CERTIFICATE_REVOKED": ("it says that {ours} was revoked", "have another one made"),
    "UNKNOWN_CA": ("it does not know who signed {ours}", "its CA must be in the manager's tls_client_ca"),
    "CERTIFICATE_REQUIRED": ("it wants a certificate, and was shown none", "name yours: {tls_cert} and {tls_key}"),
    "BAD_CERTIFICATE": ("it refuses {ours}", f"is it valid by now? {_ENDS}"),
    "UNSUPPORTED_CERTIFICATE": ("it refuses {ours}", "is it one for clients (extendedKeyUsage)?"),
}
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"})


def tls_problem(error: ssl.SSLError, where: str, files: TlsFiles = NO_FILES) -> FarsideError:
    """The error for a client with ``files`` that cannot reach the manager at ``where`` because of TLS.

    A client may hear of its own certificate only with the first answer: errors of reading are meant too.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        what, hint = _OF_SERVER.get(error.verify_code, _UNKNOWN)
        names = "".join(f" ({names})" for names in getattr(error, "__notes__", ())[:1] if names)
        return PeerError(f"{where}: its certificate{names} {what}", hint=_named(hint, files))
    reason = error.reason or ""
    for alert, (what, hint) in _OF_OURS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return PeerError(f"{where}: {what.format(ours=_ours(files))}", hint=_named(hint, files))
    if reason in _NO_TLS:
        return PeerError(
            f"{where}: does not use TLS", hint="write http:// or ws:// if it has no certificate on purpose"
        )
    return PeerError(f"{where}: TLS: {(reason or str(error)).replace('_', ' ').lower()}")


def _ours(files: TlsFiles) -> str:
    """Our certificate, by its file and its names, as far as these are known."""
    if not files.cert.is_absolute():
        return "our certificate"
    names = _names_in(files.cert)
    return f"our certificate {files.cert}" + (f" ({names})" if names else "")


def _named(hint: str, files: TlsFiles) -> str:
    """The hint with the names that the user knows settings by, and the file of CAs that is named already."""
    told = {setting: files.name(setting) for setting in ("ca_file", "tls_cert", "tls_key")}
    if files.ca.is_absolute():
        told["ca_file"] += f", now {files.ca}"
    return hint.format(**told)

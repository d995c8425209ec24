"""TLS of manager and clients: contexts from PEM files, and errors in one line.

How it works
  A server that asks for certificates verifies them in the handshake. asyncio, as of Python 3.11, drops the connection
  when that fails, without a word to either side; `_TellingHandshake` has the alert sent first, so that the client can
  say what is wrong with its certificate, and logs the reason here.
"""

import ssl
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from farside.errors import ConfigError, FarsideError, PeerError
from farside.log import get_log

_CERTIFICATE, _KEY, _REVOCATIONS = b"-----BEGIN CERTIFICATE-----", b"PRIVATE KEY-----", b"-----BEGIN X509 CRL-----"

_NONE_SHOWN = "PEER_DID_NOT_RETURN_A_CERTIFICATE"

_log = get_log("tls")


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
    if files.cert.is_absolute():
        load_own(context, files)
    return context


def server_tls(files: TlsFiles, *, is_required: bool = False) -> ssl.SSLContext:
    """What a server needs. With ``ca`` clients are asked for a certificate, and those that show a wrong one, or with
    ``is_required`` none, are turned away.

    Raises:
        ConfigError: A file can't be read or is not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_own(context, files)
    context.sslobject_class = _TellingHandshake
    if files.ca.is_absolute():
        load_clients_ca(context, files)
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        # Each connection is a handshake of its own: one that is resumed would not be asked for its certificate again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    return context


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
    return tuple(_subject(one) for code, one in both if code not in kept)


def _subject(certificate: Mapping[str, object]) -> str:
    """``commonName=our cluster``, as `openssl x509 -subject` says it."""
    parts = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    return ", ".join(f"{key}={value}" for part in parts for key, value in part)


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
            reason = getattr(error, "verify_message", "") or (error.reason or str(error)).replace("_", " ").lower()
            _log.warning("a TLS handshake failed", why=reason)
            is_about_it = isinstance(error, ssl.SSLCertVerificationError) or error.reason == _NONE_SHOWN
            if not is_about_it:  # it may not speak TLS at all, and would wait for an answer
                raise
            self._fault = error
            # As if there were more to come: so what OpenSSL has to say is sent. The client hangs up when it has it.
            raise ssl.SSLWantReadError from error


# ---------------------------------------------------------------------------------------------- what went wrong

_ENDS = "openssl x509 -noout -dates -in FILE"
# By X509_V_ERR_ numbers of OpenSSL: what is wrong with the certificate of a server, what to do.
_OF_SERVER = {
    9: ("is not valid yet", f"is a clock wrong? `date` here, and there {_ENDS}"),
    10: ("has expired", f"have it renewed there; {_ENDS}"),
    62: ("is for another name", "use a name that is in it, or have one made for this name (subjectAltName)"),
    64: ("is for another address", "use a name that is in it, or have one made for this address (subjectAltName)"),
}
_UNKNOWN = ("was signed by nobody who is known here", "name the certificate of its CA: {ca_file}")
# By the alert that a server sends: what it thinks of our certificate, what to do.
_OF_OURS = {
    "CERTIFICATE_EXPIRED": ("it says that our certificate has expired", f"have it renewed; {_ENDS}"),
    "CERTIFICATE_REVOKED": ("it says that our certificate was revoked", "have another one made"),
    "UNKNOWN_CA": ("it does not know who signed our certificate", "its CA must be in the manager's tls_client_ca"),
    "CERTIFICATE_REQUIRED": ("it wants a certificate, and was shown none", "name yours: {tls_cert} and {tls_key}"),
    "BAD_CERTIFICATE": ("it refuses our certificate", f"is it valid by now? {_ENDS}"),
    "UNSUPPORTED_CERTIFICATE": ("it refuses our certificate", "is it one for clients (extendedKeyUsage)?"),
}
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL"})


def tls_problem(error: ssl.SSLError, where: str, name: Callable[[str], str] = str) -> FarsideError:
    """The error for a client that cannot reach the manager at ``where`` because of TLS; ``name`` as in `TlsFiles`.

    A client may hear of its own certificate only with the first answer: errors of reading are meant too.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        what, hint = _OF_SERVER.get(error.verify_code, _UNKNOWN)
        return PeerError(f"{where}: its certificate {what}", hint=_named(hint, name))
    reason = error.reason or ""
    for alert, (what, hint) in _OF_OURS.items():
        if reason.endswith(f"ALERT_{alert}"):
            return PeerError(f"{where}: {what}", hint=_named(hint, name))
    if reason in _NO_TLS:
        return PeerError(
            f"{where}: does not use TLS", hint="write http:// or ws:// if it has no certificate on purpose"
        )
    return PeerError(f"{where}: TLS: {(reason or str(error)).replace('_', ' ').lower()}")


def _named(hint: str, name: Callable[[str], str]) -> str:
    return hint.format(**{setting: name(setting) for setting in ("ca_file", "tls_cert", "tls_key")})

"""Keys and certificates of a device's TLS, of the files that its settings name, read again when one has changed.

A change is taken up by the next client: a key that was taken out, or a certificate that was revoked, lets in nobody any
more, and connections that stand go on. Files that are not usable change nothing, and the log says so.
"""

from farside.blockdev.client.tls_users import read_users
from farside.config import BlockdevConfig
from farside.errors import ConfigError
from farside.kmod_shim.engine.tls import Certificates, Tls
from farside.log import get_log
from farside.whole_file import file_stamp

log = get_log("blockdev.clients")


def read_tls(config: BlockdevConfig) -> Tls:
    """What the engine needs for its sessions.

    Raises:
        ConfigError: a file can't be used, or this build or machine has no GnuTLS; one line.
    """
    users = read_users(config.tls_psk_file) if config.tls_psk_file.is_absolute() else {}
    return Tls(users, _read_certificates(config) if config.tls_cert.is_absolute() else None)


def _read_certificates(config: BlockdevConfig) -> Certificates:
    # Only here: a device without certificates has no use for OpenSSL's module, and its memory may be locked.
    from farside.tls import TlsFiles, check_server

    files = TlsFiles(ca=config.tls_client_ca, cert=config.tls_cert, key=config.tls_key)
    check_server(files)
    return Certificates(
        cert=files.cert.read_bytes(), key=files.key.read_bytes(), client_ca=files.ca.read_bytes()
    )  # fmt: skip


class TlsKeys:
    """What `read_tls` says, as it is now."""

    def __init__(self, config: BlockdevConfig, *, must: bool) -> None:
        """``must``: raises ConfigError where the files are not usable; otherwise nobody comes in until they are."""
        self._config = config
        self._files = (config.tls_psk_file, config.tls_cert, config.tls_key, config.tls_client_ca)
        self._tls: Tls | None = None
        self._seen: object = None
        self._refused = ""  # what was last said of the files
        try:
            self._read()
        except ConfigError as error:
            if must:
                raise
            self._say(error)

    def current(self) -> Tls:
        """The keys. Raises ConfigError: there have been none yet that are usable."""
        try:
            if self._stamp() != self._seen:
                self._read()
        except ConfigError as error:
            # Tried again for each client: what the files lack may come without a change of them.
            self._say(error)
        if self._tls is None:
            raise ConfigError(self._refused)
        return self._tls

    def _read(self) -> None:
        # The stamp before the files: a change in between is then seen as one, and read again.
        stamp = self._stamp()
        tls, before = read_tls(self._config), self._tls
        self._tls, self._seen, self._refused = tls, stamp, ""
        if before is not None:
            before.destroy()
            log.info("the files of TLS have changed, and count for clients that come from now on")

    def _stamp(self) -> object:
        return tuple(file_stamp(path) for path in self._files if path.is_absolute())

    def _say(self, error: ConfigError) -> None:
        if str(error) != self._refused:
            self._refused = str(error)
            log.error("the files of TLS are not usable; those that were stay in use", reason=error)

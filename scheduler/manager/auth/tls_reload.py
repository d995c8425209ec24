"""TLS reload while a manager runs: its own certificate, its clients' CAs, and revocation lists.

They are looked at now and then and taken up for connections to come; those that stand go on. A file that is half
written, or damaged, changes nothing until it is sound.
"""

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farside.config import ManagerConfig
from farside.errors import ConfigError
from farside.log import get_log
from farside.tls import TlsFiles, load_clients_ca, load_own, server_tls

PERIOD_S = 20.0

_log = get_log("manager")


def files_of(config: ManagerConfig) -> TlsFiles:
    """The files of a manager's own certificate, and of those that it trusts."""
    return TlsFiles(ca=config.tls_client_ca, cert=config.tls_cert, key=config.tls_key)


def tls_of(config: ManagerConfig) -> ssl.SSLContext | None:
    """TLS context of a manager; None: it has no certificate.

    Raises:
        ConfigError: A file can't be used.
    """
    if not config.tls_cert.is_absolute():
        return None
    return server_tls(files_of(config), is_required=config.tls_client_required)


def renewed_tls(config: ManagerConfig, first: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """TLS context of a process that is started again: of the files as they are now.

    Where these can't be used any more it is ``first``, which was made of them when the manager started.
    """
    try:
        return tls_of(config)
    except ConfigError as error:
        _log.warning("the certificate of the manager's start is in use, as its files can't be read", reason=error)
        return first


class TlsReload:
    """The certificates of one context."""

    def __init__(self, context: ssl.SSLContext, files: TlsFiles, *, is_of_files: bool = True) -> None:
        """``is_of_files``: ``context`` was made of ``files`` a moment ago, and not earlier."""
        self._context = context
        self._files = files
        self._own = (files.cert, files.key)
        self._known: dict[tuple[Path, ...], list[int]] = {}
        for paths in self._watched() if is_of_files else ():
            with suppress(OSError):  # it has gone since; when it is back it is read
                self._known[paths] = _stamp(paths)

    async def run(self) -> None:
        """Looks until it is cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            self.look()

    def look(self) -> None:
        """Takes up what has changed."""
        for paths, take_up in self._watched().items():
            try:
                stamp = _stamp(paths)
                if self._known.get(paths) != stamp:
                    take_up()
                    self._known[paths] = stamp
            # The stamp is not kept, so a half-written file is tried again at the next look.
            except (OSError, ConfigError) as error:  # the old one is as good as it was
                _log.warning("a certificate can't be reloaded", file=paths[0], reason=error)

    def _watched(self) -> dict[tuple[Path, ...], Callable[[], None]]:
        watched: dict[tuple[Path, ...], Callable[[], None]] = {self._own: self._take_own}
        return watched | ({(self._files.ca,): self._take_cas} if self._files.ca.is_absolute() else {})

    def _take_own(self) -> None:
        load_own(self._context, self._files)
        _log.info("a renewed certificate is in use", file=self._files.cert)

    def _take_cas(self) -> None:
        gone = load_clients_ca(self._context, self._files)
        _log.info("the CAs of tls_client_ca, and their revocation lists, are in use", file=self._files.ca)
        if gone:
            hint = "systemctl restart farside-manager; jobs run on"
            _log.warning(
                "a CA was removed from tls_client_ca, but is trusted until a restart", ca="; ".join(gone), hint=hint
            )


def _stamp(paths: tuple[Path, ...]) -> list[int]:
    return [os.stat(path).st_mtime_ns for path in paths]

"""The cluster keys as they are now: read again when the file changes, so that a key is changed without a restart."""

from pathlib import Path

from farside.daemon.keys import read_keys
from farside.errors import ConfigError
from farside.log import get_log

log = get_log("blockdev.keys")


class KeyRing:
    """The keys of one key file; the last good ones stand when a change of it is not usable."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError when there is no usable key at the start."""
        self._path = path
        self._keys = read_keys(path)
        self._seen = self._stamp()

    def current(self) -> tuple[bytes, ...]:
        """The keys, preferred first."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            try:
                self._keys = read_keys(self._path)
            except ConfigError as error:
                log.error("the key file was not taken, the keys of before stay", reason=error)
        return self._keys

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size

"""Web sessions: a read-only cookie that a browser gets for a token.

How it works
  The page sends a token once, and gets a cookie that scripts can't read (HttpOnly) and other sites can't send
  (SameSite=Strict). The token itself is in neither the cookie nor an address nor the browser's storage. The cookie says
  which token it was made for and until when, with a MAC by a key of this manager's own; nothing is kept of it here, so
  it outlives a restart, and ends when the token leaves the tokens' file.

  Cookies go to every port of a host, so one could be stolen by a service beside the manager. What such a thief could
  do with it is to look, for some hours: a cookie counts for requests that change nothing (caller.py).

  Rejected: the token in sessionStorage, where every script of the page, and every extension, can read all its power.
"""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from farside.whole_file import write_whole

COOKIE = "farside"
LASTS_S = 12 * 3600.0
KEY_FILE = "web.key"
_KEY_BYTES = 32


class WebSessions:
    """Makes cookies and reads them."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def open(self, token_hash: str, now_s: float) -> str:
        """The cookie for a token that is known by this hash."""
        until_s = int(now_s + LASTS_S)
        mark = mark_of(token_hash)
        return f"{mark}.{until_s}.{self._mac(mark, until_s)}"

    def mark_in(self, cookie: str, now_s: float) -> str | None:
        """The mark of the token that a cookie was made for; None: it is none of ours, or over."""
        mark, _, rest = cookie.partition(".")
        until, _, mac = rest.partition(".")
        # isdigit accepts digits of other scripts, and compare_digest raises TypeError for text that is not ASCII.
        if not (until.isascii() and until.isdigit() and len(until) < 16 and mac.isascii()):
            return None
        # compare_digest takes the same time wherever the two differ, so a MAC can't be guessed digit by digit.
        is_ours = hmac.compare_digest(mac, self._mac(mark, int(until)))
        return mark if is_ours and now_s < int(until) else None

    def _mac(self, mark: str, until_s: int) -> str:
        return hmac.new(self._key, f"{mark}.{until_s}".encode(), hashlib.sha256).hexdigest()


def mark_of(token_hash: str) -> str:
    """Name of a token in a cookie: not its hash, which could be compared with a stolen tokens' file."""
    return hashlib.sha256(f"cookie of {token_hash}".encode()).hexdigest()[:32]


def marks_of(token_hashes: Mapping[str, object]) -> dict[str, str]:
    """Hash by mark."""
    return {mark_of(one): one for one in token_hashes}


def session_key(folder: Path) -> bytes:
    """This manager's key, made at its first start and kept in its state folder, readable by its user only."""
    file = folder / KEY_FILE
    try:
        key = file.read_bytes()
        if len(key) == _KEY_BYTES:
            return key
    except FileNotFoundError:
        pass
    key = secrets.token_bytes(_KEY_BYTES)
    write_whole(file, key)
    return key

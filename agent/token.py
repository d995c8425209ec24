"""This node's token: the operator's file, and what the node got for an invitation in it."""

import os
import stat
from pathlib import Path

from msgspec import Struct

from farside.agent.mutual_proof import INVITATION, key_of
from farside.agent.run.record_file import read_record, write_record
from farside.errors import ConfigError
from farside.proof import key_id

TOKEN_BYTES_MAX = 512
LASTING_FILE = "node.token"  # in the state folder


class _Lasting(Struct, frozen=True, kw_only=True):
    """Content of LASTING_FILE. ``is_settled``: the manager has welcomed the node since, so it has the token too."""

    invited_by: str  # name of the invitation's key, in hex
    token: str
    is_settled: bool


class NodeToken:
    """The token by which this node and its manager know each other.

    The operator writes a token, or an invitation, into ``file``. An invitation is used once; the token that the node
    gets for it is kept in ``state_dir``, and counts for as long as that invitation stands in the file.
    """

    def __init__(self, file: Path, state_dir: Path) -> None:
        self._file, self._lasting = file, state_dir / LASTING_FILE

    def read(self) -> str:
        """What the operator wrote. Raises ConfigError as `read_token` does."""
        return read_token(self._file)

    def to_try(self) -> tuple[str, ...]:
        """The tokens to connect by, the most likely first.

        Raises:
            ConfigError: the operator's file is not right.
            Damaged: the node's own is not as it was written.
        """
        told = self.read()
        if not told.startswith(INVITATION):
            return (told,)
        kept = read_record(self._lasting, _Lasting)
        if kept is None or kept.invited_by != _name(told):
            return (told,)
        # The agent may have ended after it had written the token, and before the manager had.
        return (kept.token,) if kept.is_settled else (kept.token, told)

    def keep(self, invitation: str, token: str, *, is_settled: bool) -> None:
        """Writes down the token for an invitation: before the manager hears of it, and once more when it has it.

        Raises:
            OSError: it cannot be written.
        """
        write_record(self._lasting, _Lasting(invited_by=_name(invitation), token=token, is_settled=is_settled))


def _name(token: str) -> str:
    return key_id(key_of(token)).hex()


def read_token(path: Path) -> str:
    """The token: one line of printable characters without spaces.

    Raises:
        ConfigError: the file is missing, another user's, can be read by others, or holds something else.
    """
    try:
        # O_NONBLOCK: a fifo in its place must not hang the start.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(f"token_file {path}: {error.strerror}", hint="the manager's operator makes one") from error
    try:
        # Of the open file: the path may name another one by then.
        told = os.fstat(fd)
        if told.st_uid not in (0, os.geteuid()):
            # Its owner may write into it at any time, whatever its mode is now.
            hint = f"write it anew as root, or chown root {path}"
            raise ConfigError(f"token_file {path}: it belongs to uid {told.st_uid}", hint=hint)
        if stat.S_IMODE(told.st_mode) & 0o077:
            raise ConfigError(f"token_file {path}: others may read it", hint=f"chmod 600 {path}")
        # One byte more than may be there shows that it is too long.
        text = os.read(fd, TOKEN_BYTES_MAX + 1)
    finally:
        os.close(fd)
    token = text.decode(errors="replace").strip()
    is_plain = token.isascii() and token.isprintable() and " " not in token
    if not token or not is_plain or len(text) > TOKEN_BYTES_MAX:
        raise ConfigError(f"token_file {path}: holds no token", hint="one line, as the manager printed it")
    return token

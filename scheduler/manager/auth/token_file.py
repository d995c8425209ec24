"""The tokens' file: who has a token, in what role, until when. Made by `farside token`, read again when it changes."""

import hashlib
import math
import os
import re
import secrets
import stat
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from farside.errors import ConfigError
from farside.proof import key_id

_HASH = re.compile("[0-9a-f]{64}")
_NEEDED = {"name", "role", "sha256"}
# Only where it is needed: the version before refuses a file that has it.
_EXPIRES = "expires"


class Role(StrEnum):
    """Role of a caller: users see and stop their own jobs, operators all; nodes only report."""

    USER = "user"
    OPERATOR = "operator"
    NODE = "node"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRow:
    """One token.

    Attributes:
        name: Of the user or node; empty in a token for any node, as versions before made them: it lets no node in.
        sha256: In hex; the key of its owner's and this manager's proof to each other.
        expires_s: Until when it counts, seconds since the epoch; inf: until it is revoked.
    """

    name: str
    role: Role
    sha256: str
    expires_s: float = math.inf

    @property
    def id(self) -> str:
        """Its name among tokens of one owner: 16 characters that do not reveal it."""
        return key_id(bytes.fromhex(self.sha256)).hex()


def hash_of(token: str) -> str:
    """Hash of a token in the tokens' file: the token is random and long, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def read_tokens(file: Path, *, owners: frozenset[int] | None = None) -> tuple[TokenRow, ...]:
    """The rows of a tokens' file: ``[[token]]`` with name, role, sha256, and maybe expires.

    ``owners``: uids whose it may be; None: anybody's, as root lists the tokens of whatever user the manager has.

    Raises:
        ConfigError: It can't be read, is another user's, others may read or change it, or an entry is not right.
    """
    try:
        with file.open("rb") as stream:
            told = os.fstat(stream.fileno())
            if owners is not None and told.st_uid not in owners:
                hint = f"look what is in it; then chown {max(owners)} {file}"
                raise ConfigError(f"{file}: it belongs to uid {told.st_uid}, who can make operators", hint=hint)
            # Whoever reads a hash can pose as the manager to that node. [H2]
            if told.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                raise ConfigError(f"{file}: others may read or change it", hint=f"chmod 600 {file}")
            rows = tomllib.load(stream).get("token", [])
        return tuple(_row(file, number, row) for number, row in enumerate(rows, 1))
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ConfigError(f"{file}: {reason}", hint="make tokens by `farside token`") from error


def _row(file: Path, number: int, row: dict[str, Any]) -> TokenRow:
    if set(row) - {_EXPIRES} != _NEEDED or not _HASH.fullmatch(row["sha256"]):
        raise ConfigError(f"{file}: token {number}: needs name, role and sha256", hint="see `farside token`")
    expires = row.get(_EXPIRES)
    return TokenRow(
        name=row["name"],
        role=Role(row["role"]),
        sha256=row["sha256"],
        expires_s=math.inf if expires is None else expires.timestamp(),
    )


def add_token(file: Path, name: str, role: Role, *, expires_s: float = math.inf) -> str:
    """Makes a token, appends its hash to the file, which only its owner may read, and returns it.

    Raises:
        ConfigError: The name is none.
        OSError: The file can't be written.
    """
    if any(character in name for character in '"\\\n') or not name.isprintable():
        raise ConfigError(f"'{name:.60}' is not a name of a user or node")
    if not name.strip():
        hint = "give each node a token of its own: farside token NAME"
        raise ConfigError("a token needs a name: there are none for any node", hint=hint)
    token = secrets.token_urlsafe(32)
    row = TokenRow(name=name, role=role, sha256=hash_of(token), expires_s=expires_s)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    with file.open("a") as stream:
        stream.write(_text_of(row))
    return token


def revoke_tokens(file: Path, names: frozenset[str]) -> tuple[TokenRow, ...]:
    """Takes the tokens of these names, or of these ids, out of the file, and returns their rows.

    Raises:
        ConfigError: A name has none; nothing was changed.
        OSError: The file can't be written; the old one stands.
    """
    rows = read_tokens(file)
    gone = tuple(row for row in rows if {row.name, row.id} & names)
    unknown = sorted(names - {one for row in gone for one in (row.name, row.id)})
    if unknown:
        raise ConfigError(f"{file}: no token of {', '.join(unknown)}", hint="see `farside tokens list`")
    owner = file.stat()
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w") as stream:
            stream.writelines(_text_of(row) for row in rows if row not in gone)
            stream.flush()
            # The manager has a user of its own, who must go on reading it.
            os.fchown(fd, owner.st_uid, owner.st_gid)
            os.fchmod(fd, stat.S_IMODE(owner.st_mode))
            os.fsync(fd)
        fresh.replace(file)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise
    return gone


def _text_of(row: TokenRow) -> str:
    told = ""
    if math.isfinite(row.expires_s):
        told = f"{_EXPIRES} = {datetime.fromtimestamp(row.expires_s, UTC).isoformat()}\n"
    return f'[[token]]\nname = "{row.name}"\nrole = "{row.role}"\nsha256 = "{row.sha256}"\n{told}'

"""Checksums that chain the rows of the log, so that damage is noticed. [L8]

The database's own checks find a page that is cut short; a digit that changed within JSON that stays valid they do not.
The sum has no key: it is for disks, memory and mistakes, and not against who may write the store. Rows that a version
before this one wrote have none, and the oldest row that is left, whose predecessor is in the archive, is not checked.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from farside.errors import RemoteProtocolError

_NUMBERS = struct.Struct("<qdqq")
_BYTES = 16


def link(before: str | None, row: Mapping[str, Any]) -> str:
    """Chain of a row behind that of the row before it, in hex; None: there is none."""
    digest = hashlib.blake2b((before or "").encode(), digest_size=_BYTES)
    digest.update(_NUMBERS.pack(row["seq"], row["at_s"], row["generation"], row["version"]))
    for name in ("cause", "kind", "subject", "body"):
        text = str(row[name]).encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return digest.hexdigest()


def check_chain(rows: Sequence[Mapping[str, Any]]) -> None:
    """Does nothing where rows that follow each other are as they were written.

    Raises:
        RemoteProtocolError: One was changed.
    """
    for before, row in pairwise(rows):
        if before["chain"] and row["chain"] and link(before["chain"], row) != row["chain"]:
            raise RemoteProtocolError(
                f"entry {row['seq']} of the log is not as it was written: its checksum does not fit",
                hint="stop the manager, and restore a backup (`farside store restore`)",
            )

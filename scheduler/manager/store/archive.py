"""The archive: old entries of the log in gzip files, one line of JSON for each entry.

How it works
  A file is named by its first and last entry, and has its name only once it is whole and on the disk. Entries are taken
  out of the log after that. Who is killed between the two leaves them in both; they count once.
"""

import gzip
import os
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from farside.errors import FarsideError, RemoteProtocolError
from farside.scheduler.manager.model.event import Entry
from farside.scheduler.manager.store.entry_row import entry_of
from farside.whole_file import sync_folder

_NAME = re.compile(r"log-(\d+)-(\d+)\.jsonl\.gz")
_ENCODER = msgspec.json.Encoder()


class _Line(Struct, frozen=True, kw_only=True):
    seq: int
    at_s: float
    generation: int
    cause: str
    version: int
    kind: str
    subject: str
    body: str
    chain: str | None = None  # as in the log; those of before have none


_DECODER = msgspec.json.Decoder(_Line)


class Archive:
    """A folder of such files. It is made when the first is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last_seq(self) -> int:
        """The last entry that is here; 0: there is none."""
        return max((last for _, last, _ in self._files()), default=0)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether the last entry that is here is this one of a log, and not of another log."""
        last = max(self._files(), key=lambda found: found[1], default=None)
        # gzip has no index: the last line is found by reading all of the file, and only that line is kept in memory.
        lines = deque(_lines(last[2]) if last is not None else (), maxlen=1)
        if not lines:
            return False
        # A manager of the version before knows no chain and archives none.
        known = dict(row) if lines[0].chain is not None else {**row, "chain": None}
        return bool(msgspec.to_builtins(lines[0]) == known)

    def add(self, rows: Iterable[Mapping[str, Any]], first: int, last: int) -> Path:
        """Writes entries ``first`` to ``last``, which ``rows`` are, into a file of their own.

        Raises:
            FarsideError: The disk is full, or the folder can't be written; nothing of them is here.
        """
        path = self.folder / f"log-{first:012d}-{last:012d}.jsonl.gz"
        part = path.with_name(f".{path.name}.part")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.unlink(missing_ok=True)
            # For its owner only, whatever the folder's mode is: jobs' environments have secrets. [L3]
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                # Without name and time in its header the same entries always give the same bytes.
                with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
                    for row in rows:
                        packed.write(_ENCODER.encode(row) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            # The content is synced before the name, and the folder after it: a crash leaves a whole file or none. Only
            # then may the log lose these entries.
            part.replace(path)
            sync_folder(self.folder)
        except OSError as error:
            part.unlink(missing_ok=True)
            hint = "the log keeps its old entries until it can"
            raise FarsideError(f"{path}: {error.strerror}", hint=hint) from error
        return path

    def entries(self) -> Iterator[Entry]:
        """All of them in their order, each once.

        Raises:
            RemoteProtocolError: A file is damaged.
        """
        seen = 0
        for _, last, path in sorted(self._files()):
            # Files may overlap where a run was killed before the log lost what it had archived.
            if last <= seen:
                continue
            for line in _lines(path):
                if line.seq > seen:
                    seen = line.seq
                    row = (line.seq, line.at_s, line.generation, line.cause, line.kind, line.body, line.version)
                    yield entry_of(row)

    def _files(self) -> list[tuple[int, int, Path]]:
        found = ((_NAME.fullmatch(path.name), path) for path in self.folder.glob("log-*.jsonl.gz"))
        return [(int(match[1]), int(match[2]), path) for match, path in found if match is not None]


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with gzip.open(path, "rb") as packed:
            for text in packed:
                yield _DECODER.decode(text)
    except (OSError, EOFError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RemoteProtocolError(f"{path}: {error}", hint="the file is damaged; take it from a backup") from error

"""Checkpoints of an iterative job: model, the sums pulled last, and the state of each input block.

    FOLDER/i-<iteration>/complete            what is whole: written last
                         model.<run>         the model and the sums, by rank 0
                         state-<rank>.<run>  the state of this rank's blocks, by block

Blocks are numbered over the whole input, so that any number of workers can go on from one. Each file is written whole
or not at all, and the last two checkpoints that are complete and not known to be damaged are kept.
"""

import io
import os
import re
import shutil
import stat
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from farside.errors import ConfigError
from farside.log import get_log
from farside.training.loop.block import Arrays
from farside.whole_file import write_whole

_log = get_log("training")

VERSION = 1
KEPT = 2
_COMPLETE = "complete"
COMPLETE_BYTES_MAX = 1 << 20
"""What a checkpoint says of itself is far smaller: a line for each of 64 workers."""
_NAME = re.compile(r"i-(\d{1,15})")
_MODEL, _SUM = "model/", "sum/"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete checkpoint says of itself.

    Attributes:
        version: `VERSION`.
        iteration: Before which it was made.
        blocks: Number of blocks of the whole input.
        fingerprint: Of program, input and options.
        files: Check sums (crc32) by name.
        finished: How many iterations the job has, as its program has said by `finish`; None: it has said nothing.
    """

    version: int
    iteration: int
    blocks: int
    fingerprint: str
    files: dict[str, int]
    finished: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a job goes on from: before iteration ``iteration``, whose sums are pulled already.

    ``finished``: how many iterations the job has, as its program has said by `finish`; None: it has said nothing.
    """

    iteration: int
    model: Arrays
    sums: Arrays
    states: Mapping[int, Arrays]
    finished: int | None = None


class Checkpoints:
    """The checkpoints of one job in a folder that all its workers see."""

    def __init__(self, folder: Path, *, fingerprint: str, blocks: int, rank: int, workers: int) -> None:
        """Makes the folder, if need be.

        Args:
            folder: Where they are.
            fingerprint: Says program, input and options: only what has the same one is gone on from.
            blocks: Number of blocks of the whole input.
            rank: This worker's.
            workers: How many there are.

        Raises:
            ConfigError: the folder can't be used.
        """
        self._folder, self._fingerprint, self._blocks = folder, fingerprint, blocks
        self._rank, self._workers = rank, workers
        self._open: dict[int, tuple[int, int | None]] = {}  # by iteration: number of this start, and `finished`
        self._damaged = set[int]()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"checkpoint folder {folder}: {error.strerror}") from error

    def newest(self, numbers: Iterable[int]) -> Restored | None:
        """The newest one that is complete and whole, with the state of these blocks; None: there is none.

        Raises:
            ConfigError: it is of another job, input or version, or all are damaged; nothing begins anew over them.
        """
        for iteration in sorted(self._iterations(), reverse=True):
            folder = self._at(iteration)
            try:
                record = msgspec.json.decode(_content(folder / _COMPLETE, COMPLETE_BYTES_MAX), type=Record)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self._pass_over(iteration, error)
                continue
            self._check(folder, record)
            try:
                return self._read(folder, record, frozenset(numbers))
            except (OSError, ValueError) as error:
                if (folder / _COMPLETE).exists():  # otherwise another start's clean-up has taken it away
                    self._pass_over(iteration, error)
        if self._damaged:
            names = ", ".join(f"i-{iteration}" for iteration in sorted(self._damaged))
            raise ConfigError(
                f"checkpoint folder {self._folder}: all of its checkpoints are damaged ({names})",
                hint="restore one from a copy, or remove them to begin anew",
            )
        return None

    def _pass_over(self, iteration: int, error: Exception) -> None:
        self._damaged.add(iteration)
        _log.warning("a damaged checkpoint is passed over", folder=self._at(iteration), reason=error)

    def write(
        self,
        iteration: int,
        run: int,
        states: Mapping[int, Arrays],
        model: Arrays,
        sums: Arrays,
        *,
        finished: int | None = None,
    ) -> None:
        """Writes this rank's part; at rank 0 the model too. ``finished``: as in `Restored`.

        Raises:
            OSError: it can't be written; what was there before stays.
        """
        folder = self._at(iteration)
        folder.mkdir(exist_ok=True)
        state = {f"{number}/{name}": array for number, arrays in states.items() for name, array in arrays.items()}
        write_whole(folder / _state_name(self._rank, run), _packed(state))
        if self._rank == 0:
            both = {_MODEL + name: array for name, array in model.items()}
            both |= {_SUM + name: array for name, array in sums.items()}
            write_whole(folder / f"model.{run}", _packed(both))
            self._open[iteration] = run, finished

    def complete(self) -> bool:
        """At rank 0: closes those whose parts are all there, and removes what is too old; True where none is open."""
        for iteration, (run, finished) in sorted(self._open.items()):
            folder = self._at(iteration)
            names = [f"model.{run}", *(_state_name(rank, run) for rank in range(self._workers))]
            if all((folder / name).exists() for name in names):
                files = {name: zlib.crc32((folder / name).read_bytes()) for name in names}
                record = Record(
                    version=VERSION, iteration=iteration, blocks=self._blocks, fingerprint=self._fingerprint,
                    files=files, finished=finished,
                )  # fmt: skip
                write_whole(folder / _COMPLETE, msgspec.json.encode(record))
                del self._open[iteration]
                self._damaged.discard(iteration)
                self._remove_old(iteration)
        return not self._open

    def _at(self, iteration: int) -> Path:
        return self._folder / f"i-{iteration}"

    def _iterations(self) -> list[int]:
        found = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return [int(one[1]) for one in found if one]

    def _check(self, folder: Path, record: Record) -> None:
        hint = "name another checkpoint folder, or remove this one"
        if record.version != VERSION:
            raise ConfigError(f"{folder}: a checkpoint of version {record.version}; this is {VERSION}", hint=hint)
        if (record.fingerprint, record.blocks) != (self._fingerprint, self._blocks):
            theirs, ours = (
                f"{record.fingerprint}, {record.blocks} blocks",
                f"{self._fingerprint}, {self._blocks} blocks",
            )
            raise ConfigError(f"{folder}: a checkpoint of another job: {theirs}; this one is {ours}", hint=hint)

    def _read(self, folder: Path, record: Record, numbers: frozenset[int]) -> Restored:
        model: Arrays = {}
        sums: Arrays = {}
        states: dict[int, Arrays] = {}
        # All files, also those of other ranks' blocks: all workers pass over the same checkpoints.
        for name, check in record.files.items():
            data = _content(folder / name)
            if zlib.crc32(data) != check:
                raise ValueError(f"{name} is damaged")
            for key, array in _unpacked(data).items():
                if name.startswith("model."):
                    (model if key.startswith(_MODEL) else sums)[key.partition("/")[2]] = array
                else:
                    number, _, what = key.partition("/")
                    if int(number) in numbers:
                        states.setdefault(int(number), {})[what] = array
        return Restored(iteration=record.iteration, model=model, sums=sums, states=states, finished=record.finished)

    def _remove_old(self, newest: int) -> None:
        # Whatever was begun before and not completed is of no use either.
        whole = (i for i in self._iterations() if i not in self._damaged and (self._at(i) / _COMPLETE).exists())
        done = sorted(whole, reverse=True)
        kept = {*done[:KEPT], *self._open}
        for iteration in self._iterations():
            if iteration not in kept and iteration < newest:
                shutil.rmtree(self._at(iteration), ignore_errors=True)


def _content(path: Path, most_bytes: int | None = None) -> bytes:
    """A file's bytes.

    Raises:
        OSError: it can't be read.
        ValueError: it is no regular file, such as a pipe that nobody writes to or a device without end, or too large.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{path.name} is no regular file")
        if most_bytes is not None and found.st_size > most_bytes:
            raise ValueError(f"{path.name} has {found.st_size} bytes, more than {most_bytes}")
        return file.read()


def _state_name(rank: int, run: int) -> str:
    return f"state-{rank}.{run}"


def _packed(arrays: Arrays) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _unpacked(data: bytes) -> Arrays:
    with np.load(io.BytesIO(data), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}

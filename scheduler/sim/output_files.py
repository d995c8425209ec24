"""Output files: written completely or not at all, and never over an input or another output.

A file is written beside its place and put there in one step. What is no regular file (a pipe, a terminal) is written as
it stands, and never opened before: the reader of a pipe would take that for the end.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from farside.errors import ConfigError, FarsideError

# Names of what a process has open; put in their place, a file would take the name away from everybody.
_OPEN_ALREADY = ("/dev/", "/proc/")
_OTHER_FILE = "name a file that can be written"


def is_stream(path: Path) -> bool:
    """Whether a path must be written in place: a pipe, a terminal or another special file."""
    return str(path.absolute()).startswith(_OPEN_ALREADY) or (path.exists() and not path.is_file())


def check_writable(paths: Iterable[Path | None]) -> None:
    """Check before a long simulation that a result can be written.

    Raises:
        ConfigError: A file cannot be written.
    """
    for path in paths:
        if path is None:
            continue
        try:
            _check(path)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", hint=_OTHER_FILE) from error


def _check(path: Path) -> None:
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder", hint=_OTHER_FILE)
    if is_stream(path):
        if not os.access(path, os.W_OK):
            raise ConfigError(f"{path}: cannot be written", hint=_OTHER_FILE)
        return
    if path.exists():
        # Opened for writing without a change: neither truncated nor written.
        with path.open("ab"):
            pass
    beside = _beside(path)
    # Tried, as a folder may be read-only, full, or of another owner.
    with beside.open("xb"):
        pass
    beside.unlink()


def check_apart(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None]) -> None:
    """Check before a run that no result would replace an input or another result.

    Args:
        outputs: Files to write, by the option that names them.
        inputs: Files to read, likewise.

    Raises:
        ConfigError: Two are the same file; with both names.
    """
    taken = {_identity(path): name for name, path in inputs.items() if path is not None and not is_stream(path)}
    for name, path in outputs.items():
        if path is None or is_stream(path):
            continue
        other = taken.setdefault(_identity(path), name)
        if other != name:
            raise ConfigError(f"{name} {path}: is the file of {other} as well", hint="name another file")


def _identity(path: Path) -> tuple[int, int] | Path:
    try:
        found = path.stat()
    except OSError:
        return path.resolve()  # not there yet
    # By device and inode, so that two links to one file are found.
    return found.st_dev, found.st_ino


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Temporary path for output, moved to ``path`` when complete; it keeps the file name's ending."""
    if is_stream(path):
        yield path
        return
    place, beside = path.resolve(), _beside(path)
    try:
        yield beside
        if place.exists():
            # The rights of the file that is replaced.
            shutil.copymode(place, beside)
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    place = path.resolve()  # of a link it is the file that is replaced
    return place.with_name(f".part.{os.getpid()}.{place.name}")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Temporary path as in `replacing`; errors such as a full disk become one line.

    Raises:
        FarsideError: It went wrong.
    """
    hint = "it is not whole" if is_stream(path) else "it was left as it was"
    try:
        with replacing(path) as place:
            yield place
    except OSError as error:
        raise FarsideError(f"{path}: {error.strerror or error}", hint=hint) from error

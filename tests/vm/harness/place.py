"""Where images are kept: one folder for each content, shared by all checkouts of a user."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

# Image, snapshot and kernel are about 1.2 GB; two let one go back and forth between two branches.
KEPT = 2
_SCRATCH = "fs-vm-"
WORK = ".work"  # suffix of what is being built


def cache_folder() -> Path:
    """`FARSIDE_VM_CACHE`, else `~/.cache/farside/vm`; made when it is not there."""
    named = os.environ.get("FARSIDE_VM_CACHE")
    folder = Path(named) if named else Path.home() / ".cache/farside/vm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def content_key(folder: Path, *more: str) -> str:
    """A short name for the contents of every file below `folder`, and for `more`."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        body = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {path.stat().st_mode & 0o111:o} {len(body)}\n".encode() + body)
    for text in more:
        digest.update(f"{len(text)} {text}\n".encode())
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds the file's lock; a second process waits, since what is built here is built once for both."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Keeps `folder` from being dropped by another process, and marks it as used now."""
    with (folder / "in-use").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        os.utime(folder)
        yield


@contextmanager
def scratch_folder(parent: Path = Path("/var/tmp")) -> Iterator[Path]:
    """A folder that is gone afterwards; also removes those of processes that were killed before they could.

    Its path is short: that of a unix socket has room for 107 bytes.
    """
    with ExitStack() as stack:
        with locked(cache_folder() / "scratch.lock"):
            _remove_left(parent)
            folder = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=parent))
            stack.callback(shutil.rmtree, folder)
            stack.enter_context(locked(folder / "lock"))
        yield folder


def _remove_left(parent: Path) -> None:
    for lock in parent.glob(f"{_SCRATCH}*/lock"):
        with lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(lock.parent, ignore_errors=True)


def drop_old(cache: Path) -> None:
    """Removes all folders of the cache but those used last, those in use, and those that are being built."""
    built = (path.parent for path in cache.glob("*/built") if path.parent.suffix != WORK)
    folders = sorted(built, key=lambda path: -path.stat().st_mtime)
    for folder in folders[KEPT:]:
        with (folder / "in-use").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder)

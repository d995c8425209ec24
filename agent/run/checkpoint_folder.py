"""Check of a checkpoint folder as its user, in a process of its own: what that user can do there on this machine.

The file imports nothing of Farside or of site-packages: the process starts in a hundredth of a second, and a mount that
does not answer delays only this process. The mark bears a name that no node has ever looked up, so that no client of
shared storage has it in a cache of names that are not there.

    python -I -S checkpoint_folder.py STEP FOLDER MARK MADE      prints two lines: what is wrong, and what was made
"""

import ctypes
import os
import stat
import sys

_READ_AND_WRITE = os.R_OK | os.W_OK | os.X_OK
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def write_mark(folder: str, mark: str) -> tuple[str, str]:
    """Makes the folder where it is not there, and the mark in it: what was wrong, and the topmost folder made."""
    made = ""
    try:
        for missing in _missing(folder):
            os.mkdir(missing)
            made = made or missing
        problem = _lacking(folder)
        if not problem:
            _touch(os.path.join(folder, mark))
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        _remove_empty(folder, made)
        made = ""
    return problem, made


def see_mark(folder: str, mark: str) -> str:
    """What is wrong with the folder as it is here; empty: it is the other node's, and may be written."""
    try:
        problem = _lacking(folder)
        if problem:
            return problem
        if not os.path.exists(os.path.join(folder, mark)):
            return "is another folder than on the other nodes: it must be on storage that all nodes share"
        # A name that no other process uses: several nodes look at one folder at a time.
        own = os.path.join(folder, f"{mark}.{os.getpid()}-{os.urandom(4).hex()}")
        _touch(own)
        os.unlink(own)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def clear_mark(folder: str, mark: str, made: str) -> str:
    """Takes the mark away, and with ``made`` the folders from there down, as long as they are empty."""
    try:
        os.unlink(os.path.join(folder, mark))
    except OSError as error:
        return error.strerror or str(error)
    _remove_empty(folder, made)
    return ""


def _missing(folder: str) -> list[str]:
    """The folders to make, the topmost first."""
    found: list[str] = []
    at = os.path.normpath(folder)
    # lexists: a link to nowhere is something that is there, and is not made.
    while not os.path.lexists(at) and at != os.path.dirname(at):
        found.append(at)
        at = os.path.dirname(at)
    return found[::-1]


def _lacking(folder: str) -> str:
    if not stat.S_ISDIR(os.stat(folder).st_mode):
        return "is no folder"
    return "" if os.access(folder, _READ_AND_WRITE) else "the user may not read and write it"


def _touch(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Space that is missing shows here and not at the first checkpoint.
        os.write(fd, b"farside\n")
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove_empty(folder: str, made: str) -> None:
    at = os.path.normpath(folder)
    # From the folder up to the topmost one that was made; rmdir(2) refuses one that has something in it.
    while made and len(at) >= len(made):
        try:
            os.rmdir(at)
        except OSError:
            return
        at = os.path.dirname(at)


def _main(step: str, folder: str, mark: str, made: str) -> None:
    # Other processes of this user shall not write our answer, nor take our descriptors.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    problem = ""
    if step == "write":
        problem, made = write_mark(folder, mark)
    elif step == "see":
        problem = see_mark(folder, mark)
    else:
        problem = clear_mark(folder, mark, made)
    sys.stdout.write(f"{problem}\n{made}\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])

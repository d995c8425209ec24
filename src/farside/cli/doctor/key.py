"""Checks of `farside doctor` on key files, read as the programs read them."""

import os
from collections.abc import Sequence
from pathlib import Path

from farside.daemon.control.keys import read_keys
from farside.errors import ConfigError
from farside.kmod_shim.preflight import Check, Outcome


def key_checks(key_files: Sequence[Path]) -> tuple[Check, ...]:
    """One line for each file. No files: nothing is set up here yet."""
    if not key_files:
        advice = "`farside keygen`, then copy the key to every node"
        found = "no settings in /etc/farside yet"
        return (Check(name="key", outcome=Outcome.WARNING, found=found, advice=advice),)
    return tuple(key_check(key_file) for key_file in key_files)


def key_check(key_file: Path) -> Check:
    """The key file is there, for its owner's eyes only, and holds keys."""
    try:
        status = key_file.stat()
    except OSError as error:
        return _failed(f"{key_file}: {error.strerror}", f"farside keygen {key_file}, or copy it from another node")
    # The programs refuse such a file: whoever reads it can lend and borrow.
    if status.st_mode & 0o077:
        return _failed(f"{key_file}: mode {status.st_mode & 0o777:04o}", f"chmod 0600 {key_file}")
    # Not a failure: doctor may run as a user who must not read keys.
    if not os.access(key_file, os.R_OK):
        found = f"{key_file}: there; what it holds can't be read by this user"
        return Check(name="key", outcome=Outcome.WARNING, found=found, advice="run `farside doctor` as root")
    try:
        read_keys(key_file)
    except ConfigError as error:
        found = str(error).removeprefix("key file ")
        return _failed(found, f"copy it from a node that has it; or, on every node: rm {key_file}, farside keygen")
    return Check(name="key", outcome=Outcome.OK, found=str(key_file))


def _failed(found: str, advice: str) -> Check:
    return Check(name="key", outcome=Outcome.FAILED, found=found, advice=advice)

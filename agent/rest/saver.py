"""The savers of this machine, and the file with what was set before they turned anything down.

How it works
  Before anything is turned down, the settings of now are on the disk. Whatever ends the agent, its successor finds the
  file and puts them back, before any task starts; after a boot the machine has its own settings, and the file is of no
  use. A setting that somebody else has changed meanwhile is left alone.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

import msgspec

from farside.errors import FarsideError, Unavailable
from farside.whole_file import sync_folder, write_whole

RECORD = "rest"  # in the agent's state_dir
RECORD_BYTES_MAX = 1 << 20


class Saver(Protocol):
    """One kind of setting of this machine that saves power. All of it raises Unavailable where the machine lacks it."""

    name: str

    def settings(self) -> Mapping[str, str]:
        """The settings as they are, by what they are of. Raises too where they could not be turned down."""
        ...

    def lower(self) -> None:
        """Turn all of them down."""
        ...

    def restore(self, before: Mapping[str, str]) -> None:
        """Put back those that are still turned down."""
        ...


class Before(msgspec.Struct, frozen=True, kw_only=True):
    """What was set before, by saver, and the boot in which that was so."""

    boot_id: str
    savers: Mapping[str, Mapping[str, str]]


class RestHand:
    """Turns savers down and up: all of them, or none. Its methods may be called from any thread.

    Args:
        savers: All that there are: what was turned down may have been left out of the settings since.
        turns_down: Names of those that this node turns down.
        folder: The agent's state folder.
        boot_id: Of the machine now.
    """

    def __init__(self, savers: Sequence[Saver], turns_down: Collection[str], folder: Path, boot_id: str) -> None:
        self._savers = {saver.name: saver for saver in savers}
        self.names = tuple(name for name in self._savers if name in turns_down)
        self._file, self._boot_id = folder / RECORD, boot_id
        self._lock = Lock()
        self._is_over = False

    def rest(self) -> None:
        """Write down what is set, then turn it down; nothing after `end`.

        Raises:
            FarsideError: One can't be turned down, or nothing can be written; all is as it was.
        """
        with self._lock:
            if not self._is_over:
                self._rest()

    def resume(self) -> None:
        """Put back what the file says, and forget it; nothing without a file, or after a boot.

        Raises:
            FarsideError: One can't be put back: the others are, and the file stays for the next try.
        """
        with self._lock:
            self._resume()

    def end(self) -> None:
        """`resume`, for good: a rest that was asked for before and comes later is none.

        Raises:
            FarsideError: As `resume`.
        """
        with self._lock:
            self._is_over = True
            self._resume()

    def _rest(self) -> None:
        savers = [self._savers[name] for name in self.names]
        before = Before(boot_id=self._boot_id, savers={one.name: dict(one.settings()) for one in savers})
        try:
            write_whole(self._file, msgspec.json.encode(before))
        except OSError as error:
            raise Unavailable(
                f"{self._file}: what is set now can't be written down: {error.strerror}",
                hint="nothing is turned down before it can",
            ) from error
        try:
            for saver in savers:
                saver.lower()
        except FarsideError:
            with suppress(FarsideError):  # the first reason is the one to tell
                self._resume()
            raise

    def _resume(self) -> None:
        before = self._read()
        if before is None:
            return
        failed: list[FarsideError] = []
        for name, settings in before.savers.items() if before.boot_id == self._boot_id else ():
            try:
                if name in self._savers:  # otherwise it is of a later version, which finds the file
                    self._savers[name].restore(settings)
            except FarsideError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        try:
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)
        except OSError as error:
            raise Unavailable(f"{self._file}: {error.strerror}", hint="remove it") from error

    def _read(self) -> Before | None:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self._file}: {error.strerror}", hint="remove it") from error
        with os.fdopen(descriptor, "rb") as file:
            raw = file.read(RECORD_BYTES_MAX)
        try:
            return msgspec.json.decode(raw, type=Before)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "look at governors and power caps of this node, then remove it"
            raise Unavailable(f"{self._file}: what was set before can't be read", hint=hint) from error

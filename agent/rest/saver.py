"""The savers of this machine, and the file with what was set before they turned anything down.

How it works
  Before anything is turned down, the record of the settings is on the disk. Whatever ends the agent, its successor
  finds the record and puts the settings back, before any task starts; after a boot the machine has its own settings,
  and the record is of no use. A setting that somebody else has changed meanwhile is left alone. What could not be put
  back stays in the record, and as long as there is one nothing is turned down: it is never written over.
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

    def restore(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """Put back those that are still turned down, each by itself. Returns the reason for each that can't be."""
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

    @property
    def has_record(self) -> bool:
        """Whether something may still be turned down: the record is on the disk, or nobody can say that it is not."""
        try:
            os.lstat(self._file)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def rest(self) -> None:
        """Write down what is set, then turn it down; nothing after `end`. A record that is there is obeyed first.

        Raises:
            FarsideError: One can't be turned down, or nothing can be written; all is as it was, unless `has_record`.
        """
        with self._lock:
            if not self._is_over:
                self._rest()

    def resume(self) -> None:
        """Put back what the record says, and remove it; nothing without a record, or after a boot.

        Raises:
            FarsideError: Some can't be put back: the others are, and the record keeps these for the next try.
        """
        with self._lock:
            self._resume()

    def end(self) -> None:
        """`resume`, for good: a `rest` that comes later does nothing.

        Raises:
            FarsideError: As `resume`.
        """
        with self._lock:
            self._is_over = True
            self._resume()

    def _rest(self) -> None:
        self._resume()  # what is set now may be what an earlier rest has left: no record is ever written over
        savers = [self._savers[name] for name in self.names]
        self._write({one.name: dict(one.settings()) for one in savers}, hint="nothing is turned down before it can")
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
        left: dict[str, Mapping[str, str]] = {}
        reasons: list[str] = []
        for name, settings in before.savers.items() if before.boot_id == self._boot_id else ():
            failed = self._restore(name, settings)
            if failed:
                left[name] = {key: value for key, value in settings.items() if key in failed}
                reasons += failed.values()
        if left:
            if left != before.savers:
                self._write(left, hint="the next try looks at all settings again")
            more = f"; and {len(reasons) - 1} more" if len(reasons) > 1 else ""
            raise Unavailable(reasons[0] + more)
        try:
            self._file.unlink(missing_ok=True)
            sync_folder(self._file.parent)
        except OSError as error:
            raise Unavailable(f"{self._file}: {error.strerror}", hint="remove it") from error

    def _restore(self, name: str, settings: Mapping[str, str]) -> Mapping[str, str]:
        """Reason for each setting of a saver that can't be put back."""
        if name not in self._savers:
            why = f"{self._file}: another version of Farside has turned down {name}"
            return dict.fromkeys(settings, f"{why}; let that version put it back, or set it, and remove the file")
        try:
            return self._savers[name].restore(settings)
        except FarsideError as error:
            return dict.fromkeys(settings, str(error))

    def _write(self, savers: Mapping[str, Mapping[str, str]], *, hint: str) -> None:
        try:
            write_whole(self._file, msgspec.json.encode(Before(boot_id=self._boot_id, savers=savers)))
        except OSError as error:
            what = f"{self._file}: what is set now can't be written down: {error.strerror}"
            raise Unavailable(what, hint=hint) from error

    def _read(self) -> Before | None:
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                raw = os.read(descriptor, RECORD_BYTES_MAX)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unavailable(f"{self._file}: {error.strerror}", hint="remove it") from error
        try:
            return msgspec.json.decode(raw, type=Before)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            hint = "look at governors and power caps of this node, then remove it"
            raise Unavailable(f"{self._file}: what was set before can't be read", hint=hint) from error

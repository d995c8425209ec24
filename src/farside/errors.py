"""Errors that Farside raises on purpose, under one root.

A message is one line: what is wrong, then, after a semicolon, what to do. The command line prints it as it is.
Programming faults are `assert` and `TypeError`; nobody catches those.
"""

import errno as errno_names
import os
from typing import TypeVar

ErrorT = TypeVar("ErrorT", bound=BaseException)


class FarsideError(Exception):
    """The root. ``hint`` is what the user can do about it, empty when there is nothing to say."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}; {self.hint}" if self.hint else message


class ConfigError(FarsideError):
    """The user's settings or arguments are wrong."""

    exit_code = 2


class Unavailable(FarsideError):
    """This machine lacks a device, kernel feature or program. Tests turn it into a skip."""


class LocalProtocolError(FarsideError):
    """We were about to break a protocol: a fault in our own code or use of it."""


class _CodedError(FarsideError):
    def __init__(self, message: str, *, code: int = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class RemoteProtocolError(_CodedError):
    """A peer broke a protocol. ``code`` is that protocol's number for it, 0 where it has none."""


class PeerError(_CodedError):
    """A peer refused, vanished, or did not answer in time. ``code`` is its reason, 0 when it gave none."""


class RefusedError(_CodedError):
    """A peer has understood what it was asked, and does not do it. ``code`` is its reason: over HTTP the status.

    ``again_in_s``: when to ask again, as it said; 0 where it did not.
    """

    def __init__(self, message: str, *, code: int = 0, hint: str = "", again_in_s: int = 0) -> None:
        super().__init__(message, code=code, hint=hint)
        self.again_in_s = again_in_s


class EngineError(FarsideError):
    """The C engine, or the kernel behind it, answered ``op`` with ``-errno``."""

    def __init__(self, op: str, errno: int) -> None:
        name = errno_names.errorcode.get(errno, str(errno))
        super().__init__(f"{op}: {os.strerror(errno)} ({name})")
        self.op = op
        self.errno = errno

    def __reduce__(self) -> tuple[type["EngineError"], tuple[str, int]]:
        return type(self), (self.op, self.errno)


def first_of(group: BaseExceptionGroup[ErrorT]) -> ErrorT:
    """First error of a group, also of one inside another."""
    found = group.exceptions[0]
    return first_of(found) if isinstance(found, BaseExceptionGroup) else found

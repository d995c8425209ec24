"""Attempts of `farside doctor` at what a program makes at its start: a refusal is a failed check."""

from collections.abc import Callable
from typing import TypeVar

from farside.errors import FarsideError
from farside.kmod_shim.preflight import Check, Outcome

T = TypeVar("T")


def tried(name: str, make: Callable[[], T]) -> tuple[T | None, Check | None]:
    """What is made, or the failed check of this name that says why it can't be."""
    try:
        return make(), None
    except FarsideError as error:
        return None, Check(name=name, outcome=Outcome.FAILED, found=error.args[0], advice=error.hint)


def checked(name: str, make: Callable[[], object], found: str) -> Check:
    """The check of this name, with what was found; or the failed one that says why it can't be made."""
    _, wrong = tried(name, make)
    return wrong or Check(name=name, outcome=Outcome.OK, found=found)

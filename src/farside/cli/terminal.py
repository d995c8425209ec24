"""Text output to a terminal: control characters are escaped, and a closed output is one line of error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from farside.errors import FarsideError


def printable(text: str) -> str:
    """One line with its control characters, marks of writing direction and broken characters as escapes."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


@contextmanager
def standard_output() -> Iterator[None]:
    """What is printed inside has come out afterwards. A reader that is gone is left to the command line.

    Raises:
        FarsideError: It has not, as where a disk is full.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _give_up_output()
        raise _lost(error) from error
    flush_output()


def flush_output() -> None:
    """Writes out what was printed.

    Raises:
        BrokenPipeError: The reader is gone.
        FarsideError: It can't be written, as where a disk is full.
    """
    if sys.stdout is None:  # it was closed before we started
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()
        raise
    except OSError as error:
        _give_up_output()
        raise _lost(error) from error


def _give_up_output() -> None:
    # What is still in the buffer would fail once more when Python ends.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lost(error: OSError) -> FarsideError:
    return FarsideError(f"standard output: {error.strerror or error}", hint="the output is incomplete")

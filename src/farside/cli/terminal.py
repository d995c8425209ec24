"""Text output to a terminal: control characters are escaped, and a closed output is one line of error."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from farside.errors import FarsideError


def printable(text: str) -> str:
    """One line with its control characters, marks of writing direction and broken characters as escapes."""
    # Names of jobs, users and files are chosen by others. An escape code in one would reach the terminal, and a mark of
    # writing direction would reorder what is read.
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def note(text: str) -> None:
    """Prints lines on standard error, with the program's name before each: standard output may be data."""
    # At line ends alone: a value of a user's that is in an error may hold what else Python takes for one.
    for line in text.removesuffix("\n").split("\n") if text else ():
        print(f"farside: {printable(line)}", file=sys.stderr, flush=True)


@contextmanager
def standard_output() -> Iterator[None]:
    """What is printed inside has come out afterwards.

    Raises:
        BrokenPipeError: The reader is gone.
        FarsideError: It can't be written, as where a disk is full.
    """
    try:
        yield
        # None: the program was started with its standard output closed, and prints nothing.
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if sys.stdout is not None:
            # What is still in the buffer would fail once more when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Not worth a line: main() ends silently.
        if isinstance(error, BrokenPipeError):
            raise
        raise FarsideError(f"standard output: {error.strerror or error}", hint="the output is incomplete") from error

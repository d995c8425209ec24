"""Imports of a whole program at its start, without looks for garbage meanwhile."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Imports in the body run without Python's look for garbage, which costs a fifth of their time and finds nothing.

    What is there at the end stays as long as the process, and is put aside: later looks leave it out.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()

"""The model on the disk between a push and the next pull, where memory is full with no input in it [harmony §IV-C].

Only arrays that nobody but the model refers to: what a program holds by another name stays where it is, and would take
its memory anyway.
"""

import sys
from typing import Any

import numpy as np

from farside.errors import FarsideError
from farside.log import get_log
from farside.training.loop.block import Arrays
from farside.training.loop.spill_file import BlockFile, Buffer, Layout, layout_of

_log = get_log("training")

LEAST_BYTES = 1 << 20
"""Smaller arrays are not worth it."""


class ParkedModel:
    """Arrays of a model that are on the disk for now."""

    def __init__(self, file: BlockFile) -> None:
        self._file = file
        self._offsets: dict[tuple[str, int], int] = {}  # by name and size: what is written again goes to its place
        self._parked: dict[str, tuple[Layout, int, int]] = {}

    def park(self, model: Arrays) -> None:
        """Writes large arrays, and lets go of them."""
        for name in list(model):
            # Three know it: the model, and both of the call's.
            if _is_large(model[name]) and sys.getrefcount(model[name]) <= 2:
                try:
                    self._write(name, model[name])
                except OSError as error:
                    _log.warning("the model can't be written, and stays in memory", array=name, reason=error)
                    return
                model[name] = None

    def bring_back(self, model: Arrays) -> None:
        """Reads all of them, each in its place in the model.

        Raises:
            FarsideError: One can't be read as it was written.
        """
        for name, (layout, offset, check) in self._parked.items():
            buffer = Buffer(layout.size_bytes)
            try:
                self._file.read(buffer.view(layout.size_bytes), offset)
                problem = "" if buffer.check(layout) == check else "is damaged"
            except OSError as error:
                problem = f"can't be read: {error.strerror}"
            if problem:
                raise FarsideError(
                    f"the model's '{name}' in {self._file.name} {problem}",
                    hint="start the job again: it goes on from its last checkpoint",
                )
            model[name] = np.array(buffer.block(layout), order="K")
        self._parked.clear()

    def _write(self, name: str, array: Any) -> None:
        layout = layout_of(array)
        buffer = Buffer(layout.size_bytes)
        check = buffer.take(array, layout)
        offset = self._offsets.get((name, layout.size_bytes))
        if offset is None:
            offset = self._file.room_for(layout.size_bytes)
            assert offset is not None, "a file on the disk grows"
            self._offsets[name, layout.size_bytes] = offset
        self._file.write(buffer.view(layout.size_bytes), offset)
        self._parked[name] = layout, offset, check


def _is_large(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.flags.owndata
        and array.flags.forc
        and not array.dtype.hasobject
        and array.nbytes >= LEAST_BYTES
    )

"""Tensors between the front and an executor: one memfd with two slots a model.

A slot has room for ``max_batch`` rows of each input and output of its model, and for a line of text. Both sides map the
same memory, so a batch is copied once on its way in and once on its way out.
"""

import mmap
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from farside.agent.serving.frames import SLOTS
from farside.agent.serving.model_file import NUMPY_NAMES, ModelFile, TensorSpec

ALIGNMENT_BYTES = 64  # a cache line, and what ONNX Runtime wants of a tensor
TEXT_BYTES = 512
ARENA_BYTES_MAX = 8 << 30

Array = NDArray[Any]


class Slot(NamedTuple):
    """Views of one slot: ``max_batch`` rows of each tensor, by name."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


class Arena:
    """The memory of one executor.

    Args:
        models: Its models, in the order of their numbers.
        fd: A memfd that was made for the same models; None: a new one.

    Raises:
        ValueError: They need more than ARENA_BYTES_MAX.
        OSError: There is no memory.
    """

    def __init__(self, models: Sequence[ModelFile], fd: int | None = None) -> None:
        size = arena_bytes(models)
        if size > ARENA_BYTES_MAX:
            raise ValueError(f"they take {size >> 20} MiB, more than {ARENA_BYTES_MAX >> 20} MiB")
        self.fd = os.memfd_create("farside-arena", os.MFD_CLOEXEC) if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        self._memory = mmap.mmap(self.fd, size)
        self._texts: list[tuple[int, ...]] = []
        self.slots: list[tuple[Slot, ...]] = []
        at = 0
        for model in models:
            slots, texts = [], []
            for _ in range(SLOTS):
                views: list[Mapping[str, Array]] = []
                for tensors in (model.inputs, model.outputs):
                    named = {}
                    for tensor in tensors:
                        named[tensor.name] = self._view(at, tensor, model.max_batch)
                        at += _aligned(tensor.row_bytes * model.max_batch)
                    views.append(named)
                slots.append(Slot(*views))
                texts.append(at)
                at += TEXT_BYTES
            self.slots.append(tuple(slots))
            self._texts.append(tuple(texts))

    def _view(self, at: int, tensor: TensorSpec, rows: int) -> Array:
        dtype = np.dtype(NUMPY_NAMES[tensor.datatype])
        return np.frombuffer(self._memory, dtype, rows * tensor.row_items, at).reshape((rows, *tensor.shape))

    def write_text(self, model: int, slot: int, text: str) -> None:
        """Leaves a line at a slot; what does not fit is cut."""
        at = self._texts[model][slot]
        line = " ".join(text.split()).encode()[: TEXT_BYTES - 1]
        self._memory[at : at + len(line) + 1] = line + b"\0"

    def read_text(self, model: int, slot: int) -> str:
        """The line at a slot."""
        at = self._texts[model][slot]
        return self._memory[at : at + TEXT_BYTES].split(b"\0", 1)[0].decode(errors="replace")

    def close(self) -> None:
        """Gives file and memory back; where a view of its slots is held elsewhere, the memory goes with that."""
        os.close(self.fd)
        self.slots.clear()
        with suppress(BufferError):
            self._memory.close()


def arena_bytes(models: Sequence[ModelFile]) -> int:
    """Bytes of the arena of these models."""
    return max(1, sum(SLOTS * slot_bytes(model) for model in models))


def slot_bytes(model: ModelFile) -> int:
    """Bytes of one slot of a model."""
    rows = model.max_batch
    return TEXT_BYTES + sum(_aligned(one.row_bytes * rows) for one in (*model.inputs, *model.outputs))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

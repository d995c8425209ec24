"""What a model file takes and gives, by the names of the Open Inference Protocol. PURE."""

from types import MappingProxyType
from typing import Literal

import msgspec

Framework = Literal["onnxruntime", "pytorch"]
FRAMEWORKS: MappingProxyType[str, Framework] = MappingProxyType({".onnx": "onnxruntime", ".pt": "pytorch"})

# Datatypes of the protocol by what numpy calls them. BYTES has no fixed size, and is refused.
NUMPY_NAMES = MappingProxyType(
    {
        "BOOL": "bool",
        "UINT8": "uint8",
        "UINT16": "uint16",
        "UINT32": "uint32",
        "UINT64": "uint64",
        "INT8": "int8",
        "INT16": "int16",
        "INT32": "int32",
        "INT64": "int64",
        "FP16": "float16",
        "FP32": "float32",
        "FP64": "float64",
    }
)
DATATYPES = MappingProxyType({numpy_name: name for name, numpy_name in NUMPY_NAMES.items()})
ITEM_BYTES = MappingProxyType(
    {"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
     "FP16": 2, "FP32": 4, "FP64": 8}
)  # fmt: skip

MAX_BATCH = 1024


class TensorSpec(msgspec.Struct, frozen=True):
    """An input or output: its name, its datatype such as FP32, and the shape of one row, without the batch's axis."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def row_items(self) -> int:
        """Numbers in one row."""
        items = 1
        for length in self.shape:
            items *= length
        return items

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.row_items * ITEM_BYTES[self.datatype]


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served: each of its tensors has the batch as its first axis, of at most ``max_batch`` rows.

    ``sha256`` is of the file, in hex; ``file_bytes`` its size.
    """

    name: str
    path: str
    framework: Framework
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch: int
    sha256: str = ""
    file_bytes: int = 0

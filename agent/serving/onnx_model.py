"""ONNX Runtime: a session whose inputs and outputs are bound to the slots, so that nothing is copied."""

from collections.abc import Sequence

import numpy as np
import onnxruntime

from farside.agent.serving.arena import Slot
from farside.agent.serving.model_file import ModelFile
from farside.errors import Unavailable

_FATAL_ONLY = 4  # what a model raises comes to whoever runs it, and not a line on stderr for each batch besides
_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


def open_session(path: str, threads: int, device: str) -> onnxruntime.InferenceSession:
    """A session of its own threads, which do not spin: a partition would pay for their waiting.

    Raises:
        Unavailable: This ONNX Runtime can't use the device.
    """
    provider = _PROVIDERS[device]
    if provider not in onnxruntime.get_available_providers():
        raise Unavailable(
            f"onnxruntime {onnxruntime.__version__} has no {provider}", hint="install onnxruntime-gpu to use GPUs"
        )
    options = onnxruntime.SessionOptions()
    # Without a number it pins threads to processors that a cpuset may forbid.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = _FATAL_ONLY
    return onnxruntime.InferenceSession(path, options, providers=[provider])


class OnnxModel:
    """A session and its bindings."""

    def __init__(self, model: ModelFile, slots: Sequence[Slot], threads: int, device: str) -> None:
        self._session = open_session(model.path, threads, device)
        self._slots = slots
        self._bindings: dict[tuple[int, int], onnxruntime.IOBinding] = {}

    def run(self, rows: int, slot: int) -> None:
        """Runs the first rows of a slot."""
        binding = self._bindings.get((rows, slot))
        if binding is None:
            binding = self._bindings[rows, slot] = self._bound(rows, slot)
        self._session.run_with_iobinding(binding)

    def _bound(self, rows: int, slot: int) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        views = self._slots[slot]
        for bind, tensors in ((binding.bind_input, views.inputs), (binding.bind_output, views.outputs)):
            for name, view in tensors.items():
                part = view[:rows]
                # numpy counts the bytes of a bool as its type's, as ONNX Runtime does.
                bind(name, "cpu", 0, np.dtype(part.dtype), part.shape, part.ctypes.data)
        return binding

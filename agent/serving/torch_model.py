"""PyTorch: a TorchScript file, run on the slots' memory; its results are copied into the slots."""

from collections.abc import Sequence
from typing import Any

import torch

from farside.agent.serving.arena import Slot
from farside.agent.serving.model_file import ModelFile
from farside.errors import FarsideError, Unavailable


def open_module(path: str, threads: int, device: str) -> Any:
    """The module of a TorchScript file, ready for inference.

    Raises:
        Unavailable: This PyTorch can't use the device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Unavailable(f"PyTorch {torch.__version__} sees no GPU", hint="install a build for GPUs, and a driver")
    torch.set_num_threads(threads)
    load: Any = torch.jit.load
    return load(path, map_location=device).eval()


class TorchModel:
    """A TorchScript module: takes the inputs in their order, gives a tensor or a tuple of them."""

    def __init__(self, model: ModelFile, slots: Sequence[Slot], threads: int, device: str) -> None:
        self._device = device
        self._module = open_module(model.path, threads, device)
        self._slots = [
            tuple([torch.from_numpy(view) for view in views.values()] for views in (slot.inputs, slot.outputs))
            for slot in slots
        ]

    def run(self, rows: int, slot: int) -> None:
        """Runs the first rows of a slot."""
        inputs, outputs = self._slots[slot]
        with torch.inference_mode():
            given = self._module(*(one[:rows].to(self._device) for one in inputs))
            results = given if isinstance(given, tuple | list) else (given,)
            if len(results) != len(outputs):
                raise FarsideError(f"the model gave {len(results)} tensors instead of {len(outputs)}")
            for place, result in zip(outputs, results, strict=True):
                if result.shape != place[:rows].shape or result.dtype != place.dtype:
                    raise FarsideError(f"the model gave {tuple(result.shape)} instead of {tuple(place[:rows].shape)}")
                place[:rows].copy_(result)

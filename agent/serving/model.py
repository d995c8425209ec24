"""A model in an executor's memory, whatever runs it."""

from collections.abc import Callable, Sequence
from typing import Protocol

from farside.agent.serving.arena import Slot
from farside.agent.serving.model_file import Framework, ModelFile


class LoadedModel(Protocol):
    """Runs batches that lie in slots."""

    def run(self, rows: int, slot: int) -> None:
        """Runs the first rows of a slot's inputs into its outputs. What the model raises is passed on."""
        ...


# Loads a file for these slots, with so many threads, on "cpu" or "cuda".
Load = Callable[[ModelFile, Sequence[Slot], int, str], LoadedModel]


def loader(framework: Framework) -> Load:
    """What loads models of a framework, which is imported here and not before.

    Raises:
        ImportError: The framework is not installed.
    """
    if framework == "pytorch":
        from farside.agent.serving.torch_model import TorchModel

        return TorchModel
    from farside.agent.serving.onnx_model import OnnxModel

    return OnnxModel

"""A model in an executor's memory, whatever runs it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from farside.agent.serving.arena import Slot
from farside.agent.serving.model_file import Framework, ModelFile
from farside.installed import version_of

_PACKAGES: Mapping[str, tuple[str, ...]] = {"pytorch": ("torch",), "onnxruntime": ("onnxruntime", "onnxruntime-gpu")}


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


def runtimes(frameworks: Iterable[str]) -> dict[str, str]:
    """Versions of the frameworks that are installed here, by name; the build for GPUs is another package."""
    return {name: version_of(*_PACKAGES.get(name, (name,))) for name in sorted(set(frameworks))}

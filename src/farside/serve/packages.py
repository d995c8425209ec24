"""Python packages that serving needs and that not every installation has: looked for before anything else is done."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from farside.agent.serving.model_file import FRAMEWORKS, Framework
from farside.agent.serving.partition import green
from farside.errors import Unavailable
from farside.installed import is_installed
from farside.serve.deployment import Deployment

# By the name under which they are imported. tritonclient has the protocol's messages, and imports grpc itself.
GRPC_DOOR = ("google.protobuf", "grpc", "hpack", "tritonclient")
OF_FRAMEWORK: Mapping[Framework, tuple[str, ...]] = MappingProxyType(
    {"onnxruntime": ("onnxruntime",), "pytorch": ("torch",)}
)
OF_DRIVER: Mapping[str, tuple[str, ...]] = MappingProxyType({green.NAME: tuple(module for module, *_ in green.MODULES)})
# To make the sample models of the demo and of benchmarks, and to run them.
SAMPLE_MODELS = ("onnx", "onnxruntime")
# By the name under which they are installed, where that is another one.
_INSTALLED_AS = MappingProxyType({"google.protobuf": "protobuf", "grpc": "grpcio", "cuda.bindings": "cuda-bindings"})
_NOT_PINNED = frozenset({"torch", "cuda-bindings"})


def packages_of(deployment: Deployment, *, on_this_machine: bool) -> set[str]:
    """What a deployment imports here; models are looked into here wherever they are served."""
    needed = set[str](GRPC_DOOR if deployment.grpc else ())
    for model in deployment.models.values():
        if model.path.suffix in FRAMEWORKS:
            needed.update(OF_FRAMEWORK[FRAMEWORKS[model.path.suffix]])
    if on_this_machine:
        needed.update(OF_DRIVER.get(deployment.driver, ()))
    return needed


def check_packages(modules: Iterable[str]) -> None:
    """Whether all these modules are installed.

    Raises:
        Unavailable: Some are not; the line names all of them.
    """
    missing = sorted({_INSTALLED_AS.get(module, module) for module in modules if not is_installed(module)})
    if not missing:
        return
    hints = []
    if set(missing) - _NOT_PINNED:
        hints.append("install requirements/serving.txt (.venv/bin/pip install -r requirements/serving.txt)")
    if others := [name for name in missing if name in _NOT_PINNED]:
        hints.append(f"pip install {' '.join(others)}")
    raise Unavailable(f"these Python packages are not installed: {', '.join(missing)}", hint="; ".join(hints))

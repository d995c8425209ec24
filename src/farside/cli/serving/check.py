"""The command `farside serve check`: what this machine has to serve models with."""

import asyncio
from pathlib import Path

from farside.agent.serving.partition.catalog import DRIVERS
from farside.cli.figure_table import figure_table, print_plain
from farside.cli.terminal import standard_output
from farside.installed import is_installed, version_of
from farside.serve.profile.profiler import describe_folder

# The package that a framework is imported as, and what to install.
_FRAMEWORKS = {"onnxruntime": "onnxruntime (requirements/serving.txt)", "torch": "PyTorch"}


def run(models: Path | None, max_batch: int) -> int:
    """Looks and prints; 1 if no device can be cut or no framework is there.

    Raises:
        FarsideError: A model file can't be served.
    """
    table = figure_table("device driver", "parts", "resize", "isolation or what is missing", texts=4)
    works = False
    for name, driver in DRIVERS.items():
        found, traits = driver().capabilities(), driver.traits
        # A driver that can't cut is no way to share a device.
        works = works or (not found.problem and traits.can_cut)
        table.add_row(
            name,
            found.parts or "none",
            ("in place" if traits.can_resize else "by a new process") if traits.can_cut and not found.problem else "",
            found.problem or found.isolation,
        )
    frameworks = figure_table("framework", "version", texts=2)
    has_framework = False
    for package, wanted in _FRAMEWORKS.items():
        is_there = is_installed(package)
        has_framework = has_framework or is_there
        frameworks.add_row(package, version_of(package) if is_there else f"not installed: {wanted}")
    with standard_output():
        print_plain(table)
        print_plain(frameworks)
        if models is not None:
            _print_models(models, max_batch)
    return 0 if works and has_framework else 1


def _print_models(folder: Path, max_batch: int) -> None:
    table = figure_table("model", "framework", "inputs", "outputs", texts=4)
    for model in asyncio.run(describe_folder(folder, max_batch)):
        inputs, outputs = (
            ", ".join(f"{one.name} {one.datatype} {list(one.shape)}" for one in tensors)
            for tensors in (model.inputs, model.outputs)
        )
        table.add_row(model.name, model.framework, inputs, outputs)
    print_plain(table)

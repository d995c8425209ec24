"""The ten models of [tiresias Table 3.3]: size, largest tensor, and the names by which jobs refer to them. PURE.

The table's MB are MiB: VGG16 has 138.4 million parameters of four bytes, 527.8 MiB, and the table says 527.8 MB.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from farside.scheduler.state import Job
from farside.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Tensors of a model. ``skew`` is S_J, the share of the largest one."""

    name: str
    model_bytes: int
    tensors: int
    large_tensors: int  # of at least 1 MB
    largest_tensor_bytes: int
    skew: float


def _model(name: str, size_mb: float, tensors: int, large: int, largest_mb: float, ratio_pct: float) -> Model:
    return Model(
        name=name,
        model_bytes=round(size_mb * MIB),
        tensors=tensors,
        large_tensors=large,
        largest_tensor_bytes=round(largest_mb * MIB),
        skew=ratio_pct / 100,
    )


MODELS: tuple[Model, ...] = (
    _model("VGG19", 548.1, 39, 15, 392.0, 71.5),
    _model("VGG16", 527.8, 33, 12, 392.0, 74.3),
    _model("VGG11", 506.8, 23, 9, 392.0, 77.3),
    _model("AlexNet", 235.9, 17, 7, 144.0, 61.0),
    _model("ResNet152", 230.2, 778, 48, 9.0, 3.9),
    _model("ResNet101", 170.4, 523, 35, 9.0, 5.3),
    _model("ResNet50", 97.7, 268, 18, 9.0, 9.2),
    _model("Inception4", 162.9, 599, 81, 5.9, 3.6),
    _model("Inception3", 91.0, 397, 21, 7.8, 8.6),
    _model("GoogleNet", 26.7, 117, 7, 3.9, 14.6),
)
_BY_NAME: Mapping[str, Model] = MappingProxyType({model.name.lower(): model for model in MODELS})


def find_model(name: str) -> Model | None:
    """The model of a name, however it is written: ``vgg16``, ``VGG-16``, ``inception_v3``; None: not in the table."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower())
    return _BY_NAME.get(plain.replace("inceptionv", "inception"))


def skew_of(job: Job) -> float:
    """S_J of a job: as measured, or by the table for its model; 0: unknown."""
    if job.skew > 0:
        return job.skew
    model = find_model(job.model) if job.model else None
    return model.skew if model else 0.0


def model_bytes_of(job: Job) -> int:
    """Size of a job's model: as given, or by the table; 0: unknown."""
    if job.model_bytes > 0:
        return job.model_bytes
    model = find_model(job.model) if job.model else None
    return model.model_bytes if model else 0

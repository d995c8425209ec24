"""The ten models of the paper's experiments: size and skew. PURE.

A table of the simulator's own until the scheduler has one of more models.
"""

from dataclasses import dataclass

from farside.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """``skew``: S_J, the share of the largest tensor. [tiresias §3.3.3.1]"""

    name: str
    model_bytes: int
    skew: float


def _model(name: str, size_mib: float, ratio_pct: float) -> Model:
    return Model(name=name, model_bytes=round(size_mib * MIB), skew=ratio_pct / 100)


# Model size (its MB are MiB: VGG16's 138.4 million parameters of four bytes are 527.8 MiB) and the largest tensor's
# share. [tiresias Table 3.3]
MODELS = (
    _model("VGG19", 548.1, 71.5),
    _model("VGG16", 527.8, 74.3),
    _model("VGG11", 506.8, 77.3),
    _model("AlexNet", 235.9, 61.0),
    _model("ResNet152", 230.2, 3.9),
    _model("ResNet101", 170.4, 5.3),
    _model("ResNet50", 97.7, 9.2),
    _model("Inception4", 162.9, 3.6),
    _model("Inception3", 91.0, 8.6),
    _model("GoogleNet", 26.7, 14.6),
)
_BY_NAME = {model.name.lower(): model for model in MODELS}


def find_model(name: str) -> Model | None:
    """A model by name, whatever its case; None when it is not one of the ten."""
    return _BY_NAME.get(name.lower())

"""TorchScript files for a GPU, made in place with seeded weights: some milliseconds a batch of eight on an H100.

Nets of different shape: convolutions fill a GPU at any batch, the encoder with some rows, and the LSTM, whose steps
come one after the other, hardly ever.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

_CHANNELS, _CONVOLUTIONS = 256, 32
_WIDTH, _LAYERS, _HEADS, _TOKENS = 512, 24, 8, 256
_FEATURES, _HIDDEN, _STEPS = 128, 1024, 256


class _Conv(nn.Module):  # type: ignore[misc] # without types
    """Convolutions of 3x3 on 64x64 pixels, each with what it was given added."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, _CHANNELS, 3, padding=1)
        self.rest = nn.ModuleList([nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1) for _ in range(_CONVOLUTIONS)])

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.first(image)
        for one in self.rest:
            found = found + torch.relu(one(found)) * 0.1
        return found.mean((2, 3))


class _Encoder(nn.Module):  # type: ignore[misc] # without types
    """A transformer's encoder over some tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 4 * _WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, _LAYERS, enable_nested_tensor=False)
        self.widen = nn.Linear(_FEATURES, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.layers(self.widen(tokens))
        return found.mean(1)


class _Lstm(nn.Module):  # type: ignore[misc] # without types
    """A recurrent net over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.LSTM(_FEATURES, _HIDDEN, batch_first=True)

    def forward(self, sequence: Tensor) -> Tensor:
        # Of the input, so that it is where that is: a trace would keep it where it was made.
        zeros = (sequence[:, 0, :1] * 0).expand(-1, _HIDDEN).unsqueeze(0).contiguous()
        found: Tensor = self.net(sequence, (zeros, zeros))[0]
        return found[:, -1]


_MADE: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = MappingProxyType(
    {
        "convnet": (_Conv, (3, 64, 64)),
        "encoder": (_Encoder, (_TOKENS, _FEATURES)),
        "recurrent": (_Lstm, (_STEPS, _FEATURES)),
    }
)
# Shares of a device's work.
WORK: Mapping[str, float] = MappingProxyType({"convnet": 0.45, "encoder": 0.35, "recurrent": 0.2})


def make_gpu_models(folder: Path) -> None:
    """Writes convnet.pt, encoder.pt and recurrent.pt."""
    save: Any = torch.jit.save
    trace: Any = torch.jit.trace
    for name, (make, shape) in _MADE.items():
        torch.manual_seed(sum(name.encode()))
        module = make().eval()
        with torch.inference_mode():
            traced = trace(module, torch.zeros((2, *shape)), check_trace=False)
        told = json.dumps([{"name": "input", "datatype": "FP32", "shape": list(shape)}])
        save(traced, str(folder / f"{name}.pt"), _extra_files={"inputs.json": told})

"""Descriptions of models for clients: metadata, configuration and statistics, as the protocol's JSON has them. PURE.

The same objects become the messages of gRPC, whose fields have the same names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.serve.inference import version_of

SERVER = "farside"
EXTENSIONS = ("binary_tensor_data", "parameters", "schedule_policy", "model_configuration", "statistics")
_PLATFORMS = {"onnxruntime": ("onnxruntime", "onnxruntime_onnx"), "pytorch": ("pytorch", "pytorch_libtorch")}


@dataclass(slots=True)
class Duration:
    """How often something took place, and the ns that it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, took_s: float, times: int = 1) -> None:
        """Counts events that took ``took_s`` seconds each."""
        self.count += times
        self.ns += int(took_s * 1e9) * times


@dataclass(slots=True)
class ModelCounts:
    """What became of a model's requests, and how long its batches took.

    ``met`` and ``late`` are answered; ``dropped``, ``rejected`` and ``failed`` are not, and violate the SLO as ``late``
    does. ``refused`` were no sound requests. ``again``: requests that were queued again since an executor died, or
    their model kept failing on it. ``rows`` counts rows that ran, ``batches`` executions. Durations are those of
    Triton's statistics.
    """

    met: int = 0
    late: int = 0
    dropped: int = 0
    rejected: int = 0
    failed: int = 0
    refused: int = 0
    cancelled: int = 0
    again: int = 0
    rows: int = 0
    batches: int = 0
    last_ms: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    copied_in: Duration = field(default_factory=Duration)
    ran: Duration = field(default_factory=Duration)
    copied_out: Duration = field(default_factory=Duration)
    by_batch: dict[int, tuple[Duration, Duration, Duration]] = field(
        default_factory=dict[int, tuple[Duration, Duration, Duration]]
    )

    @property
    def ended(self) -> int:
        """Requests that have an outcome which counts for the SLO."""
        return self.met + self.violated

    @property
    def violated(self) -> int:
        """Requests that missed the SLO."""
        return self.late + self.dropped + self.rejected + self.failed


def server_metadata(version: str) -> dict[str, Any]:
    """Answer of ServerMetadata."""
    return {"name": SERVER, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(model: ModelFile) -> dict[str, Any]:
    """Answer of ModelMetadata; the batch axis is the first, and -1."""
    return {
        "name": model.name,
        "versions": [version_of(model)],
        "platform": _PLATFORMS[model.framework][1],
        "inputs": [_tensor(spec) for spec in model.inputs],
        "outputs": [_tensor(spec) for spec in model.outputs],
    }


def model_config(model: ModelFile, batches: Sequence[int]) -> dict[str, Any]:
    """Triton's configuration of a model; ``batches`` are those that the plan prefers."""
    backend, platform = _PLATFORMS[model.framework]
    return {
        "name": model.name,
        "platform": platform,
        "backend": backend,
        "max_batch_size": model.max_batch,
        "input": [_config_tensor(spec) for spec in model.inputs],
        "output": [_config_tensor(spec) for spec in model.outputs],
        "dynamic_batching": {"preferred_batch_size": sorted(set(batches))},
    }


def model_statistics(model: ModelFile, counts: ModelCounts) -> dict[str, Any]:
    """Triton's statistics of one model."""
    durations = {
        "success": counts.success, "fail": counts.fail, "queue": counts.queue, "compute_input": counts.copied_in,
        "compute_infer": counts.ran, "compute_output": counts.copied_out, "cache_hit": Duration(),
        "cache_miss": Duration(),
    }  # fmt: skip
    return {
        "name": model.name,
        "version": version_of(model),
        "last_inference": counts.last_ms,
        "inference_count": counts.rows,
        "execution_count": counts.batches,
        "inference_stats": {name: _duration(one) for name, one in durations.items()},
        "batch_stats": [
            {
                "batch_size": rows,
                "compute_input": _duration(copied_in),
                "compute_infer": _duration(ran),
                "compute_output": _duration(copied_out),
            }
            for rows, (copied_in, ran, copied_out) in sorted(counts.by_batch.items())
        ],
    }


def index(models: Mapping[str, ModelFile], ready: Mapping[str, bool]) -> list[dict[str, str]]:
    """Triton's repository index."""
    return [
        {
            "name": name,
            "version": version_of(model),
            "state": "READY" if ready[name] else "UNAVAILABLE",
            "reason": "" if ready[name] else "no part of a device serves it",
        }
        for name, model in sorted(models.items())
    ]


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]}


def _config_tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{spec.datatype}", "dims": list(spec.shape)}


def _duration(one: Duration) -> dict[str, int]:
    return {"count": one.count, "ns": one.ns}

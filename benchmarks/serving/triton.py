"""Triton's own core with models that are served by us, too: an ONNX Runtime of one thread for each model and core."""

import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.load import BenchmarkError
from benchmarks.serving.peer_environment import VENV, install, packages
from farside.agent.serving.describe import ModelRequest, describe
from farside.agent.serving.model_file import ModelFile
from farside.cli.demo.serving_load import Target
from farside.cli.demo.serving_rig import MAX_BATCH, Mix, devices, free_ports, row_shape
from farside.ending import end_process
from farside.serve.table import Tables

READY_S, END_S = 120.0, 30.0
_LOOK_S = 0.1
_MODEL = Path(__file__).with_name("triton_model.py")
NO_DELAY, PREFERRED, REJECTING = "no delay", "0.5 ms, preferred 4 and 8", "0.5 ms, rejects what would be late"
SETTINGS = (NO_DELAY, PREFERRED, REJECTING)


def batching(setting: str, queue_s: float) -> str:
    """Triton's dynamic batching; ``queue_s``: what a request may wait and still be answered in time."""
    reject = f"{{ timeout_action: REJECT default_timeout_microseconds: {max(1, int(1e6 * queue_s))} }}"
    return {
        NO_DELAY: "dynamic_batching { }",
        PREFERRED: "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 500 }",
        REJECTING: f"dynamic_batching {{ max_queue_delay_microseconds: 500 default_queue_policy {reject} }}",
    }[setting]


def config_text(model: ModelFile, instances: int, policy: str) -> str:
    """config.pbtxt of a model."""
    tensors = [
        f'{way} [ {{ name: "{one.name}" data_type: TYPE_{one.datatype} dims: {list(one.shape)} }} ]'
        for way, specs in (("input", model.inputs), ("output", model.outputs))
        for one in specs
    ]
    parameter = f'parameters {{ key: "file" value: {{ string_value: "{model.path}" }} }}'
    return "\n".join(
        (
            f'name: "{model.name}"', 'backend: "python"', f"max_batch_size: {model.max_batch}", *tensors,
            f"instance_group [ {{ kind: KIND_CPU count: {instances} }} ]", policy, parameter, "",
        )
    )  # fmt: skip


@dataclass(slots=True)
class Triton:
    """Triton in a process of its own, on the cores of `devices`; ends with the body of its `with`.

    Args:
        folder: Has the models.
        mix: What is promised.
        tables: What the models take.
        setting: Of its batching, of SETTINGS.
    """

    folder: Path
    mix: Mix
    tables: Tables
    setting: str
    http: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _log: Path = field(default=Path())

    def __enter__(self) -> Self:
        install()
        self.http, grpc = free_ports(2)
        repository = self.folder / "triton"
        shutil.rmtree(repository, ignore_errors=True)
        for name, slo_ms in self.mix.slo_ms.items():
            model = describe(ModelRequest(name=name, path=str(self.folder / f"{name}.onnx"), max_batch=MAX_BATCH))
            queue_s = (slo_ms - self.tables.models[name].latency_ms[100][-1]) / 1000
            (repository / name / "1").mkdir(parents=True)
            # The backend imports NumPy as soon as it has read the model's first lines.
            first = f"import sys\n\nsys.path.insert(0, {str(packages())!r})\n"
            (repository / name / "1" / "model.py").write_text(first + _MODEL.read_text())
            text = config_text(model, len(devices()), batching(self.setting, queue_s))
            (repository / name / "config.pbtxt").write_text(text)
        self._log = self.folder / "triton.log"
        self._process = self._started(grpc, repository)
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s and self._process.poll() is None:
            if self._is_ready():
                return self
            time.sleep(_LOOK_S)
        self.__exit__(None, None, None)
        lines = self._log.read_text(errors="replace").strip().splitlines()
        raise BenchmarkError(f"Triton did not start: {lines[-1] if lines else 'nothing was said'}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            end_process(self._process, END_S)

    def targets(self) -> dict[str, Target]:
        """Its models, for the client."""
        return {
            name: Target(model=name, input="input", shape=row_shape(self.http, name), slo_ms=slo_ms)
            for name, slo_ms in self.mix.slo_ms.items()
        }

    def _started(self, grpc: int, repository: Path) -> "subprocess.Popen[bytes]":
        options: Sequence[str] = (
            f"--model-repository={repository}", f"--backend-directory={VENV / 'backends'}",
            "--http-address=127.0.0.1", f"--http-port={self.http}", "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
            "--allow-metrics=false", "--disable-auto-complete-config",
        )  # fmt: skip
        program = packages() / "pytriton" / "tritonserver" / "bin" / "tritonserver"
        environment: Mapping[str, str] = {**os.environ, "LD_LIBRARY_PATH": str(packages() / "nvidia_pytriton.libs")}
        cores = ",".join(map(str, devices()))
        with self._log.open("wb") as log:
            command = ["taskset", "-c", cores, str(program), *options]
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

"""A deployment on GPUs that a manager leases: what its start looks at, before it has any."""

import subprocess
import sys
from pathlib import Path

import pytest

from farside.agent.serving.model import runtimes
from farside.agent.serving.model_file import ModelFile
from farside.agent.serving.partition.gpu import GpuDriver
from farside.cli.keygen import make_key
from farside.serve.profile.folder import VERSION, Fingerprint, Header, ProfiledModel, rows_of, write_header
from tests.serving.executors import small_models
from tests.serving.test_run import MODELS, write_profile

SETTINGS = """
http_listen = "tcp:127.0.0.1:0"
grpc_listen = ""
metrics_listen = ""
admin_socket = "s"
profile = "profile"
"""
LEASED = 'gpus_max = 2\nkey_file = "key"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Models with a profile that says that it was measured on a GPU that MPS cut."""
    files = small_models(tmp_path, MODELS, max_batch=8)
    write_profile(tmp_path / "profile", 30_000)
    write_header(tmp_path / "profile", header(files, "mps"))
    make_key(tmp_path / "key")
    return tmp_path


def header(files: tuple[ModelFile, ...], driver: str) -> Header:
    device = Fingerprint(driver=driver, name="NVIDIA H100", memory_mb=80_000, runtimes=runtimes(["onnxruntime"]))
    models = {
        one.name: ProfiledModel(
            file=one.path, sha256=one.sha256, max_batch=8, slo_ms=30_000, input=rows_of(one), memory_mb=10
        )
        for one in files
    }
    return Header(version=VERSION, device=device, models=models, parts=(50, 100), process_mb=500, seed=1)


def checked(folder: Path, device: str, *, leased: bool) -> subprocess.CompletedProcess[str]:
    tables = [f'[model.{name}]\nfile = "{name}.onnx"\nslo_ms = 30000\nrate = 20\nmax_batch = 8\n' for name in MODELS]
    text = "".join((f'device = "{device}"', SETTINGS, LEASED if leased else "", *tables))
    (folder / "serving.toml").write_text(text)
    manager = ("--manager", "http://127.0.0.1:1") if leased else ()  # a check does not ask it
    command = [sys.executable, "-m", "farside", "serve", "run", "--check", str(folder), *manager]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_start_on_leased_gpus_wants_no_gpu_where_the_front_is(folder: Path) -> None:
    told = checked(folder, "mps", leased=True)

    assert (told.returncode, told.stderr) == (0, "")


def test_a_profile_of_gpus_that_were_cut_is_none_of_whole_ones(folder: Path) -> None:
    told = checked(folder, "gpu", leased=True)

    assert told.returncode == 2
    assert "is a profile of another driver, mps instead of gpu" in told.stderr


def test_gpus_that_this_machine_does_not_have_are_named_before_anything_starts(folder: Path) -> None:
    problem = GpuDriver().capabilities().problem
    if not problem:
        pytest.skip("this machine has a GPU")

    told = checked(folder, "gpu", leased=False)

    assert told.returncode == 2
    assert f"serving.toml: device = 'gpu': gpu: {problem}" in told.stderr
    assert "Traceback" not in told.stderr

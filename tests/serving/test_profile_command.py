"""`farside serve profile` and `farside serve check` as a user runs them."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from farside.agent.serving.model_file import ModelFile
from farside.cli.serve import ProfileRequest
from farside.cli.serving.profile import run
from farside.errors import ConfigError, Unavailable
from farside.serve.profile.profiler import ProfileResult, ProfileTask
from tests.serving.executors import small_models
from tests.serving.front import model_file
from tests.serving.nvidia_stand_in import Nvml
from tests.support.waiting import DEADLINE_S, text_of, until


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "farside", "serve", *map(str, arguments)]


def told(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"parts": "20,80"}, "--parts 20,80: does not have 100; add it: plans need the whole"),
        ({"parts": "20,many"}, "--parts 20,many: is no list of numbers; give numbers of 1 to 100"),
        ({"parts": "0,100"}, "--parts 0,100: is no list of numbers; give numbers of 1 to 100"),
        ({"minutes": 0.0}, "--minutes 0: is out of bounds; give minutes up to a day"),
        ({"cores": "9999"}, "--cores 9999: core 9999 is not ours; name cores of this machine"),
        ({"device": "whole", "gpu": "1"}, "--gpu 1: the driver whole has CPU cores; give --cores"),
        ({"device": "whole", "capacity": 80}, "--capacity 80: is for the driver cpu, not whole; take it out"),
        (
            {"device": "whole", "parts": "20,100"},
            "--parts 20,100: device 0: the driver whole can't cut it, so it has no part of 20 %; give --parts 100, or",
        ),
        ({"cores": "0", "gpu": "0"}, "--cores 0 and --gpu 0 exclude each other; give one"),
        ({"device": "mig"}, "--device mig: an instance is not cut further; use gpu, which takes an instance as"),
        ({"device": "tpu"}, "there is no device driver tpu; choose auto, mps or cpu"),
        ({"device": "whole", "models": Path("absent")}, "absent: is not a folder; name a folder with model files"),
    ],
)
def test_a_wrong_option_is_one_line_and_nothing_is_made(tmp_path: Path, options: dict[str, object], line: str) -> None:
    values = {"models": tmp_path, "out": tmp_path / "out", **options}
    with pytest.raises((ConfigError, Unavailable)) as caught:
        run(ProfileRequest(**values))  # type: ignore[arg-type]

    assert str(caught.value).startswith(line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("has_mps", [False, True], ids=["without MPS", "with MPS"])
def test_an_instance_that_is_named_is_measured_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, has_mps: bool
) -> None:
    if has_mps:
        request.getfixturevalue("control")
    tasks = list[ProfileTask]()

    async def described(*_: object) -> tuple[ModelFile, ...]:
        return (model_file(),)

    async def measured(task: ProfileTask, _: object) -> ProfileResult:
        tasks.append(task)
        return ProfileResult(cells=0, rows=0, missing=0)

    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    monkeypatch.setattr("farside.cli.serving.profile.describe_folder", described)
    monkeypatch.setattr("farside.cli.serving.profile.profile", measured)
    monkeypatch.setattr("os.setpriority", lambda *_: None)
    run(ProfileRequest(models=tmp_path, out=tmp_path / "out", gpu="MIG-1.2"))

    (task,) = tasks
    assert (task.driver_name, task.parts, task.device.uuid) == ("gpu", (100,), "MIG-1.2")
    assert task.driver.identity(task.device).name == "NVIDIA A100 MIG 3g.20gb"
    with pytest.raises(Unavailable, match="GPU 1: is cut into instances; name one of them by its UUID"):
        run(ProfileRequest(models=tmp_path, out=tmp_path / "out", device="gpu", gpu="1"))


def test_check_shows_drivers_frameworks_and_models(tmp_path: Path) -> None:
    small_models(tmp_path)
    done = told("check", tmp_path)

    assert done.stderr == ""
    assert "libnvidia-ml.so.1" in done.stdout or "mps" in done.stdout
    assert "input FP32 [40]" in done.stdout


@pytest.mark.long
def test_check_names_a_file_that_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime (requirements/serving.txt)")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    done = told("check", tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith(f"farside: {tmp_path}/bad.onnx: is no model that can be run (")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_profile_that_is_interrupted_keeps_what_it_has_and_leaves_nothing_running(tmp_path: Path) -> None:
    small_models(tmp_path / "models")
    out = tmp_path / "out"
    arguments = command("profile", tmp_path / "models", "--out", out, "--device", "whole", "--cores", "0")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        until(lambda: text_of(out / "runs.csv").count("\n") >= 2, what="a cell was measured")
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=DEADLINE_S)

    assert "Traceback" not in stderr
    assert running.returncode != 0
    assert children
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert text_of(out / "runs.csv").endswith("\n")
    assert json.loads(text_of(out / "profile.json"))["parts"] == [100]  # a device that is not cut has no others

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


TOKENS = """
device = "whole"
cpu_devices = [[0]]
admin_socket = "s"
profile = "profile"
token_file = "tokens"
[model.tokens]
file = "open.onnx"
slo_ms = 30000
max_shape = {x = [3, 4]}
[model.single]
file = "single.onnx"
slo_ms = 30000
max_batch = 1
"""


@pytest.fixture
def shaped(tmp_path: Path) -> Path:
    """Models whose file says what they themselves leave open, and one more that it does not name."""
    for package in ("onnxruntime", "onnx"):
        pytest.importorskip(package, reason=f"needs {package} (requirements/serving.txt)")
    from tests.serving.test_describe import model_file as made

    made(tmp_path, "Relu", ["batch", "length", 4], name="open")
    made(tmp_path, "Relu", [1, 4], name="single")
    made(tmp_path, "Relu", ["batch", 4], name="other")
    (tmp_path / "serving.toml").write_text(TOKENS)
    return tmp_path


def test_a_profile_has_the_shapes_and_batches_of_the_file_and_no_others_are_served(shaped: Path) -> None:
    file, out = shaped / "serving.toml", shaped / "profile"
    arguments = (shaped, "--out", out, "--device", "whole", "--cores", "0", "--max-batch", "2")
    done = told("profile", *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    measured = json.loads((out / "profile.json").read_text())["models"]
    assert {name: (one["input"], one["max_batch"]) for name, one in measured.items()} == {
        "other": ("4 FP32", 2), "single": ("4 FP32", 1), "tokens": ("3x4 FP32", 2),
    }  # fmt: skip

    (shaped / "tokens").touch(0o600)
    (shaped / "tokens").write_text("secret")  # what only serving needs was not looked for
    file.write_text(TOKENS.replace("[3, 4]}", "[3, 4]}\nmax_batch = 2") + "rate = 1")
    assert told("run", "--check", shaped).stderr == ""
    file.write_text(file.read_text().replace("[3, 4]", "[5, 4]"))
    for refused in (told("run", "--check", shaped), told("profile", *arguments)):
        assert refused.returncode == 2
        assert f"{out}: model tokens was measured with rows 3x4 FP32 instead of 5x4 FP32; " in refused.stderr
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("was", "now", "line"),
    [
        ("{x = [3, 4]}", "{x = [3, 5]}", "open.onnx: max_shape of x does not fit [length, 4]; give a row's shape"),
        ("max_shape", "max_shapes", "serving.toml: model.tokens.max_shapes is no setting; did you mean max_shape?"),
        ("max_shape = {x = [3, 4]}", "", "open.onnx: x has rows of open length [length, 4]; give max_shape for x in"),
        ("max_batch = 1", "", "single.onnx: the first axis of x is fixed at 1; export it with an open first axis, or"),
        ('"open.onnx"', '"absent.onnx"', "serving.toml: model.tokens.file = 'absent.onnx': "),
        ("model.tokens", "model.other", "other.onnx: serving.toml has a model other of another file; rename one"),
        ("[model.single]", "[model.single", "serving.toml: is no TOML file"),
    ],
)
def test_a_file_that_does_not_suit_its_models_is_refused_before_anything_is_measured(
    shaped: Path, was: str, now: str, line: str
) -> None:
    (shaped / "serving.toml").write_text(TOKENS.replace(was, now))

    with pytest.raises(ConfigError) as caught:
        run(ProfileRequest(models=shaped, out=shaped / "out", device="whole"))
    assert str(caught.value).startswith(f"{shaped}/{line}")
    assert not (shaped / "out").exists()


def test_check_shows_models_with_the_shapes_of_the_file(shaped: Path) -> None:
    done = told("check", shaped)

    assert done.stderr == ""
    assert "x FP32 [3, 4]" in done.stdout


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

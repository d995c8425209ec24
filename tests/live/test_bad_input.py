"""What a manager can't begin with is refused in one line: which setting, which file, and what to do."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.config import ManagerConfig
from farside.errors import FarsideError
from farside.scheduler.predict.gpu_time import GpuTimeParams
from farside.scheduler.predict.learned_times import LearnedTimes
from farside.scheduler.predict.model_files import ModelStore
from farside.scheduler.sim.learned_before import learned_before
from tests.predict.log import past, repeating

HEADER = "job_id,submit_s,user,name,gpus,duration_s\n"


def refusal(config: ManagerConfig) -> FarsideError:
    with pytest.raises(FarsideError) as refused:
        learned_before(config)
    assert "\n" not in str(refused.value)
    assert refused.value.hint, f"no way out: {refused.value}"
    return refused.value


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        ("gittins", ""),
        ("gittins", "job,seconds\na,5\n"),
        ("gittins", "job,gpu_time_s\na,-5\n"),
        ("gittins", "job,gpu_time_s\n"),
        ("gittins", "\x00\x01\x02\n"),
        ("qssf", ""),
        ("qssf", "this is no log\n"),
        ("qssf", HEADER),
        ("qssf", HEADER + "1,0,ann,train,none,50\n"),
        ("srtf", HEADER + "1,0,ann,train,1,-50\n"),
    ],
)
def test_past_jobs_that_cannot_be_read_are_one_line_with_a_way_out(tmp_path: Path, policy: str, text: str) -> None:
    path = tmp_path / "past.csv"
    path.write_text(text)

    error = refusal(ManagerConfig(policy=policy, policy_history=path))

    assert str(error).startswith("policy_history: ")
    assert str(path) in str(error)
    assert "--" not in str(error)  # a setting has no options


@pytest.mark.parametrize("policy", ["gittins", "qssf"])
def test_past_jobs_that_are_not_there_are_one_line_with_a_way_out(tmp_path: Path, policy: str) -> None:
    for path in (tmp_path / "nothing.csv", tmp_path):
        error = refusal(ManagerConfig(policy=policy, policy_history=path))

        assert str(error).startswith("policy_history: ")
        assert str(path) in str(error)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    times = LearnedTimes(GpuTimeParams(first="rolling"), history=past(repeating(400)))
    record = times.service.fit(1e9)
    assert record is not None
    ModelStore(folder).save(record)
    return folder


def _cut(folder: Path) -> None:
    (path,) = folder.glob("qssf-*.txt")
    path.write_bytes(path.read_bytes()[:-10])


def _of_later_version(folder: Path) -> None:
    path = folder / "qssf.json"
    path.write_text(path.read_text().replace('"format": 2', '"format": 9'))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "qssf.json").unlink(),
        lambda folder: (folder / "qssf.json").write_text(""),
        lambda folder: (folder / "qssf.json").write_text("{}"),
        lambda folder: (folder / "qssf.json").chmod(0o666),
        _cut,
        _of_later_version,
    ],
    ids=["missing", "empty", "damaged", "writable", "cut", "later"],
)
def test_a_model_that_cannot_be_used_is_one_line_with_a_way_out(
    tmp_path: Path, model: Path, spoil: Callable[[Path], object]
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    spoil(folder)

    error = refusal(ManagerConfig(policy="qssf", policy_models=folder))

    assert str(error).startswith("policy_models: ")
    assert str(folder) in str(error)


def test_a_model_s_folder_that_is_below_a_file_is_said_to_be_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for named in (file, file / "models"):
        error = refusal(ManagerConfig(policy="qssf", policy_models=named))

        assert str(error) == f"policy_models: {named}: is no folder; name the folder that `farside predict fit` wrote"


def test_a_model_without_the_library_that_reads_it_is_one_line_with_a_way_out(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)

    error = refusal(ManagerConfig(policy="qssf", policy_models=model))

    assert str(error) == "a model of run times needs LightGBM; pip install lightgbm"


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"policy": "qsf"}, "no policy 'qsf'"),
        ({"policy": "gittins", "policy_settings": "is_learning=false"}, "policy: gittins has no distribution"),
        ({"policy": "las", "policy_models": "/nowhere"}, "policy_models: las asks for no model"),
        ({"policy": "fifo", "policy_history": "/nowhere"}, "policy_history: fifo learns nothing"),
    ],
)
def test_a_policy_that_cannot_have_what_it_needs_is_one_line_with_a_way_out(told: dict[str, str], said: str) -> None:
    values = {name: Path(value) if name.startswith("policy_") and value[0] == "/" else value
              for name, value in told.items()}  # fmt: skip

    assert said in str(refusal(ManagerConfig(**values)))  # type: ignore[arg-type]

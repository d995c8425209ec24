"""The profiler: which cells in which order, what is kept, and the tables that come of it."""

import asyncio
import json
import os
import random
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farside.agent.serving.model_file import ModelFile, TensorSpec
from farside.agent.serving.partition.cpu import CpuDriver
from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.policy import Device, Entry, Identity, Traits
from farside.agent.serving.partition.whole import WholeDriver
from farside.errors import ConfigError, Unavailable
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Plan
from farside.serve.profile.cells import WHOLE_PCT, Side, batches_of, beside, few, monotone, needed, rest, round_of
from farside.serve.profile.folder import (
    Fingerprint,
    Header,
    ProfiledModel,
    Run,
    RunsFile,
    profile_problem,
    read_header,
    write_header,
    write_tables,
)
from farside.serve.profile.profiler import ProfileTask, find_models, profile
from farside.serve.table import PROCESS_MB, read_tables
from farside.whole_file import lock_file
from tests.serving.executors import small_models
from tests.serving.front import model_file

PARTS = (20, 40, 50, 60, 80, 100)
DEVICE = Fingerprint(
    driver="cpu", name="a processor", cores=(0, 1), capacity_pct=90, memory_mb=4000, runtimes={"onnxruntime": "1.0"}
)


def header(parts: tuple[int, ...] = PARTS, largest: int = 4, names: tuple[str, ...] = ("a", "b")) -> Header:
    models = {
        name: ProfiledModel(file=f"{name}.onnx", sha256=name * 64, max_batch=largest, memory_mb=10, input="4 FP32")
        for name in names
    }
    return Header(version=1, device=DEVICE, models=models, parts=parts, process_mb=80, seed=1)


def run_of(side: Side, other: Side | None = None, *, p95_ms: float, number: int = 0, is_noisy: int = 0) -> Run:
    return Run(
        round=number, model=side.model, part_pct=side.part_pct, batch=side.batch,
        other_model=other.model if other else "", other_part_pct=other.part_pct if other else 0,
        other_batch=other.batch if other else 0, p50_ms=p95_ms / 2, p95_ms=p95_ms, p99_ms=p95_ms * 2, runs=50,
        threads=1,
        share_asked_pct=side.part_pct, share_got_pct=19.5, clock_mhz=None, temperature_c=None, noise_pct=1.5,
        is_noisy=is_noisy,
    )  # fmt: skip


def took_ms(side: Side) -> float:
    return 100 * side.batch / side.part_pct


def test_sizes_are_doubled_up_to_the_largest_and_the_first_are_its_ends_and_middle() -> None:
    assert batches_of(32) == (1, 2, 4, 8, 16, 32)
    assert batches_of(6) == (1, 2, 4, 6)
    assert few(batches_of(32)) == (1, 8, 32)
    assert few((1,)) == (1,)


@settings(max_examples=30)
@given(st.integers(1, 64), st.integers(1, 4), st.integers(0, 9))
def test_a_round_has_every_cell_once_and_the_needed_ones_first(largest: int, count: int, seed: int) -> None:
    models = {f"m{number}": largest for number in range(count)}
    cells = list(round_of(models, PARTS, random.Random(seed)))
    first = needed(models, PARTS)

    assert set(cells[: len(first)]) == set(first)
    assert len(set(cells)) == len(cells) == len(first) + len(beside(models, PARTS)) + len(rest(models, PARTS))
    assert all(sum(side.part_pct for side in cell) == 100 for cell in cells if len(cell) > 1)
    assert cells != list(round_of(models, PARTS, random.Random(seed + 1))) or largest * count < 4


@settings(max_examples=50)
@given(st.dictionaries(st.integers(1, 64), st.floats(0.1, 1000), min_size=2))
def test_what_was_not_measured_lies_between_its_neighbours(points: dict[int, float]) -> None:
    wanted = range(min(points), max(points) + 1)
    found = monotone(points, list(wanted))

    assert found.keys() == set(wanted) - points.keys()
    for batch, value in found.items():
        low = points[max(one for one in points if one < batch)]
        high = points[min(one for one in points if one > batch)]
        assert low * 0.999 <= value <= max(low, high) * 1.001


def test_tables_of_a_profile_are_what_plans_are_made_from(tmp_path: Path) -> None:
    known = header()
    write_header(tmp_path, known)
    runs = RunsFile(tmp_path)
    for (side,) in needed(known.largest, PARTS):
        runs.add([run_of(side, p95_ms=took_ms(side))])
    for side, other in beside(known.largest, PARTS):
        runs.add([run_of(side, other, p95_ms=1.2 * took_ms(side)), run_of(other, side, p95_ms=1.2 * took_ms(other))])
    write_tables(tmp_path, known, RunsFile(tmp_path).rows)
    tables = read_tables(tmp_path)

    assert (tables.device.memory_mb, tables.device.process_mb) == (4000, 80)
    assert tables.models["a"].latency_ms[50] == (2.0, 4.0, 6.0, 8.0)
    assert tables.models["a"].slo_ms == 8  # twice what the largest batch takes on the whole device
    pressure = tables.device.interference.pressure(60, [("b", 4)])
    assert list(tables.device.interference.factors("a", 40, pressure)) == pytest.approx([1.2] * 4, abs=0.1)
    sizes = SCHEDULERS["glet+int"].sizes(tables.models, tables.device)
    assert isinstance(SCHEDULERS["glet+int"].plan(sizes, {"a": 100.0, "b": 50.0}, 4), Plan)


def test_noisy_rows_count_only_where_there_are_no_quiet_ones(tmp_path: Path) -> None:
    known = header(parts=(100,), largest=1, names=("a",))
    side = Side("a", 100, 1)
    runs = RunsFile(tmp_path)
    runs.add([run_of(side, p95_ms=9.0, is_noisy=1)])
    runs.add([run_of(side, p95_ms=5.0, number=1)])
    runs.add([run_of(side, p95_ms=7.0, number=2)])
    write_tables(tmp_path, known, runs.rows)

    assert "a,100,1,333.333,6.0,3.0,6.0" in (tmp_path / "cpu-LATENCY.csv").read_text()


def test_a_row_that_a_killed_run_left_half_is_measured_again(tmp_path: Path) -> None:
    side, other = Side("a", 40, 1), Side("b", 60, 2)
    runs = RunsFile(tmp_path)
    runs.add([run_of(Side("a", 100, 1), p95_ms=5.0)])
    runs.add([run_of(side, other, p95_ms=5.0), run_of(other, side, p95_ms=6.0)])
    file = tmp_path / "runs.csv"
    file.write_bytes(file.read_bytes()[:-7])
    again = RunsFile(tmp_path)

    assert len(again.rows) == 2
    assert (0, (Side("a", 100, 1),)) in again.done()
    assert (0, (side, other)) not in again.done()
    again.add([run_of(side, other, p95_ms=5.0), run_of(other, side, p95_ms=6.0)])
    assert (0, (side, other)) in RunsFile(tmp_path).done()


def test_a_first_row_that_a_killed_run_left_half_is_measured_again(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(b"round,mod")
    runs = RunsFile(tmp_path)
    assert runs.rows == []
    runs.add([run_of(Side("a", 100, 1), p95_ms=5.0)])

    assert RunsFile(tmp_path).rows == runs.rows


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (b"what,is,this", "has 3 cells of 18"),
        (b"\xea", "'utf-8' codec can't decode byte 0xea"),
        (b'"', "unexpected end of data"),
        (b"0,a,100,1,,,,2.5,nan,10,50,1,100,19.5,,,1.5,0", r"Expected `float` > 0.0 - at `\$.p95_ms`"),
        (b"0,a,100,1,,,,2.5,inf,10,50,1,100,19.5,,,1.5,0", r"at `\$.p95_ms`"),
        (b"0,a,100,1,,,,-14,5,10,50,1,100,19.5,,,1.5,0", r"at `\$.p50_ms`"),
        (b"0,a,101,1,,,,2.5,5,10,50,1,100,19.5,,,1.5,0", r"at `\$.part_pct`"),
        (b"0,a,100,0,,,,2.5,5,10,50,1,100,19.5,,,1.5,0", r"at `\$.batch`"),
    ],
    ids=["cells", "bytes", "quote", "nan", "infinite", "negative", "part", "batch"],
)
def test_a_row_that_is_no_row_is_refused_with_its_line(tmp_path: Path, row: bytes, why: str) -> None:
    runs = RunsFile(tmp_path)
    runs.add([run_of(Side("a", 100, 1), p95_ms=5.0)])
    file = tmp_path / "runs.csv"
    file.write_bytes(file.read_bytes() + row + b"\n")

    with pytest.raises(ConfigError, match=f"{file}, line 3: .*{why}"):
        RunsFile(tmp_path)


def replaced(**changes: object) -> Fingerprint:
    return msgspec.structs.replace(DEVICE, **changes)


@pytest.mark.parametrize(
    ("device", "model", "line"),
    [
        (DEVICE, {}, ""),
        (replaced(name="another"), {}, "is a profile of another device, a processor instead of another"),
        (replaced(cores=(0,)), {}, "another number of cores, 2 instead of 1"),
        (replaced(capacity_pct=80), {}, "another capacity, 90 % instead of 80 %"),
        (replaced(driver="mps"), {}, "another driver, cpu instead of mps"),
        (replaced(runtimes={"onnxruntime": "2.0"}), {}, "was measured with onnxruntime 1.0 instead of 2.0"),
        (DEVICE, {"sha256": "0" * 64}, "the file of model a has changed since it was measured"),
        (DEVICE, {"name": "c"}, "does not have the model c"),
        (
            DEVICE,
            {"inputs": (TensorSpec("input", "FP32", (8,)),)},
            "model a was measured with rows 4 FP32 instead of 8 FP32",
        ),
    ],
)
def test_a_profile_of_another_device_file_shape_or_version_is_refused_by_name(
    tmp_path: Path, device: Fingerprint, model: dict[str, object], line: str
) -> None:
    asked = msgspec.structs.replace(model_file("a", shape=(4,)), **{"sha256": "a" * 64, **model})
    problem = profile_problem(tmp_path, header(), device, [asked])

    assert problem.endswith(line)
    assert problem.startswith(str(tmp_path)) == bool(line)


def test_models_are_found_in_tritons_layout_too_and_none_twice(tmp_path: Path) -> None:
    (tmp_path / "resnet/1").mkdir(parents=True)
    (tmp_path / "resnet/1/model.onnx").touch()
    (tmp_path / "bert.pt").touch()
    (tmp_path / "notes.txt").touch()

    assert dict(find_models(tmp_path)) == {"bert": tmp_path / "bert.pt", "resnet": tmp_path / "resnet/1/model.onnx"}
    (tmp_path / "resnet.onnx").touch()
    with pytest.raises(ConfigError, match="a model of the same name"):
        find_models(tmp_path)


@pytest.mark.parametrize("file", ["a,b=c.onnx", "a\nb.pt", ".onnx.onnx", "a b/1/model.pt", f"{'a' * 65}.onnx"])
def test_a_model_whose_name_no_deployment_takes_is_refused_with_its_file(tmp_path: Path, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()

    with pytest.raises(ConfigError) as raised:
        find_models(tmp_path)
    assert str(raised.value).startswith(f"{tmp_path}: the file {file!r} gives a model no name to be served by; use ")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFile, ...]:
    return small_models(tmp_path_factory.mktemp("models"), ("mlp",), max_batch=2)


def task_of(models: tuple[ModelFile, ...], out: Path, **changes: object) -> ProfileTask:
    driver = CpuDriver()
    if problem := driver.capabilities().problem:
        pytest.skip(f"no CPU quota here: {problem}")
    values: dict[str, object] = {
        "models": models, "driver_name": "cpu", "driver": driver,
        "device": Device(cores=(min(os.sched_getaffinity(0)),)),
        "parts": (40, 60, 100), "slo_ms": {"mlp": 50.0}, "out": out, "minutes": 0.02, "run_s": 0.01,
    }  # fmt: skip
    return ProfileTask(**{**values, **changes})  # type: ignore[arg-type]


def test_a_run_that_was_stopped_goes_on_where_it_was_and_plans_come_of_it(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    first = asyncio.run(profile(task_of(models, tmp_path, minutes=1e-9), lambda line: None))
    assert first.missing == 6
    assert first.cells == 0

    asyncio.run(profile(task_of(models, tmp_path, minutes=0.01), lambda line: None))
    kept = (tmp_path / "runs.csv").read_text()
    while asyncio.run(profile(task_of(models, tmp_path), lambda line: None)).missing:
        pass
    assert (tmp_path / "runs.csv").read_text().startswith(kept)

    tables = read_tables(tmp_path)
    assert tables.models["mlp"].slo_ms == 50
    assert tables.device.parts == (40, 60, 100)
    assert json.loads((tmp_path / "profile.json").read_text())["models"]["mlp"]["sha256"] == models[0].sha256
    with pytest.raises(ConfigError, match="is a profile of the parts 40, 60, 100; name another folder with --out"):
        asyncio.run(profile(task_of(models, tmp_path, parts=(100,)), lambda line: None))


def test_another_slo_is_taken_when_a_run_goes_on_and_what_was_measured_stays(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    asyncio.run(profile(task_of(models, tmp_path, minutes=1e-9), lambda line: None))
    asyncio.run(profile(task_of(models, tmp_path, minutes=1e-9, slo_ms={"mlp": 70.0}), lambda line: None))
    asyncio.run(profile(task_of(models, tmp_path, minutes=1e-9, slo_ms={}), lambda line: None))

    found = read_header(tmp_path)
    assert found is not None
    assert found.models["mlp"].slo_ms == 70


def test_a_folder_that_another_run_measures_into_or_that_has_runs_of_unknown_origin_is_refused(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    lock = lock_file(tmp_path / ".lock")
    assert lock is not None
    with pytest.raises(ConfigError, match="another run measures into it; wait for it"):
        asyncio.run(profile(task_of(models, tmp_path), lambda line: None))
    os.close(lock)
    (tmp_path / "runs.csv").touch()
    with pytest.raises(ConfigError, match=r"has runs.csv, but no profile.json that says of what"):
        asyncio.run(profile(task_of(models, tmp_path), lambda line: None))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file/out: Not a directory; name another folder with --out"):
        asyncio.run(profile(task_of(models, tmp_path / "file/out"), lambda line: None))


class FixedSizes(WholeDriver):
    """Parts of fixed sizes, at most ``places`` at a time, each of which has a process that uses ``process_gib``.

    None: nobody counts what it uses.
    """

    traits: ClassVar[Traits] = Traits(on_gpu=False)

    def __init__(self, places: int, process_gib: int | None = 0, memory_gib: int = 16) -> None:
        self.places, self.process_gib, self.memory_gib = places, process_gib, memory_gib
        self.opened: list[int] = []
        self.open_now = 0

    def identity(self, device: Device) -> Identity:
        return Identity("cores of fixed sizes", self.memory_gib << 10)

    def process_bytes(self, device: Device, pid: int) -> int | None:  # type: ignore[override]
        return None if self.process_gib is None else self.process_gib << 30

    def open(self, device: Device, part_pct: int) -> FixedPlace:  # type: ignore[override]
        if self.open_now == self.places:
            raise Unavailable("no place is free")
        self.opened.append(part_pct)
        self.open_now += 1
        return FixedSize(self, part_pct, super().open(device, WHOLE_PCT).entry)


class FixedSize(FixedPlace):
    def __init__(self, driver: FixedSizes, part_pct: int, entry: Entry) -> None:
        super().__init__(part_pct, entry)
        self._driver = driver

    def close(self) -> None:
        self._driver.open_now -= 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("driver", "is_kept"),
    [
        (FixedSizes(99), True),
        (FixedSizes(2), False),
        (FixedSizes(99, process_gib=9), False),
        (FixedSizes(99, process_gib=None), True),
        (FixedSizes(99, process_gib=None, memory_gib=2), False),
    ],
    ids=["room for all", "two places", "memory for one", "room for all by default", "memory for one by default"],
)
def test_where_sizes_are_fixed_each_keeps_its_process_as_long_as_there_is_room(
    models: tuple[ModelFile, ...], tmp_path: Path, driver: FixedSizes, is_kept: bool
) -> None:
    task = task_of(models, tmp_path, driver_name="mps", driver=driver, parts=(50, 100), minutes=None)
    result = asyncio.run(profile(task, lambda line: None))

    assert (result.missing, driver.open_now) == (0, 0)
    assert read_tables(tmp_path).device.parts == (50, 100)
    if is_kept:
        assert sorted(driver.opened) == [50, 50, 100]
    else:
        assert len(driver.opened) > 3


def test_where_nobody_counts_what_a_process_takes_the_profile_says_so_and_plans_reckon_with_the_default(
    models: tuple[ModelFile, ...], tmp_path: Path
) -> None:
    told = list[str]()
    driver = FixedSizes(99, process_gib=None)
    task = task_of(models, tmp_path, driver_name="mps", driver=driver, parts=(100,), minutes=None)
    asyncio.run(profile(task, told.append))

    assert json.loads((tmp_path / "profile.json").read_text())["process_mb"] is None
    assert read_tables(tmp_path).device.process_mb == PROCESS_MB
    assert "plans reckon with 1,230 MB besides models" in told[-1]

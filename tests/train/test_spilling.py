"""Input on the disk and at peers: the same bits at any share, whatever is damaged or dies."""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import msgspec
import numpy as np
import pytest

from farside.agent.training.alpha import Keep, Use
from farside.agent.training.messages import Uses, from_worker, packet_of, use_of, wire_of_use
from farside.cli.train import _spilling
from farside.errors import ConfigError, FarsideError
from farside.group_time import ReadCost
from farside.training.app.catalog import PROGRAMS
from farside.training.app.dataset import load
from farside.training.app.program import Options
from farside.training.loop import spilled_blocks, spilling
from farside.training.loop.job import begin
from farside.training.loop.memory_meter import MemoryMeter, MemoryUse
from farside.training.loop.parked_model import LEAST_BYTES, ParkedModel
from farside.training.loop.reload import Reader
from farside.training.loop.spill_file import BlockFile, Buffer, file_in, peer_at
from farside.training.loop.spilled_blocks import DamagedBlock, SpilledBlocks, _nearer, may_leave_memory, spill_order
from farside.training.loop.spilling import spill_place_for
from farside.training.loop.turns import SharedNode
from tests.support.waiting import until
from tests.train.executors import executor
from tests.train.programs import BLOCKS, ended, job_of, model_of, train, walk


class Made(Sequence[Any]):
    """Blocks that are made when they are asked for, and how often each was."""

    def __init__(self, number: int, make: Callable[[int], Any]) -> None:
        self._make = make
        self.asked = [0] * number
        self.broken = False

    def __len__(self) -> int:
        return len(self.asked)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        assert isinstance(at, int)
        if self.broken:
            raise OSError("the input is gone")
        self.asked[at] += 1
        return self._make(at)


def mixed(number: int) -> Any:
    """Arrays of several formats and orders, of other sizes in each block."""
    draws = np.random.default_rng(number)
    rows = draws.standard_normal((3 + number % 4, 50))
    return rows, np.asfortranarray(rows * 2), draws.integers(0, 9, number, dtype=np.int32), np.array(float(number))


def spilled(
    folder: Path, source: Sequence[Any], *, share: float = 0.0, peer: BlockFile | None = None,
    disk: BlockFile | None = None,
) -> SpilledBlocks[Any]:  # fmt: skip
    """All blocks at one worker."""
    return SpilledBlocks(
        source, range(len(source)), disk=disk or file_in(folder), peer=peer, first_share=lambda *_: share
    )  # fmt: skip


def look(blocks: SpilledBlocks[Any]) -> list[Any]:
    """A pass: of each block its number, and what its arrays are."""
    return [
        (block.number, [(one.dtype, one.shape, one.tobytes("A"), one.flags.f_contiguous) for one in block.data])
        for block in blocks
    ]


def wanted(number: int) -> list[Any]:
    return [
        (at, [(one.dtype, one.shape, one.tobytes("A"), one.flags.f_contiguous) for one in mixed(at)])
        for at in range(number)
    ]


def test_blocks_are_the_same_in_the_same_order_at_any_share_and_are_made_once(tmp_path: Path) -> None:
    source = Made(40, mixed)
    blocks = spilled(tmp_path, source)
    for share in (0.0, 0.3, 1.0, 1.0, 0.5, 0.0, 0.9, 0.9):
        blocks.keep = Keep(spilled=share)
        assert look(blocks) == wanted(40)
        assert blocks.spilled == pytest.approx(share, abs=1 / 40)
    blocks.close()

    assert source.asked == [1] * 40
    assert blocks.read_bytes[0] > 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_on_the_disk_lies_evenly_between_the_rest() -> None:
    for blocks in (1, 2, 7, 32, 100):
        order = spill_order(blocks)
        assert sorted(order) == list(range(blocks))
        for count in range(2, blocks):
            places = sorted(order[:count])
            gaps = [after - before for before, after in itertools.pairwise(places)]
            assert max(gaps) <= 4 * blocks / count


def test_a_pass_that_is_left_early_and_two_at_once_see_the_right_blocks(tmp_path: Path) -> None:
    blocks = spilled(tmp_path, Made(9, mixed), share=0.8)
    look(blocks)
    for block in blocks:
        if block.number == 4:
            break
    for one, other in zip(blocks, blocks, strict=True):
        assert [array.tobytes() for array in one.data] == [array.tobytes() for array in other.data]
    assert look(blocks) == wanted(9)
    blocks.close()


def test_arrays_that_a_program_keeps_stay_as_they_are(tmp_path: Path) -> None:
    blocks = spilled(tmp_path, Made(30, mixed), share=1.0)
    look(blocks)

    kept = [block.data[0] for block in blocks]
    again = look(blocks)

    assert again == wanted(30)
    assert [one.tobytes() for one in kept] == [mixed(at)[0].tobytes() for at in range(30)]
    with pytest.raises(ValueError, match="read-only"):
        kept[0][0, 0] = 1
    blocks.close()


def look_twice(blocks: SpilledBlocks[Any]) -> None:
    """Two passes: some blocks of the first one were read ahead."""
    look(blocks)
    look(blocks)


def damage(file: BlockFile) -> None:
    """Another byte in the middle of each page."""
    page = Buffer(4096)
    for offset in range(0, os.fstat(file.fd).st_size, 4096):
        file.read(page.view(4096), offset)
        page.view(4096)[8] ^= 1
        file.write(page.view(4096), offset)


def test_a_damaged_block_is_told_and_read_from_the_input_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = Made(6, mixed)
    blocks = spilled(tmp_path, source, share=0.5)
    look(blocks)
    damage(blocks.disk)

    assert look(blocks) == look(blocks) == wanted(6)  # some were read ahead
    assert sum(source.asked) == 9
    assert look(blocks) == wanted(6)
    assert sum(source.asked) == 9  # they stay in memory
    assert sum("is read from the input again" in record.getMessage() for record in caplog.records) == 3
    blocks.close()


def test_a_damaged_block_whose_input_is_gone_or_has_changed_ends_the_job_with_block_and_place(tmp_path: Path) -> None:
    source = Made(4, mixed)
    blocks = spilled(tmp_path, source, share=1.0)
    look(blocks)
    damage(blocks.disk)
    source.broken = True
    with pytest.raises(DamagedBlock, match=r"block \d in .*/farside-blocks-\w+ is damaged, and the input can't be"):
        look_twice(blocks)
    blocks.close()

    changing = Made(4, lambda number: np.full(9, float(sum(changing.asked))))
    other = spilled(tmp_path, changing, share=1.0)
    for _ in other:
        pass
    damage(other.disk)
    with pytest.raises(DamagedBlock, match="the input has changed"):
        assert len(list(other) + list(other)) == 0
    other.close()


class Failing(BlockFile):
    """A disk that is full, or loses its cable."""

    writes = reads = True

    def write(self, view: memoryview, offset: int) -> None:
        if not self.writes:
            raise OSError(28, "No space left on device")
        super().write(view, offset)

    def read(self, view: memoryview, offset: int) -> None:
        if not self.reads:
            raise OSError(5, "Input/output error")
        super().read(view, offset)


def failing(folder: Path) -> Failing:
    fd = os.open(folder / "blocks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.ftruncate(fd, 1 << 20)
    return Failing(fd, str(folder / "blocks"), 1 << 20)


def test_blocks_leave_memory_that_is_full_whatever_the_share_and_come_back_once_it_is_not(tmp_path: Path) -> None:
    full = [True]
    blocks = SpilledBlocks(
        Made(9, mixed), range(9), disk=file_in(tmp_path), first_share=lambda *_: 0.0, is_full=lambda: full[-1]
    )
    for _ in range(2):
        assert look(blocks) == wanted(9)
        assert blocks.spilled == pytest.approx(8 / 9)  # the first one was there before anybody could know
    full.append(False)
    assert look(blocks) == look(blocks) == wanted(9)
    assert blocks.spilled == 0
    blocks.close()


def test_a_full_disk_leaves_blocks_in_memory_and_a_broken_one_is_told(tmp_path: Path) -> None:
    disk, source = failing(tmp_path), Made(8, mixed)
    disk.writes = False
    blocks = spilled(tmp_path, source, share=1.0, disk=disk)
    assert look(blocks) == look(blocks) == wanted(8)
    assert blocks.spilled == 0
    blocks.close()

    disk = failing(tmp_path)
    blocks = spilled(tmp_path, source, share=1.0, disk=disk)
    look(blocks)
    disk.reads, source.broken = False, True
    with pytest.raises(DamagedBlock, match=r"block \d in .*/blocks can't be read: Input/output error, and the input"):
        look_twice(blocks)
    blocks.close()


def test_blocks_come_from_a_peer_and_from_the_disk_once_it_has_died(tmp_path: Path) -> None:
    peer = failing(tmp_path)
    blocks = spilled(tmp_path, Made(8, mixed), share=1.0, peer=peer)
    look(blocks)
    until(lambda: blocks.costs[1], what="what the peer takes, which is known before it is chosen")
    assert blocks.read_bytes[1] == 4096  # one block is enough for that
    blocks.keep = Keep(spilled=1.0, by_peer=1.0)
    for _ in range(3):
        assert look(blocks) == wanted(8)  # what the disk delivers goes to the peer
    before = blocks.read_bytes
    assert look(blocks) == wanted(8)
    assert blocks.read_bytes[0] == before[0]
    assert blocks.read_bytes[1] > before[1]

    peer.reads = False
    assert look(blocks) == look(blocks) == wanted(8)
    disk_cost, peer_cost = blocks.costs
    assert disk_cost is not None
    assert peer_cost is None
    blocks.close()


def test_a_disk_that_is_quick_and_slow_in_turn_is_taken_for_what_it_delivers() -> None:
    cost = ReadCost(bytes_s=1e9)
    for number in range(60):
        cost = _nearer(cost, ReadCost(bytes_s=1e9 if number % 2 else 25e6))

    assert 40e6 < cost.bytes_s < 60e6


def test_a_disk_that_serves_some_blocks_at_once_and_then_none_has_one_rate() -> None:
    cost, seen = ReadCost(bytes_s=50e6), list[float]()
    for number in range(200):
        cost = _nearer(cost, ReadCost(bytes_s=1e9 if number % 5 else 10.4e6))
        seen.append(cost.bytes_s)

    assert 40e6 < min(seen) < max(seen) < 62e6


class Timed(BlockFile):
    """A place whose reads take what is said."""

    def __init__(self, path: Path, clock: "Clock") -> None:
        path.write_bytes(bytes(1 << 20))
        super().__init__(os.open(path, os.O_RDWR), path.name, 1 << 20)
        self._clock, self.took_s, self.asked = clock, 1e-4, 0

    def read(self, view: memoryview, offset: int) -> None:
        self.asked += 1
        self._clock.now_s += self.took_s
        super().read(view, offset)


class Clock:
    """Time that passes in reads alone."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def thread_time(self) -> float:
        return 0.0


def test_a_peer_that_was_slow_for_a_moment_is_measured_again_at_longer_and_longer_intervals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(spilled_blocks, "time", clock)
    peer = Timed(tmp_path / "peer", clock)
    peer.took_s = 1.0
    blocks = spilled(tmp_path, Made(12, mixed), share=0.7, peer=peer)
    asked, rates = list[int](), list[float]()
    for _ in range(48):
        assert look(blocks) == wanted(12)
        asked.append(peer.asked)
        cost = blocks.costs[1]
        rates += [] if cost is None else [cost.bytes_s]
        if cost is not None:
            peer.took_s = 1e-4

    assert rates[0] < 1e5 < 1e6 < rates[-1]
    assert 5 <= asked[-1] <= 8
    assert asked[-1] - asked[-16] <= 1
    blocks.close()


def test_a_peer_that_has_become_slow_is_known_to_be_slow_after_a_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(spilled_blocks, "time", clock)
    peer = Timed(tmp_path / "peer", clock)
    blocks = spilled(tmp_path, Made(12, mixed), share=0.7, peer=peer)
    rates, quick = dict[int, float](), 0  # by reads that took long
    for _ in range(48):
        assert look(blocks) == wanted(12)
        cost = blocks.costs[1]
        if cost is None:
            continue
        if peer.took_s < 1.0:
            peer.took_s, quick = 1.0, peer.asked
        rates[peer.asked - quick] = cost.bytes_s

    assert rates[0] > 1e6
    assert rates[1] == rates[2] == rates[0], "what is slow for a moment changes nothing"
    assert rates[3] < 1e5
    blocks.close()


def test_a_peer_is_for_one_worker_and_has_to_be_a_device_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "peer"
    path.write_bytes(bytes(1 << 16))
    one = peer_at(path)
    with pytest.raises(ConfigError, match="in use by another worker"):
        peer_at(path)
    one.close()
    peer_at(path).close()
    for what, line in ((tmp_path / "none", "can't be opened"), (Path("/dev/null"), "neither a block device nor")):
        with pytest.raises(ConfigError, match=line):
            peer_at(what)
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="holds nothing"):
        peer_at(path)


class Buffered(BlockFile):
    """A file system without O_DIRECT."""

    def _use_direct(self, *, on: bool) -> None:
        super()._use_direct(on=False)


def test_a_file_system_without_o_direct_is_a_second_best_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = Buffered(os.open(tmp_path / "blocks", os.O_RDWR | os.O_CREAT, 0o600), "blocks", None)
    blocks = spilled(tmp_path, Made(12, mixed), share=0.7, disk=disk)

    assert look(blocks) == look(blocks) == wanted(12)
    blocks.close()
    assert [record.getMessage() for record in caplog.records if "O_DIRECT" in record.getMessage()] == [
        "no O_DIRECT: blocks go through the page cache, and are given up behind"
    ]


def test_the_reader_reads_ahead_and_round_and_no_further_than_it_has_buffers() -> None:
    loaded: list[int] = []

    def fill(number: int, buffer: Buffer) -> None:
        loaded.append(number)
        buffer.view(1)[0] = number

    reader = Reader(fill, 4096, buffers=3)
    try:
        reader.follow(range(5))
        until(lambda: len(loaded) == 3, what="blocks read ahead")
        assert loaded == [0, 1, 2]
        for number in [*range(5), *range(5)]:
            buffer = reader.take(number)
            assert buffer.view(1)[0] == number
            reader.give_back(buffer)
        until(lambda: len(loaded) == 13, what="the next round")
        assert loaded == [number % 5 for number in range(13)]
        reader.follow((7, 8))
        assert reader.take(7).view(1)[0] == 7
    finally:
        reader.close()


def test_the_reader_reads_nothing_twice_that_an_order_of_fewer_blocks_begins_with() -> None:
    loaded: list[int] = []
    reader = Reader(lambda number, _buffer: loaded.append(number), 4096, buffers=4)
    try:
        reader.follow(range(0, 12, 2))
        until(lambda: len(loaded) == 4, what="blocks read ahead")
        reader.follow((0, 4, 6, 10))  # 2 is in memory from now on
        until(lambda: len(loaded) == 5, what="the one whose buffer is free")
        for number in (0, 4, 6, 10):
            reader.give_back(reader.take(number))
        until(lambda: len(loaded) > 5, what="the next round")
        assert loaded[:6] == [0, 2, 4, 6, 10, 0]
        reader.follow((0, 1, 4))  # a new one in between: what is behind it comes after it
        for number in (0, 1, 4):
            reader.give_back(reader.take(number))
        reader.follow(())
        reader.follow((3,))
        reader.take(3)
    finally:
        reader.close()


def lazily(blocks: Sequence[Any] = BLOCKS) -> Made:
    return Made(len(blocks), lambda number: blocks[number])


@pytest.fixture
def spill_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "spill"
    folder.mkdir()
    monkeypatch.setenv("FARSIDE_SPILL_DIR", str(folder))
    monkeypatch.setenv("FARSIDE_SPILL_MEMORY", "1KiB")  # less than any process has
    return folder


def test_a_program_with_no_memory_for_its_input_ends_with_the_same_bits(spill_dir: Path) -> None:
    wanted = walk(job_of())

    job = begin(lazily(), keys={"part": (4,), "count": np.zeros((), np.int64)}, iterations=6, fingerprint="walk")

    assert walk(job) == wanted
    assert list(spill_dir.iterdir()) == []


def test_a_killed_program_goes_on_from_its_checkpoint_without_its_input_in_memory(
    tmp_path: Path, spill_dir: Path
) -> None:
    wanted = walk(job_of(iterations=8))
    keys = {"part": (4,), "count": np.zeros((), np.int64)}
    how: dict[str, Any] = {"keys": keys, "fingerprint": "walk", "checkpoint_dir": tmp_path / "kept", "checkpoint_s": 0}
    walk(begin(lazily(), iterations=5, **how))

    source = lazily()
    job = begin(source, iterations=8, **how)
    assert walk(job) == wanted
    assert not job.is_new
    assert source.asked == [1] * len(BLOCKS)


SIZED: dict[str, Any] = {
    "nmf": {"iterations": 12, "components": 5}, "mlr": {"iterations": 25, "classes": 4}, "lasso": {"iterations": 25},
    "lda": {"iterations": 6, "components": 5},
}  # fmt: skip


@pytest.mark.parametrize("share", [0.4, 1.0])
@pytest.mark.parametrize("app", [pytest.param(app, marks=pytest.mark.long if app == "lda" else ()) for app in SIZED])
def test_the_four_programs_end_with_the_same_bits_spilled(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch, app: Any, share: float
) -> None:
    if app == "lda":
        pytest.importorskip("numba", reason="numba is not installed: requirements/training.txt")
    options = Options(app=app, data="synthetic", rows=900, columns=37, blocks=11, **SIZED[app])

    def trained() -> dict[str, bytes]:
        outcome = PROGRAMS[options.app](load(options, lets_go=True), options, lambda *_: None)
        return {name: array.tobytes() for name, array in outcome.model.items()}

    monkeypatch.setattr("farside.agent.training.alpha.first_share", lambda **_: share)
    spilled = trained()
    monkeypatch.delenv("FARSIDE_SPILL_DIR")
    monkeypatch.delenv("FARSIDE_SPILL_MEMORY")
    assert spilled == trained()


@pytest.mark.parametrize("app", ["nmf", "mlr", "lasso"])
def test_a_mapped_file_has_the_same_blocks_and_fingerprint_as_one_in_memory(tmp_path: Path, app: Any) -> None:
    table = np.random.default_rng(3).random((50, 6))
    table[:, -1] = np.arange(50) % 3
    np.save(tmp_path / "rows.npy", table.astype(np.float32) if app == "nmf" else table)
    options = Options(app=app, data=str(tmp_path / "rows.npy"), blocks=7)

    mapped, whole = load(options, lets_go=True), load(options)

    assert mapped.fingerprint == whole.fingerprint
    assert (mapped.rows, mapped.columns, mapped.classes) == (whole.rows, whole.columns, whole.classes)
    for one, other in zip(mapped.blocks, whole.blocks, strict=True):
        both = [block if isinstance(block, tuple) else (block,) for block in (one, other)]
        assert [(a.dtype, a.shape, a.tobytes()) for a in both[0]] == [(a.dtype, a.shape, a.tobytes()) for a in both[1]]


@pytest.mark.parametrize(
    ("app", "at", "value", "line"),
    [
        ("nmf", (40, 2), -1.0, "row 41, column 3: is -1"),
        ("mlr", (40, 5), 1.5, "row 41: label 1.5"),
        ("lasso", (40, 2), np.nan, "row 41, column 3: is nan"),
        ("lasso", (slice(None), slice(0, 5)), 0.0, "all columns but the target are 0"),
    ],
)
def test_what_does_not_fit_in_a_mapped_file_is_told_by_row_and_column(
    tmp_path: Path, app: Any, at: Any, value: float, line: str
) -> None:
    table = np.ones((50, 6))
    table[at] = value
    np.save(tmp_path / "rows.npy", table)

    with pytest.raises(ConfigError, match=line):
        load(Options(app=app, data=str(tmp_path / "rows.npy"), blocks=7), lets_go=True)


@pytest.mark.parametrize(("app", "data"), [("mlr", "digits"), ("nmf", "rows.csv"), ("lda", "counts.npy")])
def test_input_that_would_stay_in_memory_is_refused(app: Any, data: str) -> None:
    with pytest.raises(ConfigError, match="is in memory as a whole, so that nothing of it can be spilled"):
        load(Options(app=app, data=data), lets_go=True)


def test_spilling_is_refused_where_it_would_free_nothing_or_can_not_be(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {"part": (4,)}
    with pytest.raises(ConfigError, match="in memory already, so that spilling them would free nothing"):
        begin(BLOCKS, keys=keys, iterations=1)
    with begin(Made(2, lambda number: [number]), keys=keys, iterations=1) as job:
        with pytest.raises(ConfigError, match="an input block is a list"):
            list(job.blocks())
        job.pull()
        job.push({"part": np.zeros(4)})
        job.goes_on()
        job.goes_on()
    monkeypatch.setenv("FARSIDE_SPILL_MEMORY", "much")
    with pytest.raises(ConfigError, match="FARSIDE_SPILL_MEMORY: 'much'"):
        begin(lazily(), keys=keys, iterations=1)
    monkeypatch.setenv("FARSIDE_SPILL_MEMORY", "1GiB")
    monkeypatch.setenv("FARSIDE_SPILL_DIR", str(spill_dir / "none"))
    with pytest.raises(ConfigError, match=r"--spill-dir: no file can be made in '.*/none'"):
        begin(lazily(), keys=keys, iterations=1)
    monkeypatch.delenv("FARSIDE_SPILL_DIR")
    with pytest.raises(ConfigError, match="FARSIDE_SPILL_MEMORY without FARSIDE_SPILL_DIR"):
        begin(lazily(), keys=keys, iterations=1)


def test_a_models_large_arrays_leave_memory_and_come_back_but_for_those_that_a_program_holds(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    parked, held = ParkedModel(file), np.ones(LEAST_BYTES)
    model: dict[str, Any] = {
        "large": np.arange(LEAST_BYTES / 8), "small": np.ones(3), "held": held,
        "fortran": np.asfortranarray(np.random.default_rng(1).random((400, 400))),
    }  # fmt: skip
    before = {name: array.tobytes("A") for name, array in model.items()}
    for _ in range(2):
        parked.park(model)
        assert [name for name, array in model.items() if array is None] == ["large", "fortran"]
        parked.bring_back(model)
        assert {name: array.tobytes("A") for name, array in model.items()} == before
        assert list(model) == list(before)
    assert model["held"] is held
    assert model["fortran"].flags.f_contiguous

    parked.park(model)
    damage(file)
    with pytest.raises(FarsideError, match=r"the model's 'large' in .* is damaged; start the job again"):
        parked.bring_back(model)
    file.close()


def test_memory_is_counted_by_the_cgroup_that_has_the_least_limit(tmp_path: Path) -> None:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("0::/farside/job\n")
    job = groups / "farside/job"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("1000000\n")
    (job.parent / "memory.current").write_text("700000\n")
    (job.parent / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    (job.parent / "memory.pressure").write_text("some avg10=0.00 total=2500000\nfull avg10=0.00 total=1\n")
    assert MemoryMeter(proc=proc, cgroups=groups).read() == MemoryUse(
        used_bytes=500000, limit_bytes=1000000, stall_s=2.5
    )  # fmt: skip

    (proc / "self/cgroup").write_text("5:cpu,cpuacct:/a\n4:memory:/a\n")
    old = groups / "memory/a"
    old.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (proc / "self/status").write_text("VmRSS:\t90 kB\nRssAnon:\t30 kB\nRssFile:\t50 kB\nRssShmem:\t10 kB\n")
    assert MemoryMeter(proc=proc, cgroups=groups).read() == MemoryUse(used_bytes=40960, limit_bytes=0, stall_s=0.0)
    (old / "memory.limit_in_bytes").write_text("800\n")
    (old / "memory.usage_in_bytes").write_text("300\n")
    assert MemoryMeter(proc=proc, cgroups=groups).read().limit_bytes == 800
    assert MemoryMeter(limit_bytes=77, proc=proc, cgroups=groups).read().limit_bytes == 77


@pytest.mark.long
def test_a_nodes_executor_says_what_goes_to_the_disk_and_without_one_a_worker_decides_itself(
    tmp_path: Path, spill_dir: Path
) -> None:
    words = ("mlr", "--data", "synthetic", "--rows", 600, "--columns", 30, "--blocks", 8, "--iterations", 60)
    how = ("--spill-dir", spill_dir, "--spill-memory", "1MiB", "--out", tmp_path / "model")
    code, _, errors = ended(train(*words, *how))
    assert code == 0, errors
    by_itself = model_of(tmp_path / "model")

    with executor(tmp_path) as shared:
        turns = SharedNode(str(shared.socket), job="full", worker=0, workers=1, spills=True)
        turns.ask(-2)
        use = Use(job="", spilled=0.25, iteration_s=1.0, input_bytes=1000, used_bytes=990, limit_bytes=1000)
        assert turns.tell(use)
        turns.ask(-1)
        keep = turns.told()
        assert keep is not None
        assert keep.spilled == pytest.approx(0.34)
        assert keep.by_peer == 0
        assert turns.told() is None
        told = shared.status()["jobs"][f"{os.getuid()}:full"]
        assert (told["spilled"], told["by_peer"], told["has_settled"]) == (pytest.approx(0.34), 0.0, False)
        turns.close()
        until(lambda: not shared.status()["jobs"], what="the worker's leave")

        code, _, errors = ended(train(*words, *how, "--executor", shared.socket))
        assert code == 0, errors
        assert model_of(tmp_path / "model") == by_itself


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("mlr", "--spill-dir", "/tmp"), "digits' of mlr is in memory as a whole"),
        (("mlr", "--spill-memory", "1GiB"), "--spill-memory without --spill-dir"),
        (("mlr", "--spill-dir", "/tmp", "--workers", "2"), "--spill-dir with 2 workers, whose cgroup has one limit"),
    ],
)
def test_options_of_spilling_that_do_not_fit_are_one_line(words: tuple[str, ...], line: str) -> None:
    code, _, errors = ended(train(*words))

    assert code == 2
    assert line in errors
    assert errors.count("\n") == 1


def test_input_larger_than_the_memory_of_a_worker_is_kept_out_of_it(
    spill_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meter, block = MemoryMeter(), 1 << 20
    monkeypatch.setenv("FARSIDE_SPILL_MEMORY", str(meter.read().used_bytes + 24 * block))
    peaks: list[int] = []
    with begin(Made(64, lambda number: np.full(block // 8, 1.0 + number)), keys={"sum": ()}, iterations=4) as job:
        while job.goes_on():
            job.pull()
            total = 0.0
            for one in job.blocks():
                total += float(one.data.sum())
                peaks.append(meter.read().used_bytes)
            job.push({"sum": total})
        assert job.pull()["sum"] == sum(range(1, 65)) * block / 8
    # Half of the input, and some more that the C library has not given back.
    assert max(peaks) - peaks[0] < 32 * block


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the node's agent offers, with less memory than any process has."""
    folder = tmp_path / "offered"
    folder.mkdir()
    monkeypatch.setenv("FARSIDE_SPILL_OFFER", str(folder))
    monkeypatch.setenv("FARSIDE_SPILL_OFFER_BYTES", "1024")
    return folder


class Giving(Made):
    """Blocks that say that nobody writes to them."""

    may_leave_memory = True


def test_what_an_agent_offers_is_used_for_input_that_nobody_writes_to_and_the_rest_stays_in_memory(
    offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "rows.npy", np.ones((8, 4, 3)))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    own = np.load(tmp_path / "rows.npy", mmap_mode="c")

    for source in (Giving(3, mixed), mapped):
        place = spill_place_for(source)
        assert place is not None
        assert (place.folder, place.offered_bytes, place.is_offered) == (offered, 1024, True)
    others: list[Any] = [Made(3, mixed), own, mapped[:, ::2], mapped[0, 0], [np.ones(3)], np.ones((3, 3))]
    for kept in others:
        assert not may_leave_memory(kept)
        assert spill_place_for(kept) is None

    monkeypatch.setenv("FARSIDE_SPILL_DIR", str(tmp_path))  # the job's user knows better
    place = spill_place_for(Made(3, mixed))
    assert place is not None
    assert (place.folder, place.offered_bytes, place.is_offered) == (tmp_path, 1024, False)
    with pytest.raises(ConfigError, match="in memory already"):
        spill_place_for([np.ones(3)])


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_program_with_what_its_agent_offers_ends_with_the_same_bits_also_where_that_folder_is_gone(
    offered: Path, is_broken: bool, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = walk(job_of())
    if is_broken:
        offered.rmdir()

    source = Giving(len(BLOCKS), lambda number: BLOCKS[number])
    job = begin(source, keys={"part": (4,), "count": np.zeros((), np.int64)}, iterations=6, fingerprint="walk")

    assert walk(job) == wanted
    assert isinstance(job._own, SpilledBlocks) != is_broken
    lines = [record.getMessage() for record in caplog.records]
    assert ("input stays in memory: its node's folder for it can't be used" in lines) == is_broken


@pytest.mark.long
def test_the_four_programs_take_what_their_agent_offers_and_data_that_can_t_leave_memory_as_ever(
    offered: Path, tmp_path: Path
) -> None:
    seen = {"FARSIDE_SPILL_OFFER": str(offered), "FARSIDE_SPILL_OFFER_BYTES": "1024"}
    for words in (("mlr", "--data", "digits"), ("mlr", "--data", "synthetic", "--rows", 300, "--workers", 2)):
        how = ("--iterations", 3, "--blocks", 4, "--out")
        code, _, errors = ended(train(*words, *how, tmp_path / "with", environment=seen))
        assert code == 0, errors
        code, _, errors = ended(train(*words, *how, tmp_path / "without", environment=dict.fromkeys(seen, "")))
        assert code == 0, errors
        assert model_of(tmp_path / "with") == model_of(tmp_path / "without")


class MeterOf:
    """A meter with a limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes

    def read(self) -> MemoryUse:
        return MemoryUse(used_bytes=0, limit_bytes=self._limit_bytes, stall_s=0.0)


def test_the_memory_that_an_agent_names_counts_where_no_cgroup_has_a_lower_limit(
    offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = dict[str, int]()
    monkeypatch.setattr(
        "farside.training.loop.spilling.MemoryMeter",
        lambda limit_bytes=0: MeterOf(limit_bytes or limits["cgroup"]),
    )
    source = Giving(3, mixed)
    for cgroup, wanted in ((0, 1024), (1 << 40, 1024), (512, 512), (1024, 1024)):
        limits["cgroup"] = cgroup
        place = spill_place_for(source)
        assert place is not None
        assert spilling._meter_of(place).read().limit_bytes == wanted
    monkeypatch.setenv("FARSIDE_SPILL_DIR", str(tmp_path))
    monkeypatch.setenv("FARSIDE_SPILL_MEMORY", "2048")
    place = spill_place_for(source)
    assert place is not None
    assert spilling._meter_of(place).read().limit_bytes == 2048


def test_a_message_of_a_worker_of_the_version_before_says_nothing_of_waiting_and_bytes() -> None:
    use = Use(job="j", spilled=0.5, iteration_s=1.0, wait_s=0.25, disk_bytes=5, peer_bytes=6, waited_s=7.0)
    packet = packet_of(wire_of_use(use))
    fields = msgspec.msgpack.decode(packet)

    now, before = from_worker(packet), from_worker(msgspec.msgpack.encode(fields[:-4]))
    later = from_worker(msgspec.msgpack.encode([*fields, "a field of the version after"]))

    assert isinstance(now, Uses)
    assert isinstance(before, Uses)
    assert use_of("j", now) == use
    assert later == now
    assert use_of("j", before) == replace(use, wait_s=0.0, disk_bytes=0, peer_bytes=0, waited_s=0.0)


def test_two_workers_of_a_machine_decline_what_its_agent_offers_to_one() -> None:
    how = {"workers": 2, "spill_dir": None, "spill_peer": None, "spill_memory": None}

    assert _spilling(how) == {"FARSIDE_SPILL_OFFER": ""}
    assert _spilling(how | {"workers": None}) == {}

"""The loop of training programs: sums, checkpoints, and what workers agree on."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import ConfigError, FarsideError
from farside.training.loop import job as job_module
from farside.training.loop.agreement import Word, agreed, numbers_of
from farside.training.loop.block import blocks_of
from farside.training.loop.checkpoint import VERSION
from farside.training.loop.ended import Paused, WorkerFailed
from farside.training.loop.job import begin
from tests.aggregation.service import service, source
from tests.train.programs import BLOCKS, Killed, job_of, walk


@given(st.integers(1, 64), st.integers(0, 500))
def test_each_block_has_one_worker_and_workers_have_alike_many(workers: int, blocks: int) -> None:
    parts = [blocks_of(rank, workers, blocks) for rank in range(workers)]

    assert [number for part in parts for number in part] == list(range(blocks))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


_WORDS = st.builds(
    Word, stops=st.booleans(), keeps=st.booleans(), failed=st.booleans(), run=st.just(0),
    resumed=st.none() | st.integers(0, 2**40), model=st.none() | st.integers(0, 2**32 - 1),
)  # fmt: skip


@given(st.lists(_WORDS, min_size=1, max_size=8))
def test_all_workers_words_are_in_the_sum(words: list[Word]) -> None:
    numbers = [numbers_of(word, rank, len(words)) for rank, word in enumerate(words)]

    said = agreed([sum(column) for column in zip(*numbers, strict=True)], len(words))

    assert said.stops == any(word.stops for word in words)
    assert said.keeps == any(word.keeps for word in words)
    assert said.failed == tuple(rank for rank, word in enumerate(words) if word.failed)
    assert said.resumed == tuple(word.resumed for word in words)
    assert said.models == tuple(word.model for word in words)


@pytest.mark.parametrize("at", range(7))
def test_a_killed_program_goes_on_to_the_same_bits(tmp_path: Path, at: int) -> None:
    wanted = walk(job_of())
    try:
        walk(job_of(folder=tmp_path), stop_before=at)
    except Killed:
        pass

    job = job_of(folder=tmp_path)
    assert walk(job) == wanted
    assert not job.is_new


def test_a_program_that_is_asked_to_stop_keeps_all_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    wanted = walk(job_of())

    with pytest.raises(Paused, match="paused in iteration 3; start it again") as caught:
        walk(job_of(folder=tmp_path), term_in=2)
    assert caught.value.exit_code == 75

    assert walk(job_of(folder=tmp_path)) == wanted


def finished(folder: Path | None = None, *, iterations: int = 6, **ends: int) -> tuple[int, bytes]:
    """How many iterations a program makes that calls `finish` in iteration 3, and the bytes that it ends with."""
    job = job_of(folder=folder, iterations=iterations)
    found = walk(job, finish_in=3, **ends)
    return job.iteration, found


def test_a_program_that_is_asked_to_stop_in_the_iteration_that_it_finishes_in_makes_no_more(tmp_path: Path) -> None:
    wanted = finished()
    assert wanted[0] == 4

    with pytest.raises(Paused, match="paused in iteration 4"):
        finished(tmp_path, term_in=3)

    assert finished(tmp_path) == wanted


def test_a_program_that_is_killed_after_its_last_pull_makes_no_more_iterations(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        finished(tmp_path, stop_before=4)

    assert [finished(tmp_path, iterations=most) for most in (6, 6, 9)] == [finished()] * 3
    with pytest.raises(ConfigError, match="iterations: is 3, and checkpoint i-4 has 4"):
        finished(tmp_path, iterations=3)


def test_a_program_takes_back_that_its_checkpoint_is_finished(tmp_path: Path) -> None:
    finished(tmp_path)

    with job_of(folder=tmp_path) as job:
        assert (job.is_finished, job.goes_on()) == (True, False)
    with job_of(folder=tmp_path) as job:
        job.reopen()
        assert (job.is_finished, job.goes_on()) == (False, True)


def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_is_used(tmp_path: Path) -> None:
    wanted = walk(job_of())
    walk(job_of(folder=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i-5", "i-6"]
    state = next((tmp_path / "i-6").glob("state-*"))
    data = bytearray(state.read_bytes())
    data[len(data) // 2] ^= 1
    state.write_bytes(data)

    job = job_of(folder=tmp_path)
    assert walk(job) == wanted
    assert not job.is_new


def test_a_folder_whose_checkpoints_are_all_damaged_is_refused_and_nothing_begins_anew_over_them(
    tmp_path: Path,
) -> None:
    walk(job_of(folder=tmp_path))
    for path in tmp_path.glob("i-*/complete"):
        path.write_bytes(b"{")
    before = sorted(tmp_path.rglob("*"))

    with pytest.raises(ConfigError) as caught:
        walk(job_of(folder=tmp_path))

    line = str(caught.value)
    assert f"{tmp_path}: all of its checkpoints are damaged (i-5, i-6); restore one" in line
    assert "or remove them to begin anew" in line
    assert sorted(tmp_path.rglob("*")) == before


def test_a_damaged_checkpoint_takes_no_place_of_one_that_is_kept(tmp_path: Path) -> None:
    walk(job_of(folder=tmp_path, iterations=3))
    (tmp_path / "i-3" / "complete").write_bytes(b"{")
    (tmp_path / "i-3").rename(tmp_path / "i-5")
    job = job_of(folder=tmp_path, iterations=4)

    walk(job)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["i-3", "i-4", "i-5"]


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_a_file_of_a_checkpoint_that_has_no_end_is_damaged(tmp_path: Path, kind: str) -> None:
    walk(job_of(folder=tmp_path))
    for path in tmp_path.glob("i-*/complete"):
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            with path.open("wb") as file:
                file.truncate(1 << 40)

    with pytest.raises(ConfigError, match="all of its checkpoints are damaged"):
        walk(job_of(folder=tmp_path))


def test_a_checkpoint_of_other_keys_is_refused_with_both(tmp_path: Path) -> None:
    walk(job_of(folder=tmp_path))
    keys = {"part": (7,), "count": np.zeros((), np.int64)}

    with pytest.raises(ConfigError, match=r"part \(4,\) float64; this job has count \(\) int64, part \(7,\) float64"):
        walk(job_of(folder=tmp_path, keys=keys))


def test_a_program_without_a_fingerprint_does_not_take_the_checkpoint_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str) -> None:
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / name), raising=False)
        with begin([1, 2], keys={"sum": ()}, iterations=2, checkpoint_dir=tmp_path / "kept", checkpoint_s=0) as job:
            while job.goes_on():
                job.pull()
                job.push({"sum": 1.0})
            job.pull()

    for name in ("own.py", "other.py"):
        (tmp_path / name).write_text(f"# {name}")
    run("own.py")
    run("own.py")

    with pytest.raises(
        ConfigError, match=r"a checkpoint of another job: own\.py \w{16}, 2 blocks; this one is other\.py"
    ):
        run("other.py")


@pytest.mark.parametrize("change", ["fingerprint", "blocks", "version"])
def test_a_checkpoint_of_another_job_is_refused_with_both_names(tmp_path: Path, change: str) -> None:
    walk(job_of(folder=tmp_path))
    others: dict[str, Any] = {"fingerprint": {"fingerprint": "run"}, "blocks": {"blocks": BLOCKS[:4]}}
    if change == "version":
        for path in tmp_path.glob("*/complete"):
            path.write_text(path.read_text().replace(f'"version":{VERSION}', '"version":77'))

    with pytest.raises(ConfigError) as caught:
        walk(job_of(folder=tmp_path, **others.get(change, {})))

    words = {"fingerprint": ("walk, 5 blocks", "run, 5 blocks"), "blocks": ("5 blocks", "4 blocks"), "version": ("77",)}
    assert all(word in str(caught.value) for word in (*words[change], str(tmp_path), "another checkpoint folder"))


def test_a_folder_that_cant_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"checkpoint folder .*/file/kept: Not a directory"):
        job_of(folder=tmp_path / "file" / "kept")


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        ({"part": np.zeros(4)}, "push lacks 'count'"),
        ({"part": np.zeros(3), "count": 1}, r"push of 'part': float64 \(3,\); declared float64 \(4,\)"),
        ({"part": np.zeros(4), "count": 1.5}, r"push of 'count': float64 \(\); declared int64 \(\)"),
        ({"part": np.zeros(4), "count": 1, "more": 1}, "push has 'more', which is no key of this job"),
    ],
)
def test_a_push_that_does_not_fit_is_refused_with_its_key(parts: dict[str, Any], line: str) -> None:
    with job_of() as job, pytest.raises(ConfigError, match=line):
        job.push(parts)


def test_push_and_pull_take_turns() -> None:
    with job_of() as job:
        job.push({"part": np.ones(4), "count": 3})
        with pytest.raises(ConfigError, match="push twice without a pull"):
            job.push({"part": np.ones(4), "count": 3})
        assert job.pull()["count"] == 3
        with pytest.raises(ConfigError, match="pull without a push"):
            job.pull()


@pytest.mark.parametrize(
    ("given_", "line"),
    [
        ({"keys": {}}, "there is no key to push"),
        ({"keys": {"a": (0,)}}, "key 'a' has no elements"),
        ({"keys": {"a": np.zeros(2, np.complex128)}}, "key 'a' is of complex128; float64"),
        ({"iterations": 0}, "iterations: is 0"),
        ({"blocks": []}, "the input has no blocks"),
    ],
)
def test_a_job_that_cant_be_is_refused(given_: dict[str, Any], line: str) -> None:
    whole: dict[str, Any] = {"blocks": BLOCKS, "keys": {"a": (1,)}, "iterations": 1} | given_
    with pytest.raises(ConfigError, match=line):
        begin(**whole)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and no Aggregator is named"),
        ({"FARSIDE_AGGREGATION": "/run/x"}, "the manager's jobs do not train this way"),
        ({"FARSIDE_CHECKPOINT_S": "soon"}, "FARSIDE_CHECKPOINT_S is 'soon'"),
        ({"FARSIDE_CHECKPOINT_S": "nan"}, "FARSIDE_CHECKPOINT_S: is nan; a number of seconds is needed"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], line: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError, match=line):
        begin(BLOCKS, keys={"a": (1,)}, iterations=1)


def in_threads(work: Callable[[int], Any], workers: int = 2) -> list[Any]:
    """What each worker returns or raises, each in a thread of its own."""
    found: list[Any] = [None] * workers

    def run(rank: int) -> None:
        try:
            found[rank] = work(rank)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return found


def test_workers_of_one_service_agree_and_sum_in_the_order_of_ranks(tmp_path: Path) -> None:
    with service(tmp_path) as aggregator:

        def sums(rank: int) -> tuple[bytes, int]:
            with job_of(source=source(tmp_path, [aggregator.unix], rank, members=3, job="sums")) as job:
                job.push({"part": parts[rank], "count": 10**17 + rank})
                total = job.pull()
                return total["part"].tobytes(), int(total["count"])

        parts = np.random.default_rng(1).standard_normal((3, 4)) * [[1], [1e9], [1e-9]]
        assert in_threads(sums, 3) == [(((parts[0] + parts[1]) + parts[2]).tobytes(), 3 * 10**17 + 3)] * 3

        # Killed after the pull of iteration 3, at both; and then two workers go on to what two had without it.
        def whole(rank: int) -> bytes:
            return walk(job_of(source=source(tmp_path, [aggregator.unix], rank, job="whole")))

        def killed(rank: int) -> bytes:
            one = source(tmp_path, [aggregator.unix], rank, job="killed")
            return walk(job_of(source=one, folder=tmp_path / "kept"), stop_before=3)

        def resumed(rank: int) -> bytes:
            return walk(job_of(source=source(tmp_path, [aggregator.unix], rank, job="on"), folder=tmp_path / "kept"))

        wanted = in_threads(whole)
        assert wanted[0] == wanted[1]
        assert [type(one) for one in in_threads(killed)] == [Killed] * 2
        assert in_threads(resumed) == wanted
        # One worker goes on from what two have left: another number of them is allowed.
        alone = job_of(folder=tmp_path / "kept", iterations=7)
        assert len(walk(alone)) == len(wanted[0])
        assert not alone.is_new

        def failing(rank: int) -> bytes:
            one = source(tmp_path, [aggregator.unix], rank, job="failing")
            return walk(job_of(source=one), fail_in=2 if rank else None)

        other, first = in_threads(failing)
        assert isinstance(first, ZeroDivisionError)
        assert isinstance(other, WorkerFailed)
        assert str(other) == "rank 1 failed in iteration 2; its own line says why"

        def apart(rank: int) -> bytes:
            one = source(tmp_path, [aggregator.unix], rank, job="apart")
            return walk(job_of(source=one, folder=tmp_path / ("kept" if rank else "empty")))

        for one in in_threads(apart):
            assert isinstance(one, FarsideError)
            assert "workers go on from different checkpoints: none, i-7" in str(one)


def test_models_that_differ_end_the_job(tmp_path: Path) -> None:
    with service(tmp_path) as aggregator:

        def differing(rank: int) -> None:
            with job_of(source=source(tmp_path, [aggregator.unix], rank, job="differing")) as job:
                job.model["place"] = np.full(4, float(rank))
                while job.goes_on():
                    job.pull()
                    job.push({"part": np.zeros(4), "count": 0})

        for one in in_threads(differing):
            assert isinstance(one, WorkerFailed)
            assert "workers' models differ in iteration 0" in str(one)


def test_all_names_of_the_package_are_had_without_pytorch() -> None:
    import farside.training

    assert farside.training.begin is job_module.begin
    with pytest.raises(AttributeError, match="nothing"):
        getattr(farside.training, "nothing")  # noqa: B009

"""The log stays small: images of the state, forgotten jobs, the archive; whoever is killed anywhere loses nothing."""

import gzip
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

import pytest

from farside.errors import ConfigError, FarsideError, LocalProtocolError, RemoteProtocolError
from farside.scheduler.manager.model.apply import apply
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.manager.model.event import CancelRequested, Entry, HistoryForgotten, SchedulerTookLead, TaskPhase
from farside.scheduler.manager.model.snapshot import decode_state, encode_state
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store import compact as compaction
from farside.scheduler.manager.store.archive import Archive
from farside.scheduler.manager.store.compact import compact, is_due, whole_log
from farside.scheduler.manager.store.event_store import EventStore, Extent
from farside.scheduler.manager.store.load import first_state, read_on
from farside.scheduler.manager.store.migrate import backup, restore, upgrade
from farside.scheduler.manager.store.transaction import Draft
from tests.live.world import World, rules

DAY_S = 86400.0


def lived() -> World:
    """Jobs that are long over, one that runs, one that waits for one that is over, one that waits for GPUs."""
    world = World(rules("srtf"), nodes=2)
    for _ in range(3):
        job = world.submit(gpus=2, count=2)
        for one in (f"{job}_0", f"{job}_1") if f"{job}_0" in world.state.jobs else (job,):
            world.runs(one)
            world.pass_s(50.0)
            world.exits(one)
    first = world.submit(gpus=8, time_limit_s=9000.0)
    world.runs(first)
    world.exits(first)
    world.pass_s(100 * DAY_S)
    running = world.submit(gpus=8)
    world.runs(running)
    world.submit(gpus=1, after=(running,))
    world.submit(gpus=4)
    return world


def state_of(entries: list[Entry]) -> LiveState:
    state = LiveState()
    for entry in entries:
        apply(state, entry)
    return state


def same(one: LiveState, other: LiveState) -> bool:
    return encode_state(one) == encode_state(other)


def test_an_image_is_the_state_and_the_log_goes_on_from_it() -> None:
    world = lived()
    half = len(world.log) // 2
    state = decode_state(encode_state(state_of(world.log[:half])))

    for entry in world.log[half:]:
        apply(state, entry)

    assert same(state, world.state)
    specs = [decode_state(encode_state(state)).jobs[name].spec for name in ("1_0", "1_1")]
    assert specs[0] == specs[1] == world.job("1_0").spec


def test_an_entry_that_is_missing_is_told_and_not_passed_over() -> None:
    world = lived()
    state = state_of(world.log[:3])

    with pytest.raises(LocalProtocolError, match=r"entries 4 to 5 of the log are missing; start the manager again"):
        apply(state, world.log[5])


def test_jobs_that_were_over_long_ago_are_forgotten_but_for_what_somebody_waits_for() -> None:
    world = lived()
    (running,) = [job.job_id for job in world.state.live_jobs() if job.tasks]
    number = world.state.next_number
    world.exits(running)
    world.pass_s(200 * DAY_S)
    world.does(HistoryForgotten(before_s=world.now_s - 150 * DAY_S))

    assert "1_0" not in world.state.jobs
    assert list(world.state.jobs) == [job.job_id for job in world.state.jobs.values()]
    assert running not in world.state.jobs or world.state.jobs[running].is_over
    assert world.state.next_number == number
    assert world.submit(gpus=1) == str(number)
    world.lead()
    assert list(violations(world.log)) == []


def test_a_job_that_another_one_waits_for_is_not_forgotten() -> None:
    world = World(rules(), nodes=1)
    first, blocker = world.submit(gpus=1), world.submit(gpus=3)
    world.runs(first)
    world.runs(blocker)
    second = world.submit(gpus=4, after=(first,))
    world.exits(first)
    world.pass_s(100 * DAY_S)

    world.does(HistoryForgotten(before_s=world.now_s))
    world.exits(blocker)

    assert world.job(second).tasks[0].phase is TaskPhase.ASSIGNED


def test_the_end_of_a_job_tells_no_job_that_waited_for_it_and_was_cancelled_and_forgotten() -> None:
    """Such a job is not there any more, and whoever followed the log looked for it."""
    world = World(rules(), nodes=1)
    first = world.submit(gpus=1)
    world.runs(first)
    cancelled, waiting = world.submit(gpus=1, after=(first,)), world.submit(gpus=1, after=(first,))
    world.does(CancelRequested(job_id=cancelled, by="ann"))
    world.pass_s(100 * DAY_S)
    world.does(HistoryForgotten(before_s=world.now_s))
    before = cancelled in world.state.jobs

    world.exits(first)

    assert not before
    assert world.job(waiting).tasks[0].phase is TaskPhase.ASSIGNED


def test_nothing_is_kept_of_who_waits_for_a_job_that_is_over() -> None:
    world = World(rules(), nodes=1)
    first = world.submit(gpus=1)
    world.exits(first)

    second = world.submit(gpus=1, after=(first,))

    assert world.job(second).tasks[0].phase is TaskPhase.ASSIGNED
    assert world.state.dependents == {}


def test_a_forgotten_job_s_time_limit_comes_to_nothing() -> None:
    world = World(rules(), nodes=1)
    job = world.submit(gpus=1, time_limit_s=500.0)
    world.runs(job)
    world.exits(job)
    world.does(HistoryForgotten(before_s=world.now_s + 1))

    world.pass_s(1000.0)

    assert job not in world.state.jobs


# ---------------------------------------------------------------------------------------------- the store


def a_store(world: World, folder: Path) -> EventStore:
    store = EventStore(f"sqlite:///{folder}/manager.db")
    upgrade(store)
    for (at_s, generation, is_lead), group in groupby(world.log, key=_of_one_write):
        drafts = [Draft(event=entry.event, cause="test") for entry in group]
        if is_lead:
            store.take_lead("test", at_s)
        else:
            store.append(drafts, at_s, generation=generation)
    return store


def _of_one_write(entry: Entry) -> tuple[float, int, bool]:
    return entry.at_s, entry.generation, isinstance(entry.event, SchedulerTookLead)


def compacted(store: EventStore, folder: Path, world: World) -> compaction.Compacted:
    return compact(store, Archive(folder / "old"), world.now_s, 90 * DAY_S)


def test_old_entries_are_in_the_archive_new_ones_in_the_log_and_all_of_them_in_the_whole(tmp_path: Path) -> None:
    world = lived()
    store = a_store(world, tmp_path)
    before = [entry.event for entry in store.read_all()]

    done = compacted(store, tmp_path, world)

    archive = Archive(tmp_path / "old")
    whole = list(whole_log(store, archive))
    assert done.archived == archive.last_seq() == store.extent().first_seq - 1 > 20
    assert [entry.event for entry in whole][: len(before)] == before
    assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
    assert list(violations(whole)) == []
    state = first_state(store)
    read_on(store, state)
    assert same(state, state_of(whole))
    assert "1_0" not in state.jobs
    assert compacted(store, tmp_path, world).archived == 0


def test_an_archive_is_for_its_owner_only_whatever_its_folder_is(tmp_path: Path) -> None:
    """[L3] Entries have jobs' environments, and those have secrets."""
    folder = tmp_path / "archive"
    folder.mkdir(mode=0o755)
    (folder / ".log-000000000001-000000000001.jsonl.gz.part").symlink_to(tmp_path / "elsewhere")

    path = Archive(folder).add([], 1, 1)

    assert path.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "elsewhere").exists()


def test_an_archive_or_image_whose_text_is_no_utf8_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "log-1-2.jsonl.gz").write_bytes(gzip.compress(b'{"seq": 1, "cause": "\xff\xfe"}\n'))

    with pytest.raises(RemoteProtocolError, match="the file is damaged; take it from a backup"):
        list(Archive(tmp_path).entries())
    with pytest.raises(RemoteProtocolError, match="restore a backup"):
        decode_state(zlib.compress(b"\x81\xaaunfinished\x91\xa2\xff\xfe"))


def test_without_a_place_for_them_old_entries_stay(tmp_path: Path) -> None:
    world = lived()
    store = a_store(world, tmp_path)

    done = compact(store, None, world.now_s, 90 * DAY_S)

    assert (done.archived, store.extent().first_seq) == (0, 1)
    assert done.forgotten > 0
    assert done.snapshot_seq == store.extent().last_seq


def test_a_backup_has_the_image_and_goes_on_from_it(tmp_path: Path) -> None:
    world = lived()
    store = a_store(world, tmp_path)
    compacted(store, tmp_path, world)
    backup(store, tmp_path / "copy.db")
    fresh = EventStore(f"sqlite:///{tmp_path}/fresh.db")

    restore(tmp_path / "copy.db", fresh)
    state = first_state(fresh)
    read_on(fresh, state)

    assert state.next_number == world.state.next_number
    assert fresh.extent().first_seq == store.extent().first_seq


def test_the_archive_of_another_log_is_refused_and_nothing_leaves_this_one(tmp_path: Path) -> None:
    world = lived()
    store = a_store(world, tmp_path)
    compacted(store, tmp_path, world)
    (tmp_path / "other").mkdir()
    world.now_s += 1.0
    other = a_store(World(rules(), nodes=9), tmp_path / "other")
    for _ in range(200):
        other.append([Draft(event=world.log[3].event, cause="test")], 0.0)
    count = other.extent().last_seq

    with pytest.raises(ConfigError, match="is the archive of another log; move it away"):
        compact(other, Archive(tmp_path / "old"), world.now_s, 90 * DAY_S)

    assert len(list(other.read_all())) == count
    with pytest.raises(FarsideError, match="have left the log, and are not in"):
        list(whole_log(store, Archive(tmp_path / "nowhere")))


class Killed(BaseException):
    """As SIGKILL: nothing after it runs."""


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4, 5, 6, 8, 11])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_compaction_that_is_killed_at_any_step_loses_nothing_and_the_next_one_ends_it(
    at: int, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = lived()
    store = a_store(world, tmp_path)
    before = [entry.event for entry in store.read_all()]
    monkeypatch.setattr(compaction, "FILE_ENTRIES", 20)
    steps = 0

    def mortal(step: Callable[..., object]) -> Callable[..., object]:
        def walk(*arguments: object, **others: object) -> object:
            nonlocal steps
            steps += 1
            if steps == at + 1 and when == "before":
                raise Killed
            done = step(*arguments, **others)
            if steps == at + 1 and when == "after":
                raise Killed
            return done

        return walk

    with monkeypatch.context() as patch:
        for name in ("append", "keep_snapshot", "drop"):
            patch.setattr(EventStore, name, mortal(getattr(EventStore, name)))
        patch.setattr(os, "fsync", mortal(os.fsync))
        patch.setattr(Path, "replace", mortal(Path.replace))
        try:
            compacted(store, tmp_path, world)
        except Killed:
            pass
    archive = Archive(tmp_path / "old")
    assert [entry.event for entry in whole_log(store, archive)][: len(before)] == before

    compacted(store, tmp_path, world)

    whole = list(whole_log(store, archive))
    assert [entry.seq for entry in whole] == list(range(1, len(whole) + 1))
    state = first_state(store)
    read_on(store, state)
    assert same(state, state_of(whole))
    assert store.extent().first_seq > 20


def test_a_compaction_is_due_after_many_entries_or_when_a_day_is_over() -> None:
    extent = Extent(first_seq=1, first_at_s=1000.0, last_seq=60_000, snapshot_seq=50_000, holder="m:1")

    assert not is_due(extent, 1000.0 + 90 * DAY_S, 90 * DAY_S)
    assert is_due(extent, 1001.0 + 91 * DAY_S, 90 * DAY_S)
    assert not is_due(extent, 1001.0 + 91 * DAY_S, 0.0)
    assert is_due(Extent(first_seq=1, first_at_s=0.0, last_seq=50_000, snapshot_seq=0, holder=""), 1.0, 0.0)


@pytest.mark.long
def test_compactions_killed_by_the_kernel_leave_a_sound_store(tmp_path: Path) -> None:
    world = lived()
    store = a_store(world, tmp_path)
    before = [entry.event for entry in store.read_all()]
    argv = [sys.executable, "-c",
            "import sys; from pathlib import Path\n"
            "from farside.scheduler.manager.store import compact as c\n"
            "from farside.scheduler.manager.store.archive import Archive\n"
            "from farside.scheduler.manager.store.event_store import EventStore\n"
            "c.FILE_ENTRIES = 2; store = EventStore(sys.argv[1]); print('go', flush=True)\n"
            "c.compact(store, Archive(Path(sys.argv[2])), float(sys.argv[3]), float(sys.argv[4]))",
            store.url, str(tmp_path / "old"), str(world.now_s), str(90 * DAY_S)]  # fmt: skip
    for number in range(5):
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            end_s = time.monotonic() + 0.005 * 2**number
            while time.monotonic() < end_s and process.poll() is None:
                pass
            process.send_signal(signal.SIGKILL)
        assert [e.event for e in whole_log(store, Archive(tmp_path / "old"))][: len(before)] == before
        state = first_state(store)
        read_on(store, state)

    compacted(store, tmp_path, world)
    whole = list(whole_log(store, Archive(tmp_path / "old")))
    state = first_state(store)
    read_on(store, state)
    assert same(state, state_of(whole))

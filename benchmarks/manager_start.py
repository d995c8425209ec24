"""Measure how long a manager loads its state at its start, with a long log: read whole, and from its image.

python -m benchmarks.manager_start [--entries 1000000] [--folder FOLDER]

The log is made up: a year of jobs of one process that are placed, started, run and end, six entries each, on 100 nodes
with eight GPUs; written as the manager writes it, in pages. A start is what the brain does before it decides: the image
if there is one, and the entries since.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from farside.agent.messages import Gpu
from farside.scheduler.manager.model.event import (
    Ending,
    Event,
    JobAllocated,
    JobEnded,
    JobStarted,
    JobSubmitted,
    NodeAllocation,
    NodeJoined,
    TaskAllocation,
    TaskChanged,
    TaskPhase,
)
from farside.scheduler.manager.model.snapshot import encode_state
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.store.archive import Archive
from farside.scheduler.manager.store.compact import compact
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.load import first_state, read_on
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.manager.store.transaction import PAGE, Draft

NODES, GPUS = 100, 8
PER_JOB = 6
BEGIN_S = 1.7e9
# From one job to the next; with a million entries the log is a year old.
JOB_S = 190.0


def events(entries: int) -> Iterator[tuple[Event, float]]:
    """What happens, and when."""
    for at in range(NODES):
        gpus = tuple(Gpu(index=index, model="H200", healthy=True) for index in range(GPUS))
        joined = NodeJoined(
            node=f"n{at}", address="h", boot_id="b", version="", cpus=64, memory_bytes=1 << 40,
            headroom_bytes=1 << 40, gpus=gpus,
        )  # fmt: skip
        yield joined, BEGIN_S
    spec = JobSpec(argv=("python", "train.py", "--steps", "1000"), gpus=1, env={"HOME": "/home/ann"}, cwd="/home/ann")
    for number in range(1, entries // PER_JOB):
        job, node, now_s = str(number), f"n{number % NODES}", BEGIN_S + number * JOB_S
        yield JobSubmitted(spec=spec, user=f"u{number % 50}", uid=1000), now_s
        yield JobAllocated(job_id=job, places=(NodeAllocation(node=node, gpus=1),), reason="1 GPU free"), now_s
        tasks = (TaskAllocation(rank=0, node=node, gpus=(0,)),)
        yield JobStarted(job_id=job, start=1, tasks=tasks, master_addr="h", master_port=20_000), now_s
        for phase in (TaskPhase.RUNNING, TaskPhase.EXITED):
            code = 0 if phase is TaskPhase.EXITED else None
            yield TaskChanged(node=node, job_id=job, rank=0, start=1, phase=phase, exit_code=code), now_s + 60
        ended = JobEnded(job_id=job, ending=Ending.DONE, reason="all its processes ended well", exit_code=0)
        yield ended, now_s + 60


def _image_mb(store: EventStore) -> float:
    image = store.snapshot()
    return 0.0 if image is None else len(image[0]) / 1e6


def write_log(store: EventStore, entries: int) -> float:
    """Writes it; returns the time of its end."""
    upgrade(store)
    generation = store.take_lead("bench", BEGIN_S)
    page: list[Draft] = []
    now_s = BEGIN_S
    for event, now_s in events(entries):
        page.append(Draft(event=event, cause="bench"))
        if len(page) == PAGE:
            store.append(page, now_s, generation=generation)
            page = []
    store.append(page, now_s, generation=generation)
    return now_s


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--start", metavar="URL", default="", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.start:
        _start(told.start)
        return
    with tempfile.TemporaryDirectory(dir=told.folder) as folder:
        path = Path(folder) / "manager.db"
        store = EventStore(f"sqlite:///{path}")
        now_s = write_log(store, told.entries)
        _say("the whole log", store, path)
        begun_s = time.monotonic()
        compact(store, Archive(Path(folder) / "archive"), now_s, 0.0)
        print(f"image made in {time.monotonic() - begun_s:.1f} s, {_image_mb(store):.1f} MB")
        _say("from the image, every job known", store, path)
        begun_s = time.monotonic()
        done = compact(store, Archive(Path(folder) / "archive"), now_s, 90 * 86400.0)
        archived = sum(file.stat().st_size for file in (Path(folder) / "archive").iterdir())
        image_mb = _image_mb(store)
        print(
            f"made smaller in {time.monotonic() - begun_s:.1f} s: {done.archived} entries archived, "
            f"{archived / 1e6:.1f} MB; {done.forgotten} jobs forgotten; image of {image_mb:.1f} MB"
        )
        _say("from the image, with the jobs of 90 days", store, path)


def _say(what: str, store: EventStore, path: Path) -> None:
    argv = [sys.executable, "-m", "benchmarks.manager_start", "--start", store.url]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    print(
        f"{what}: {said}; {store.extent().last_seq - store.extent().first_seq + 1} entries in {path.name}", flush=True
    )


def _start(url: str) -> None:
    begun_s, cpu_s = time.monotonic(), time.process_time()
    store = EventStore(url)
    state = first_state(store)
    read_on(store, state)
    took_s, took_cpu_s = time.monotonic() - begun_s, time.process_time() - cpu_s
    status = Path("/proc/self/status").read_text()  # getrusage would tell of who started us
    mib = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    assert len(encode_state(state)) > 0
    print(f"{took_s:.1f} s ({took_cpu_s:.1f} s of CPU), {mib:.0f} MiB, {len(state.jobs)} jobs known")


if __name__ == "__main__":
    main()

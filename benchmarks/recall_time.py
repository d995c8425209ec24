"""``python -m benchmarks.recall_time``: how long memory that a job needs takes to come back, and what was predicted.

A sandbox of two nodes, whose donors lend to one device. A job goes to the node that has lent more, and needs more
memory than is left there beside what its donor has lent; so the donor takes it back before the job starts.
The device is written first, so that donors lend, and once more where they lend too little; in the end all of it is read
and compared. A recall begins when nothing waits for the disk: otherwise it is the disk that is measured. From the job's
history: from when the recall was decided to when the start was, and what the manager had predicted at first.

The first recalls of all have no prediction, as none was measured yet. The exit code is 1 where a bar is missed.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.live_policies import Bar, tell
from benchmarks.load import BenchmarkError
from benchmarks.machine import this_command, this_commit, this_machine
from farside.client.manager_client import ManagerClient, find_manager
from farside.errors import FarsideError
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from farside.sandbox.waiting import wait_until

RESULTS = Path(__file__).parent / "results" / "recall_time.json"
MIB = 1 << 20
DEVICE, DONOR, SLAB = 768 * MIB, 768 * MIB, 4 * MIB
NODES = ("n1", "n2")
SIZES_MIB = (48, 96, 144, 192)
# The manager knows what is lent to a sixteenth of what the donor can lend.
UNKNOWN, TRIES = DONOR // 16, 3
LIMIT_S = 180.0
WRITES_MAX, SETTLE_S = 40, 2.0  # what was written often is lent, as the borrower finds once a second
WITHIN = 1.2
SHORTEST_MEDIAN = 0.5
"""The least that a recall takes at the median, as a share of what was predicted: a forecast of hours is never late."""
_WRITE = "for i in range({count}): h.pwrite(bytes([(i + {round}) % 251 + 1]) * {mib}, i * {mib})"
_CHECK = "print(all(h.pread({mib}, i * {mib}) == bytes([(i + {round}) % 251 + 1]) * {mib} for i in range({count})))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """One recall.

    Attributes:
        asked_bytes: What the job was to lack.
        recalled_bytes: What the manager had the donor take back: what it knows of free memory is a moment old.
        predicted_s: When it was ordered, by ``samples`` recalls before; None: by none.
        back_s: From the order until the manager knew that the memory was back.
        start_s: From the order until the job's start was decided.
    """

    node: str
    asked_bytes: int
    recalled_bytes: int
    predicted_s: float | None
    samples: int
    back_s: float
    start_s: float

    @property
    def ratio(self) -> float:
        """What it took, of what was predicted; of one with a prediction."""
        assert self.predicted_s is not None
        return self.start_s / self.predicted_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes it; the exit code."""
    words = argparse.ArgumentParser(prog="python -m benchmarks.recall_time", description=__doc__)
    words.add_argument("--recalls", type=int, default=20, help="default: %(default)s")
    words.add_argument("--seed", type=int, default=1, help="of the order of sizes; default: %(default)s")
    words.add_argument("--output", type=Path, default=RESULTS, help="default: %(default)s")
    asked = words.parse_args(arguments)
    if asked.recalls < 2:
        words.error("--recalls: at least 2, as the first has no prediction")
    head = {
        "command": this_command("benchmarks.recall_time"), "commit": this_commit(), "machine": asdict(this_machine()),
        "date": f"{datetime.now(UTC):%Y-%m-%d}", "device_bytes": DEVICE, "donor_bytes": DONOR, "slab_bytes": SLAB,
        "seed": asked.seed,
    }  # fmt: skip
    try:
        with tempfile.TemporaryDirectory(prefix="farside-recall-") as folder:
            found, lost_pages = measure(Path(folder), sizes(asked.recalls, asked.seed))
    except FarsideError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    bars = judge(found)
    record = {
        **head, "recalls": [asdict(one) for one in found], "summary": figures(found) | {"lost_pages": lost_pages},
        "table": table_of(found), "bars": [{**asdict(bar), "is_met": bar.is_met} for bar in bars],
    }  # fmt: skip
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    asked.output.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if tell(bars, [f"{lost_pages} pages were lost"] * bool(lost_pages)) else 0


def sizes(count: int, seed: int) -> Iterator[int]:
    """What each job is to lack: all sizes in each round, in another order each time."""
    dice, left = random.Random(seed), list[int]()
    for _ in range(count):
        left = left or dice.sample(SIZES_MIB, len(SIZES_MIB))
        yield left.pop() * MIB


def measure(folder: Path, asked: Iterator[int]) -> tuple[list[Recalled], int]:
    """The recalls, one after the other, and the pages that the device lost.

    Raises:
        BenchmarkError: A page was read that was not written, or a job started before its memory was back.
        PeerError: The sandbox did not start, or does not go on.
    """
    words = ["--cluster", "2x1", "--donors", "2", "--donor-memory", str(DONOR), "--size", str(DEVICE)]
    found: list[Recalled] = []
    with open_sandbox([*words, "--slab", str(SLAB)], state=folder / "state") as box:
        writes = 0
        for asked_bytes in asked:
            while _most_lent_bytes(box) < asked_bytes + 2 * UNKNOWN:
                writes += 1
                if writes > WRITES_MAX:
                    raise BenchmarkError(f"after {WRITES_MAX} writes of the device its donors lend too little")
                _nbd(box, _WRITE, writes)
                wait_until(lambda: _is_quiet(box), "the disk to have all pages", limit_s=LIMIT_S)
                time.sleep(SETTLE_S)
            one = _recall(box, asked_bytes)
            found += [] if one is None else [one]
            print("no recall was needed" if one is None else _words(one), flush=True)
        if _nbd(box, _CHECK, writes) != "True":
            raise BenchmarkError("a page is not what was written")
        return found, int(dict(control.blockdev_status(box.state))["counters"]["lost_pages"])


def _most_lent_bytes(box: Session) -> int:
    with ManagerClient(find_manager(state=box.state)) as client:
        return max(_told(client, name)[1] for name in NODES)


def _is_quiet(box: Session) -> bool:
    return not control.blockdev_status(box.state)["pending_bytes"]


def _nbd(box: Session, script: str, at: int) -> str:
    """What a script of libnbd's Python prints, on the device."""
    text = script.format(count=DEVICE // MIB, mib=MIB, round=at)
    command = ["/usr/bin/python3", "-m", "nbd", "-u", box.uri, "-c", text]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    if done.returncode:
        raise BenchmarkError(f"{command[0]} -m nbd: {done.stderr.strip()[-300:]}")
    return done.stdout.strip()


def _recall(box: Session, asked_bytes: int) -> Recalled | None:
    """A job that lacks so much beside what is lent, from its submission to its end.

    By what the manager knows of the node it may have its memory already: what is free there is known to an eighth. Then
    another one lacks more, and None is returned where that does not help.
    """
    with ManagerClient(find_manager(state=box.state)) as client:
        wait_until(lambda: _is_quiet(box), "the disk to have all pages", limit_s=LIMIT_S)
        node = max(NODES, key=lambda name: _told(client, name)[1])
        job = _job(client, node, asked_bytes)
        for more in range(1, TRIES):
            job = job if job["recalls"] else _job(client, node, asked_bytes + more * UNKNOWN)
        times = {one["type"]: one["at_s"] for one in client.get("jobs", job["id"], "history")["entries"]}
    if not job["recalls"]:
        return None
    (one,) = job["recalls"]
    if one["back_s"] is None:
        raise BenchmarkError(f"job {job['id']} on {node} started before its memory was back")
    return Recalled(
        node=node,
        asked_bytes=asked_bytes,
        recalled_bytes=one["recalled_bytes"],
        predicted_s=one["expected_s"],
        samples=one["expected_from"],
        back_s=one["back_s"] - one["ordered_s"],
        start_s=times["JobStarted"] - one["ordered_s"],
    )


def _job(client: ManagerClient, node: str, asked_bytes: int) -> dict[str, Any]:
    """A job that is over, as the manager shows it."""
    wait_until(
        lambda: _told(client, node)[1] >= asked_bytes + SLAB, f"the donor of {node} to lend {asked_bytes} bytes",
        limit_s=LIMIT_S,
    )  # fmt: skip
    free_bytes, lent_bytes = _told(client, node)
    body = {
        "argv": ["/bin/true"], "gpus": 1, "nodes": [node], "cwd": "/", "output": "/dev/null",
        "memory_bytes_per_gpu": free_bytes - lent_bytes + asked_bytes,
    }  # fmt: skip
    (job_id,) = client.post("jobs", body=body)["ids"]
    wait_until(lambda: client.get("jobs", job_id)["state"] == "done", f"job {job_id} to end", limit_s=LIMIT_S)
    job: dict[str, Any] = client.get("jobs", job_id)
    return job


def _told(client: ManagerClient, name: str) -> tuple[int, int]:
    """Memory for jobs on a node, with what its donor has lent, and that."""
    node = next(one for one in client.get("nodes")["nodes"] if one["name"] == name)
    return int(node["headroom_bytes"]), int((node["memory"] or {}).get("lent_bytes") or 0)


def _words(one: Recalled) -> str:
    said = "no prediction" if one.predicted_s is None else f"predicted {one.predicted_s:.2f} s, {one.ratio:.2f} of it"
    return f"{one.node}: {one.recalled_bytes / MIB:.0f} MiB in {one.start_s:.2f} s; {said} (by {one.samples})"


# ---------------------------------------------------------------------------------------------- figures


def figures(recalls: Sequence[Recalled]) -> dict[str, float]:
    """What is said of the recalls that had a prediction: shares, and seconds."""
    told = predicted(recalls)
    ratios = [one.ratio for one in told]
    return {
        "recalls": len(recalls),
        "predicted": len(told),
        "within": sum(ratio <= WITHIN for ratio in ratios),
        "within_share": sum(ratio <= WITHIN for ratio in ratios) / len(told),
        "median_ratio": statistics.median(ratios),
        "worst_ratio": max(ratios),
        "median_predicted_s": statistics.median(one.predicted_s or 0.0 for one in told),
        "median_start_s": statistics.median(one.start_s for one in told),
    }


def predicted(recalls: Sequence[Recalled]) -> list[Recalled]:
    """Those with a prediction."""
    return [one for one in recalls if one.predicted_s is not None]


def judge(recalls: Sequence[Recalled]) -> tuple[Bar, ...]:
    """Every job starts within 1.2 of the time predicted, and predictions are no longer than they need be."""
    found = figures(recalls)
    return (
        Bar(name=f"jobs that start within {WITHIN:g} of the predicted time", figure=found["within_share"], bar=1.0,
            most=False),
        Bar(name="what a recall took of what was predicted, median", figure=found["median_ratio"],
            bar=SHORTEST_MEDIAN, most=False),
    )  # fmt: skip


def table_of(recalls: Sequence[Recalled]) -> dict[str, Any]:
    """By size, for a document."""
    rows = []
    for size in sorted({one.asked_bytes for one in recalls}):
        some = [one for one in predicted(recalls) if one.asked_bytes == size]
        if not some:
            continue
        said_s = statistics.median(one.predicted_s or 0 for one in some)
        rows.append(
            [
                f"{size // MIB} MiB", f"{len(some)}", f"{said_s:.2f} s",
                f"{statistics.median(one.start_s for one in some):.2f} s",
                f"{sum(one.ratio <= WITHIN for one in some)} of {len(some)}",
                f"{statistics.median(one.ratio for one in some):.2f}", f"{max(one.ratio for one in some):.2f}",
            ]
        )  # fmt: skip
    header = ("lacking", "recalls", "predicted", "until the start", "within 1.2", "of it, median", "of it, worst")
    return {"header": header, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())

"""The machine's clock is set anew while manager, agents and jobs run."""

import json
from pathlib import Path

import pytest

from farside.sandbox.session import Session, open_sandbox
from tests.support.job_commands import farside, until_job
from tests.support.waiting import until

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

pytestmark = pytest.mark.skipif(
    FAKETIME is None, reason="libfaketime (package faketime) sets other processes' clocks"
)  # fmt: skip


def set_clock(file: Path, offset: str) -> None:
    """Of all processes that look there; renamed into place, so that none reads half of it."""
    new = file.with_suffix(".new")
    new.write_text(f"{offset}\n")
    new.rename(file)


def date_of(session: Session, folder: Path) -> int:
    """The day that a job's processes believe it is, in days since 1970."""
    out = folder / "date"
    out.unlink(missing_ok=True)
    job = farside(session, "submit", "--quiet", "--output", str(out), "--", "date", "+%s")
    until_job(session, job, "done")
    return int(out.read_text()) // 86400


@pytest.mark.long
def test_a_clock_that_jumps_by_days_ends_no_job_and_starts_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, go = tmp_path / "clock", tmp_path / "go"
    set_clock(clock, "+0")
    told = {
        "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(clock), "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
    }  # fmt: skip
    for name, value in told.items():
        monkeypatch.setenv(name, value)  # of the jobs too, which have their submitter's environment
    with open_sandbox(("--cluster", "2x4", "--donors", "1", "--size", "64MiB")) as sandbox:
        script = f"while [ ! -e {go} ]; do sleep 0.1; done"
        job = farside(sandbox, "submit", "--quiet", "--gpus", "6", "--time", "1h", "--", "sh", "-c", script)
        until_job(sandbox, job, "running")
        today = date_of(sandbox, tmp_path)

        days = []
        for offset in ("+3d", "-3d"):
            set_clock(clock, offset)
            days.append(date_of(sandbox, tmp_path) - today)
        go.touch()
        ended = until_job(sandbox, job, "done")

        assert days[0] in (3, 4)
        assert days[1] in (-3, -2)
        assert (ended["starts"], ended["preemptions"], ended["failures"]) == (1, 0, 0)
        nodes = json.loads(farside(sandbox, "nodes", "--json"))
        assert [node["state"] for node in nodes] == ["idle", "idle"]
        until(lambda: "sound" in farside(sandbox, "store", "check"), what="a sound log", deadline_s=30)

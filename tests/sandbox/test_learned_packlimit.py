"""The limit of the placement by skew, learned by a manager from real processes that tell of their iterations."""

import json
from pathlib import Path

import pytest

from farside.errors import FarsideError
from farside.sandbox import control
from farside.sandbox.session import Session, open_sandbox
from tests.support.job_commands import asked, farside, until_job
from tests.support.waiting import until

OPTIONS = (
    "--cluster", "2x2", "--donors", "1", "--size", "64MiB", "--set", "manager.placement=skew",
    "--set", "manager.placement_settings=packlimit=1; relearn_jobs=4",
)  # fmt: skip
# An iteration takes 0.5 s on one node; on two the time that is given.
SCRIPT = """
    took=0.5; [ "$WORLD_SIZE" = 1 ] || took={spread_s}
    for at in 1 2 3 4 5 6 7 8 9 10 11 12; do echo "iteration $took"; done >"$FARSIDE_READY"
"""
SPREAD_S = {"vgg16": 0.9, "resnet50": 0.51}


def submit(session: Session, model: str, *options: str) -> str:
    script = SCRIPT.format(spread_s=SPREAD_S[model])
    output = ("--output", f"{session.state}/{model}.%j.%r")
    return farside(
        session, "submit", "--quiet", "--gpus", "2", *output, "--set", f"model={model}", *options, "--", "sh", "-c",
        script,
    )  # fmt: skip


@pytest.mark.long
def test_the_limit_moves_to_where_the_simulator_has_it_and_the_next_manager_places_jobs_by_it(tmp_path: Path) -> None:
    with open_sandbox(OPTIONS) as session:
        for job in [submit(session, model) for model in SPREAD_S]:
            assert len(until_job(session, job, "done", "failed")["nodes"]) == 1
        go = tmp_path / "go"
        blocker = ("submit", "--quiet", "--gpus", "1", "--output", f"{tmp_path}/blocker.%j")
        wait = ("--", "sh", "-c", f"until test -e {go}; do sleep 0.1; done")
        for node in ("n1", "n2"):
            until_job(session, farside(session, *blocker, "--set", f'nodes=["{node}"]', *wait), "running")
        spread = [submit(session, model) for model in SPREAD_S]
        ended = [until_job(session, job, "done", "failed") for job in spread]
        held = submit(session, "vgg16", "--hold")

        before = asked(session, "jobs", held, "explain")
        control.kill_manager(session.state)
        control.start_manager(session.state)
        after = until(lambda: explained(session, held), what="a manager that answers", deadline_s=60)
        assert after is not None
        replayed = json.loads(farside(session, "sim", "replay", "--state", str(session.state), "--json"))
        shown = farside(session, "show", spread[0])
        farside(session, "release", held)
        later = until_job(session, submit(session, "resnet50"), "done", "failed")
        held_back = asked(session, "jobs", held)["state"]
        go.touch()
        held_for = until_job(session, held, "done", "failed")

    assert [(job["state"], len(job["nodes"])) for job in ended] == [("done", 2)] * 2
    # Each node has one GPU left: by the limit that it began with, 1, the next leader would spread both.
    assert (held_back, len(later["nodes"]), len(held_for["nodes"])) == ("waiting", 2, 1)
    limit = before["packlimit"]
    assert 0.092 < limit["packlimit"] < 0.743
    assert (limit["learned_from"], limit["spread_starts"]) == (4, 2)
    assert limit["slowdown_over"] == pytest.approx(0.9 / 0.5)
    assert "was learned at" in before["lines"][-2]
    assert before["lines"][-3].startswith("it goes to as few nodes as possible: its largest tensor is 74.3% of its")
    assert after["packlimit"] == limit
    assert replayed["packlimits"] == [limit]
    assert "start 1   on 2 nodes, spread: 900 ms an iteration, median of 12" in shown


def explained(session: Session, job: str) -> dict[str, object] | None:
    try:
        found: dict[str, object] = asked(session, "jobs", job, "explain")
    except FarsideError:  # it is being started
        return None
    return found

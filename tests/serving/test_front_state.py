"""What a killed front leaves for the next one, and what of it is of no use."""

import os
from pathlib import Path

import msgspec
import pytest

from farside.scheduler.sharing.glet.plan import Glet, Plan, Portion
from farside.serve.lease.front_state import BYTES_MAX, FrontState, StateFile

PLAN = Plan(
    glets=tuple(
        Glet(gpu=gpu, part_pct=100, cycle_ms=20.0, models=(Portion(model="mlp", batch=4, rate=50.0),)) for gpu in (3, 5)
    )
)


def test_the_next_front_has_the_plan_the_rates_and_the_leases_that_are_in_it(tmp_path: Path) -> None:
    StateFile(tmp_path / "f", "t").write(PLAN, {"7": 3, "8": 5, "9": 0}, {"mlp": 12.5})
    found = StateFile(tmp_path / "f", "t").read()

    assert found is not None
    assert found == FrontState(deployment="t", glets=PLAN.glets, numbers={"7": 3, "8": 5}, rates={"mlp": 12.5})
    assert found.plan == PLAN
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600
    StateFile(tmp_path / "f", "t").remove()
    assert StateFile(tmp_path / "f", "t").read() is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b" " * (BYTES_MAX + 1),
        msgspec.json.encode(FrontState(deployment="other", glets=(), numbers={}, rates={})),
        msgspec.json.encode(FrontState(version=2, deployment="t", glets=(), numbers={}, rates={})),
    ],
)
def test_a_file_that_is_no_plan_of_this_deployment_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)

    assert StateFile(tmp_path / "f", "t").read() is None


def test_a_folder_that_can_t_be_written_costs_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    state = StateFile(tmp_path / "absent" / "f", "t")
    state.write(PLAN, {}, {})
    state.write(PLAN, {}, {})
    state.remove()

    assert state.read() is None


@pytest.mark.parametrize("what", ["link", "pipe", "writable", "of another user"])
def test_a_file_that_others_may_have_written_is_none(tmp_path: Path, what: str) -> None:
    path = tmp_path / "f"
    StateFile(path, "t").write(PLAN, {}, {})
    if what == "link":
        path.symlink_to(path.rename(tmp_path / "there"))
    elif what == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif what == "writable":
        path.chmod(0o622)
    elif os.geteuid() != 0:
        pytest.skip("only root gives files to another user")
    else:
        os.chown(path, 65534, -1)

    assert StateFile(path, "t").read() is None

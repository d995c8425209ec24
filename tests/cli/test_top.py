"""`farside top` over overviews as the manager gives them, and against a manager."""

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from farside.cli.cluster_table import node_table
from farside.cli.top_view import EVERYTHING, Room, room_for, top_view
from farside.scheduler.manager.model.event import NodeLost
from farside.scheduler.manager.view.overview import Survey, show_overview
from farside.scheduler.manager.view.sight import Sight
from farside.scheduler.manager.view.view import show_node
from tests.live.manager import running_manager
from tests.live.world import World, rules
from tests.support.programs import outcome


def overview(jobs: int = 3, nodes: int = 2) -> Mapping[str, Any]:
    world = World(rules(), nodes=nodes)
    for number in range(jobs):
        world.submit(4, argv=(f"train{number}",))
    return shown(world)


def shown(world: World) -> Mapping[str, Any]:
    told: Mapping[str, Any] = msgspec.to_builtins(show_overview(Survey(world.state).overview(None), world.now_s))
    return told


def test_a_gpu_of_another_users_job_is_drawn_as_held_and_counted() -> None:
    """[L5] The manager gives a user null in place of its number; one of the version before gave no such thing."""
    world = World(rules(), nodes=1)
    for user, gpus in (("ann", 1), ("bob", 2)):
        world.submit(gpus, user=user)
    told = msgspec.to_builtins(
        show_overview(
            Survey(world.state).overview("ann"), world.now_s, None,
            lambda node: show_node(node, sight=Sight(jobs=world.state.jobs, user="ann")),
        )
    )  # fmt: skip
    before = msgspec.to_builtins(show_overview(Survey(world.state).overview(None), world.now_s))
    for gpu in before["nodes"][0]["gpus"]:
        del gpu["shares"]

    (row,) = (line for line in drawn(told) if line.startswith("n0"))
    (old_row,) = (line for line in drawn(before) if line.startswith("n0"))
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - the console's own
    console.print(node_table(told["nodes"]))
    console.file.close()

    assert "■■■□" in row
    assert "1, others on 2 GPUs" in row
    assert "■■■□" in old_row
    assert "1 2" in old_row
    assert "1, others on 2 GPUs" in console.export_text()


def drawn(told: Mapping[str, Any], room: Room = EVERYTHING, problem: str = "") -> list[str]:
    console = Console(width=160, record=True, file=open(os.devnull, "w"))  # noqa: SIM115 - the console's own
    console.print(top_view(told, room, problem))
    console.file.close()
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_nodes_what_runs_and_what_waits_with_its_reason_are_on_one_screen() -> None:
    lines = drawn({**overview(), "why": {"3": "waits: needs 4 GPUs, 0 free"}})

    assert lines[0].startswith("8 of 8 GPUs in use · 2 running · 1 waiting · 2 of 2 nodes up")
    assert any(line.startswith("n0") and "■■■■" in line for line in lines)
    assert any(line.startswith("1 ") and "train0" in line and line.endswith("n0") for line in lines)
    assert any(line.startswith("3 ") and line.endswith("needs 4 GPUs, 0 free") for line in lines)


def test_a_job_runs_for_as_long_as_since_its_latest_start() -> None:
    told = overview(1)
    jobs = [{**job, "start_s": told["at_s"] - 7200, "started_s": told["at_s"] - 60} for job in told["jobs"]]

    (line,) = [line for line in drawn({**told, "jobs": jobs}) if "train0" in line]

    assert "1 min" in line


def test_what_a_screen_has_no_room_for_is_counted() -> None:
    lines = drawn(overview(jobs=9, nodes=4), Room(nodes=1, active=2, waiting=3))

    assert [line for line in lines if line.startswith("and ")] == [
        "and 3 nodes more",
        "and 2 jobs more",
        "and 2 jobs more",
    ]


@given(lines=st.integers(0, 200), jobs=st.integers(0, 12), nodes=st.integers(0, 5))
def test_a_screen_is_never_overrun_if_it_has_any_room_at_all(lines: int, jobs: int, nodes: int) -> None:
    told = overview(jobs, nodes) if nodes else {**overview(0, 1), "nodes": [], "node_names": []}
    room = room_for(told, lines)

    height = len(drawn(told, room))
    assert height <= max(lines, 16)
    assert min(room.nodes, room.active, room.waiting) >= 1


def test_names_with_markup_and_control_characters_are_shown_harmless() -> None:
    world = World(rules())
    world.submit(4, name="[red]x[/red]\x1b[2J\nb")
    told = shown(world)

    text = "\n".join(drawn(told))

    assert "[red]x[/red]" in text
    assert "\x1b[2J" not in text


def test_a_lost_node_says_why() -> None:
    world = World(rules())
    world.does(NodeLost(node="n1", reason="not heard of for 60 s"))

    lines = drawn(shown(world))

    assert any(line.startswith("n1") and "lost" in line and "not heard of for 60 s" in line for line in lines)


def test_a_manager_that_went_away_is_said_beside_the_last_picture() -> None:
    assert drawn(overview(), problem="no manager answers there")[0].endswith("no manager answers there")


@pytest.mark.long
def test_it_prints_once_into_a_pipe_and_draws_on_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    try:
        screen, ours = pty.openpty()
    except OSError as error:
        pytest.skip(f"no terminal can be had here: {error}")
    with running_manager(tmp_path) as manager:
        argv = [sys.executable, "-m", "farside", "top", "--manager", manager.address.endpoint]
        done = outcome(argv)
        env = {**os.environ, "TERM": "xterm-256color"}
        with subprocess.Popen(argv, stdin=ours, stdout=ours, stderr=ours, env=env, start_new_session=True) as process:
            os.close(ours)
            seen = read_until(screen, b"nodes up", 60)
            process.send_signal(signal.SIGINT)
            seen += read_until(screen, b"\x1b[?1049l", 60)
            assert process.wait(60) == 0
        os.close(screen)

    assert (done.status, "0 of 0 nodes up" in done.stdout) == (0, True)
    assert b"0 of 0 nodes up" in seen


def read_until(screen: int, mark: bytes, limit_s: float) -> bytes:
    seen, end_s = b"", time.monotonic() + limit_s
    while mark not in seen:
        assert time.monotonic() < end_s, seen
        if select.select([screen], [], [], 0.1)[0]:
            try:
                seen += os.read(screen, 1 << 16)
            except OSError:  # a pseudo terminal's way of telling that the other side has ended
                break
    return seen

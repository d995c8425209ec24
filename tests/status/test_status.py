"""`farside status` with processes that tell much, little, or nothing."""

import asyncio
import json
import socket as socketlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer

import pytest
from rich.console import Console

from farside import admin
from farside.errors import FarsideError
from farside.sandbox.layout import ClusterRecord, ProcessRecord, SandboxRecord, write_record
from farside.status.gather import ProcessStatus, gather
from farside.status.main import as_json, run
from farside.status.table import tables
from farside.units import format_moment
from tests.support.programs import outcome
from tests.support.sandbox import farside


@contextmanager
def process_at(path: Path, status: Mapping[str, object]) -> Iterator[None]:
    """An admin socket that answers with this status."""
    ready, done = threading.Event(), threading.Event()

    async def answer(_: Mapping[str, object]) -> object:
        return status

    async def serve() -> None:
        async with admin.serve(path, {"status": answer}):
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def manager_at(path: Path, health: Mapping[str, object]) -> Iterator[None]:
    """A socket of HTTP that answers with this."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/health"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(health).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - likewise
            pass

    with UnixStreamServer(str(path), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def printed(processes: tuple[ProcessStatus, ...]) -> str:
    """The tables as text."""
    console = Console(width=160, record=True, quiet=True)
    with console.capture() as capture:
        console.quiet = False
        for table in tables(processes):
            console.print(table)
    return capture.get()


def test_one_socket_is_asked(tmp_path: Path) -> None:
    with process_at(tmp_path / "s", {"node": "n1", "pid": 7, "name": "swap0", "role": "blockdev"}):
        found = gather(state=None, socket=tmp_path / "s")

    assert [(process.name, process.role, process.pid) for process in found] == [("n1", "blockdev", 7)]


def test_a_donor_is_known_by_its_memory(tmp_path: Path) -> None:
    with process_at(tmp_path / "s", {"node": "n1", "pid": 7, "memory": {"total_bytes": 1 << 30}}):
        found = gather(state=None, socket=tmp_path / "s")

    assert found[0].role == "daemon"
    assert "1 GiB" in printed(found)


def test_a_device_with_few_words_still_makes_tables(tmp_path: Path) -> None:
    assert "device" in printed((ProcessStatus(name="b", role="blockdev", pid=1, socket="x", status={"name": "d"}),))


def test_late_donors_are_told_and_what_came_of_it() -> None:
    device = {
        "name": "swap0",
        "hedges": {"asked": 31, "won": 29, "refused_budget": 17, "refused_overload": 13},
        "donors": [
            {"node": "d1", "hedge_after_s": 0.042}, {"node": "d2", "hedge_after_s": None},
            {"node": "d3", "hedge_after_s": 0.005},
        ],
    }  # fmt: skip

    lines = printed((ProcessStatus(name="b", role="blockdev", pid=1, socket="x", status=device),)).splitlines()

    rows = {cells[0]: cells[1:] for line in lines if len(cells := [cell.strip() for cell in line.split("│")[1:-1]]) > 1}
    assert rows["late reads asked of a second copy"] == ["31"]
    assert rows["... that answered first"] == ["29"]
    assert rows["... not asked: too many were"] == ["17"]
    assert rows["... not asked: it is slow itself"] == ["13"]
    assert rows["a read is late after"] == ["5 ms to 42 ms"]


def test_a_process_that_does_not_answer_shows_why(tmp_path: Path) -> None:
    silent = ProcessStatus(name="d9", role="daemon", pid=0, socket="x", error="no process answers there")
    well = ProcessStatus(name="b", role="blockdev", pid=1, socket="y", status={"name": "swap0"})

    assert "no process answers there" in printed((silent, well))
    assert as_json((silent, well))["daemons"] == []


def test_nobody_at_the_socket_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(FarsideError, match="no process answers"):
        gather(state=None, socket=tmp_path / "nobody")

    done = outcome(farside("status", "--socket", str(tmp_path / "nobody")))

    assert done.status == 1
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""


def test_the_sandbox_of_the_environment_is_asked_as_by_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARSIDE_STATE", str(tmp_path / "plane"))

    with pytest.raises(FarsideError, match=f"{tmp_path}/plane"):
        run(json_output=True)


def test_an_agent_shows_its_gpus_and_tasks() -> None:
    told = {
        "node": "n7",
        "connected": False,
        "problem": "no answer in time",
        "gpus": [{"healthy": True}, {"healthy": False}],
        "gpus_in_use": {"0": "1.0-1"},
        "task_counts": {"running": 3},
    }
    agent = ProcessStatus(name="n7", role="agent", pid=1, socket="x", status=told)

    shown = printed((agent,))

    assert "no answer in time" in shown
    assert "1 of 2" in shown
    assert as_json((agent,))["agents"] == [told]


@pytest.mark.parametrize(
    ("in_a_row", "says"),
    [(0, "well; a cycle failed at 2001-09-09 03:46:40: see"), (7, "a cycle failed at 2001-09-09 03:46:40, 7 in a row")],
)
def test_a_manager_says_when_its_last_cycle_failed_and_how_many_have_since_one_did_not(
    in_a_row: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"seq": 3, "generation": 1, "cycle_failed_s": 1e9, "cycle_failures_in_a_row": in_a_row}
    monkeypatch.setattr("farside.status.gather.STANDARD", f"unix:{tmp_path}/m.sock")

    with manager_at(tmp_path / "m.sock", told):
        found = [one for one in gather(state=None, socket=None) if one.role == "manager"]

    assert says.replace("2001-09-09 03:46:40", format_moment(1e9)) in printed(tuple(found))
    assert as_json(tuple(found))["managers"] == [{"pid": found[0].pid, **told}]


def test_a_manager_that_answers_nothing_shows_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farside.status.gather.STANDARD", f"unix:{tmp_path}/m.sock")
    monkeypatch.setattr("farside.status.gather.ANSWER_LIMIT_S", 0.05)

    with socketlib.socket(socketlib.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/m.sock")
        listener.listen()
        with pytest.raises(FarsideError, match=r"m\.sock: timed out"):
            gather(state=None, socket=None)


def test_a_manager_that_was_started_by_hand_in_a_sandbox_has_its_own_process_id(tmp_path: Path) -> None:
    def known(name: str) -> ProcessRecord:
        folder = tmp_path / name
        (folder / "run").mkdir(parents=True)
        socket = str(folder / "sock")
        return ProcessRecord(name=name, pid=0, admin_socket=socket, config=str(folder / "config.toml"), log="")

    manager = known("manager")
    (tmp_path / "manager/run/manager.json").write_text('{"pids": {"manager": 77}}')
    cluster = ClusterRecord(endpoint="", gpus_per_node=1, manager=manager, agents=())
    record = SandboxRecord(
        pid=1, admin_socket="", transport="tcp", protection="none", size_bytes=0, slab_bytes=0, donor_memory_bytes=0,
        headroom_bytes=0, uris=(), donors=(), blockdev=known("blockdev"), cluster=cluster,
    )  # fmt: skip
    write_record(tmp_path, record)

    with manager_at(Path(manager.admin_socket), {"seq": 3}):
        found = gather(state=tmp_path, socket=None)

    assert [(process.pid, process.error) for process in found if process.role == "manager"] == [(77, "")]

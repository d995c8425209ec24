"""Records how this version speaks: `python -m tests.live.record_version FOLDER`, run once with each version released.

FOLDER is `tests/live/recorded/` with the commit that it was, which test_versions_processes.py runs again.

A manager and an agent, as processes, with a relay between them that writes down each frame; jobs that end in every way;
then the log, and the JSON schema of every message and event. `test_versions.py` reads what the version before has left.
"""

import asyncio
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import get_args

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from farside.agent import messages as m
from farside.scheduler.manager.model.codec import TYPES, encode_event
from farside.scheduler.manager.model.event import VERSION
from tests.agent.process import agent, until_connected, write_config
from tests.live.manager import Manager, running_manager
from tests.support.waiting import until

HOME = "/home/ann"  # stands for the folder it was recorded in
MESSAGES = (*get_args(m.AgentMessage), *get_args(m.ManagerMessage))
Frames = list[dict[str, str]]


def is_proof(header: str) -> bool:
    """Whether a header of a handshake says who somebody is."""
    return header.lower() == "authorization" or header.lower().startswith("farside")


@contextmanager
def relay(url: str, frames: Frames) -> Iterator[str]:
    """Where agents reach the manager with all that is said kept in ``frames``."""
    loop = asyncio.new_event_loop()
    behind: dict[ServerConnection, ClientConnection] = {}

    async def prove(agents: ServerConnection, request: Request, response: Response) -> Response:
        """Agent and manager prove themselves to each other in the headers of their handshake."""
        told = {name: value for name, value in request.headers.raw_items() if is_proof(name)}
        managers = behind[agents] = await connect(url + request.path, additional_headers=told, compression=None)
        assert managers.response is not None
        for name, value in managers.response.headers.raw_items():
            if is_proof(name):
                response.headers[name] = value
        return response

    async def pass_on(agents: ServerConnection) -> None:
        async with behind.pop(agents) as managers:

            async def one_way(source: object, target: object, name: str) -> None:
                with suppress(ConnectionClosed):
                    async for frame in source:  # type: ignore[attr-defined]
                        said = str(frame).partition("\n")[0]  # a line below proves it, by a key of that connection
                        frames.append({"from": name, "frame": said})
                        await target.send(frame)  # type: ignore[attr-defined]

            await asyncio.gather(one_way(agents, managers, "agent"), one_way(managers, agents, "manager"))

    async def listen() -> int:
        server = await serve(pass_on, "127.0.0.1", 0, compression=None, process_response=prove)
        port: int = next(iter(server.sockets)).getsockname()[1]
        return port

    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = asyncio.run_coroutine_threadsafe(listen(), loop).result(60)
    yield f"ws://127.0.0.1:{port}"  # the loop ends with the process


def run_jobs(manager: Manager, folder: Path) -> list[str]:
    """Jobs that end well, that fail, that are cancelled, with roles and with a checkpoint folder; their ids."""

    def ends(job_id: str, state: str) -> None:
        until(lambda: manager.job(job_id)["state"] == state, what=f"job {job_id} {state}", deadline_s=120)

    there = str(folder)
    well = manager.submit("sh", "-c", "exit 0", cwd=there, env={"A": "b"})
    badly = manager.submit("sh", "-c", "exit 3", cwd=there, gpus=2, ranks="gpu", memory_bytes_per_gpu=1 << 20)
    ends(well, "done")
    ends(badly, "failed")
    long = manager.submit(
        "sh", "-c", "exec sleep 600", "serve", "worker", cwd=there, checkpoint_dir=f"{there}/shared", time_limit_s=3600,
        grace_s=1, name="long", deployment="vision",
    )  # fmt: skip
    ends(long, "running")
    manager.post("jobs", long, "extend", body={"left_s": 7200})
    held = manager.submit("true", cwd=there, hold=True, after=[well])
    manager.post("jobs", held, "release")
    manager.post("nodes", "n1", "drain", body={"reason": "disk"})
    manager.post("nodes", "n1", "undrain")
    service = {"name": "ps", "argv": ["sleep", "60"], "gpus": 0, "service": True}
    both = [{"name": "worker", "argv": ["true"]}, service]
    roles: str = manager.post("jobs", body={"roles": both, "cwd": there})["ids"][0]
    ends(held, "done")
    ends(roles, "done")
    span = {"from_s": time.time() + 36000, "to_s": time.time() + 72000}
    manager.post("reservations", body={"nodes": ["n1"], **span, "reason": "disks"})
    manager.post("jobs", long, "cancel")
    ends(long, "cancelled")
    return [well, badly, long, held, roles]


def record(target: Path, folder: Path) -> None:
    """Writes frames.jsonl, log.jsonl, jobs.json and schema.json."""
    frames: Frames = []
    with running_manager(folder / "manager", token_submit="true") as manager, relay(manager.url, frames) as url:
        (folder / "agent").mkdir()
        with agent(write_config(folder / "agent", url, token=manager.node_token("n1"), declared_gpus=2)):
            until_connected(folder / "agent")
            jobs = run_jobs(manager, folder)
            until(lambda: frames[-1]["from"] == "manager", what="an answer to the last report")
        shown = [{key: manager.job(job_id)[key] for key in ("id", "state", "exit_code", "gpus")} for job_id in jobs]
        entries = manager.entries()
    lines = []
    for entry in entries:
        kind, body = encode_event(entry.event)
        head = {name: getattr(entry, name) for name in ("seq", "at_s", "generation", "cause")}
        lines.append({**head, "type": kind, "version": VERSION, "body": json.loads(body)})
    schema = {
        "agent": msgspec.json.schema_components(MESSAGES)[1],
        "log": msgspec.json.schema_components(TYPES.values())[1],
    }
    texts = {
        "frames.jsonl": "".join(json.dumps(frame) + "\n" for frame in frames),
        "log.jsonl": "".join(json.dumps(line) + "\n" for line in lines),
        "jobs.json": json.dumps(shown, indent=1) + "\n",
        "schema.json": json.dumps(schema, sort_keys=True, separators=(",", ":")) + "\n",
    }
    target.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (target / name).write_text(text.replace(str(folder), HOME))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        record(Path(sys.argv[1]), Path(made))

"""A manager as a user runs it: real processes, a real store, loopback."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.sandbox.settings import PATIENCE
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.model.event import Entry
from farside.scheduler.manager.store.event_store import EventStore
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S, until

START_LIMIT_S = 180.0 * PATIENCE  # three interpreters, on a machine that others use


class Manager:
    def __init__(self, folder: Path, *, store_url: str = "", on: Sequence[str] = (), **settings: object) -> None:
        """``on``: the prefix of the command that starts it. A setting that is None is not told."""
        folder.mkdir(exist_ok=True)
        self.on = on
        self.folder = folder
        self.store_url = store_url or f"sqlite:///{folder}/manager.db"
        self.port = free_port()
        self.tokens = folder / "tokens.toml"
        self.settings: Mapping[str, object] = {
            "listen": json.dumps([f"unix:{folder}/manager.sock", f"tcp:127.0.0.1:{self.port}"]),
            "store_url": self.store_url, "state_dir": folder / "m", "tokens_file": self.tokens,
            "policy": "fifo", "min_run_s": 0,
            # Tests run as root, too, whom another manager lets submit nothing.
            "run_as": "starter", **settings,
        }  # fmt: skip
        self._node_tokens: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None

    def node_token(self, node: str = "n0") -> str:
        """The token of this node, made when it is first asked for."""
        if node not in self._node_tokens:
            self._node_tokens[node] = add_token(self.tokens, node, Role.NODE)
        return self._node_tokens[node]

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}"

    @property
    def address(self) -> ManagerAddress:
        return ManagerAddress(endpoint=f"unix:{self.folder}/manager.sock")

    def get(self, *path: str, **query: str) -> Any:
        with ManagerClient(self.address) as client:
            return client.get(*path, **query)

    def post(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        with ManagerClient(self.address) as client:
            return client.post(*path, body=body)

    def start(self, first: str = "") -> None:
        """Starts it, and returns when it serves; ``first`` as for `spawn`."""
        self.spawn(first)
        try:
            self.wait_ready()
        except BaseException:
            self.stop()  # its test has not come to where it does that
            raise

    def spawn(self, first: str = "") -> None:
        """Starts it as the command does; ``first``: Python that its process runs before, to change its constants."""
        known = {name: value for name, value in self.settings.items() if value is not None}
        told = [part for name, value in known.items() for part in ("--set", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            program = ("-c", f"{first}\nfrom farside.cli import main\nmain()") if first else ("-m", "farside")
            command = [*self.on, sys.executable, *program, "manager", "-c", "/dev/null", *told]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_ready(self) -> None:
        until(self.is_ready, what="a ready manager", deadline_s=START_LIMIT_S, every_s=0.1)

    def is_ready(self) -> bool:
        try:
            return int(self.get("health")["generation"]) > 0
        except Exception:  # not there yet, in whatever way
            return False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def pids(self) -> Mapping[str, int]:
        found: Mapping[str, int] = json.loads((self.folder / "m/manager.json").read_text())["pids"]
        return found

    def kill(self, part: str) -> None:
        os.kill(self.pids()[part], signal.SIGKILL)

    def kill_all(self) -> None:
        """As when the machine loses power: the parent first, so that it starts nothing again."""
        assert self.process is not None
        pids = self.pids()
        os.kill(pids["manager"], signal.SIGKILL)
        for part in pids.keys() - {"manager"}:
            with suppress(ProcessLookupError):  # the kernel ends them with their parent
                os.kill(pids[part], signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(DEADLINE_S) == 0

    def submit(self, *argv: str, **more: object) -> str:
        ids: list[str] = self.post("jobs", body={"argv": argv or ("true",), **more})["ids"]
        return ids[0]

    def job(self, job_id: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.get("jobs", job_id)
        return found

    def entries(self) -> list[Entry]:
        store = EventStore(self.store_url)
        try:
            return list(store.read_all())
        finally:
            store.close()


@contextmanager
def running_manager(folder: Path, **settings: object) -> Iterator[Manager]:
    manager = Manager(folder, **settings)  # type: ignore[arg-type]
    try:
        manager.start()
        yield manager
    finally:
        manager.stop()

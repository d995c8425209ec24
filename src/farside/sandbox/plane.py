"""The running sandbox: its children, their files, and the order in which they come and go.

Donors start first and the borrower last; they end the other way round, so that the borrower's clients get their answers
while the memory is still there. One task waits for each child and notes its end in the record; one refreshes the
donors' meminfo. Only this process starts children: who wants a killed donor back asks the sandbox's admin socket.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from pathlib import Path

from farside.admin import ask
from farside.errors import ConfigError, PeerError
from farside.sandbox import layout, pressure, process, settings
from farside.sandbox.cluster import Cluster
from farside.sandbox.files import free_port, rdma_address, until, uri
from farside.sandbox.layout import BORROWER, Plan, ProcessRecord, SandboxRecord
from farside.sandbox.process import Child

# A process that ended is noticed at once; this is for one that hangs.
START_LIMIT_S = 30.0 * settings.PATIENCE
MEMINFO_EVERY_S = 0.1


class Plane:
    """A memory plane in a folder, N donors and one borrower, and a cluster plane beside it where one is asked for."""

    def __init__(self, plan: Plan, state: Path) -> None:
        self.plan = plan
        self.state = state
        self.names = settings.donor_names(plan.donors)
        self.children: dict[str, Child] = {}
        self.cluster = Cluster(plan.cluster, state, self._write_record) if plan.cluster is not None else None
        self._tasks: asyncio.TaskGroup | None = None
        self._ending = False

    # --- files

    def write_files(self) -> None:
        """Makes the folder's files: key, peers, one config a process, meminfo of every donor."""
        key = self.state / "cluster.key"
        key.touch(mode=0o600)
        key.write_text(secrets.token_hex(32) + "\n")
        controls = {name: self._control_listener(name) for name in self.names}
        for name, listen in controls.items():
            pressure.proc_folder(self.state, name).mkdir(parents=True)
            pressure.refresh(self.state, name, total_bytes=self.plan.donor_memory_bytes, pid=0)
            text = settings.toml_text(settings.donor_settings(self.plan, self.state, name=name, listen=listen))
            self._config_path(name).write_text(text)
        (self.state / "peers.toml").write_text(settings.peers_text(controls))
        (self.state / "blockdev").mkdir()
        self._config_path(BORROWER).write_text(settings.toml_text(settings.blockdev_settings(self.plan, self.state)))
        if self.cluster is not None:
            self.cluster.write_files()

    def record(self) -> SandboxRecord:
        """What runs now, as the record file tells it."""
        return SandboxRecord(
            pid=os.getpid(),
            admin_socket=os.fspath(self.state / "sandbox.sock"),
            transport=self.plan.transport,
            protection=self.plan.protection,
            size_bytes=self.plan.size_bytes,
            slab_bytes=self.plan.slab_bytes,
            donor_memory_bytes=self.plan.donor_memory_bytes,
            headroom_bytes=self.plan.headroom_bytes,
            uris=tuple(uri(listener) for listener in self.plan.listen),
            donors=tuple(self._process_record(name) for name in self.names),
            blockdev=self._process_record(BORROWER),
            cluster=self.cluster.record() if self.cluster is not None else None,
        )

    def _write_record(self) -> None:
        layout.write_record(self.state, self.record())

    # --- processes

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Starts everything and returns when clients may connect.

        Raises:
            FarsideError: something ended instead of getting ready; the message holds the last line it wrote.
        """
        self._tasks = tasks
        tasks.create_task(self._keep_meminfo())
        for name in self.names:
            await self._start_child(name)
        for name in self.names:
            await self._until_answering(name)
        await self._start_child(BORROWER)
        await self._until_answering(BORROWER)
        await self._until_clients_may_connect()
        if self.cluster is not None:
            await self.cluster.start(tasks)
        self._write_record()

    async def start_donor(self, name: str) -> None:
        """Starts a donor that has ended, and returns when it answers.

        Raises:
            ConfigError: there is no such donor, or it is running.
        """
        if name not in self.names:
            raise ConfigError(f"this sandbox has no donor {name!r}, only {', '.join(self.names)}")
        if name in self.children and self.children[name].is_running:
            raise ConfigError(f"donor {name} is running")
        await self._start_child(name)
        await self._until_answering(name)

    async def end(self) -> None:
        """Ends every child: the cluster plane, the borrower, then the donors, together."""
        self._ending = True
        if self.cluster is not None:
            await self.cluster.end()
        if BORROWER in self.children:
            await self.children[BORROWER].end()
        await asyncio.gather(*(self.children[name].end() for name in self.names if name in self.children))

    async def _start_child(self, name: str) -> None:
        subcommand = "blockdev" if name == BORROWER else "daemon"
        arguments = (subcommand, "--config", os.fspath(self._config_path(name)))
        child = await process.start(name, arguments, log=self._log_path(name))
        self.children[name] = child
        assert self._tasks is not None
        self._tasks.create_task(self._watch(child))
        self._write_record()

    async def _watch(self, child: Child) -> None:
        status = await child.wait()
        if self._ending:
            return
        self._write_record()
        if child.name == BORROWER and status < 0:
            killer = signal.Signals(-status).name
            raise PeerError(f"the borrower's supervisor was killed by {killer}; a sandbox ends with it")
        if child.name == BORROWER:
            said = process.last_line(self._log_path(BORROWER))
            raise PeerError(f"the borrower ended by itself: {said or 'it said nothing'}")
        if self.plan.restart_donors:
            await self._start_child(child.name)

    async def _keep_meminfo(self) -> None:
        while not self._ending:
            for name in self.names:
                child = self.children.get(name)
                pid = child.pid if child is not None and child.is_running else 0
                pressure.refresh(self.state, name, total_bytes=self.plan.donor_memory_bytes, pid=pid)
            await asyncio.sleep(MEMINFO_EVERY_S)

    async def _until_answering(self, name: str) -> None:
        async def answers() -> bool:
            if not self.children[name].is_running:
                said = process.last_line(self._log_path(name))
                raise PeerError(f"{name} ended at once: {said or 'it said nothing'}")
            with contextlib.suppress(PeerError):
                await ask(self._admin_path(name), "status")
                return True
            return False

        await until(answers, what=f"{name} to answer", limit_s=START_LIMIT_S)

    async def _until_clients_may_connect(self) -> None:
        async def ready() -> bool:
            told = await ask(self._admin_path(BORROWER), "status")
            return [donor["state"] for donor in told["donors"]] == ["up"] * len(self.names) and told["offered"] is True

        await until(ready, what="the borrower to reach every donor", limit_s=START_LIMIT_S)

    # --- names

    def _control_listener(self, name: str) -> str:
        if self.plan.transport == "rdma":
            address = rdma_address()
            return f"tcp:{address}:{free_port(address)}"
        if self.plan.transport == "tcp":
            return f"tcp:127.0.0.1:{free_port()}"
        return f"unix:{pressure.donor_folder(self.state, name) / 'control.sock'}"

    def _folder(self, name: str) -> Path:
        return self.state / "blockdev" if name == BORROWER else pressure.donor_folder(self.state, name)

    def _config_path(self, name: str) -> Path:
        return self._folder(name) / "config.toml"

    def _log_path(self, name: str) -> Path:
        return self._folder(name) / "log"

    def _admin_path(self, name: str) -> Path:
        return self._folder(name) / "admin.sock"

    def _process_record(self, name: str) -> ProcessRecord:
        child = self.children.get(name)
        return ProcessRecord(
            name=name,
            pid=child.pid if child is not None and child.is_running else 0,
            admin_socket=os.fspath(self._admin_path(name)),
            config=os.fspath(self._config_path(name)),
            log=os.fspath(self._log_path(name)),
        )

"""The running sandbox: its processes, their files, and the order of start and end.

Donors start first and the borrower last; they end the other way round, so that the borrower's clients get their answers
while the memory is still there. One task waits for each child and notes its end in the record; one refreshes the
donors' meminfo. Only this process starts children: its admin socket takes requests to start a killed donor again.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path

from farside.admin import ask
from farside.config.peers_text import peers_text
from farside.errors import PeerError
from farside.sandbox import layout, pressure, settings
from farside.sandbox.cluster import Cluster
from farside.sandbox.crew import Crew, post_in
from farside.sandbox.files import free_port, rdma_address, until, uri
from farside.sandbox.layout import BORROWER, Plan, SandboxRecord
from farside.sandbox.program_settings import config_text

# A process that ended is noticed at once; this is for one that hangs.
START_LIMIT_S = 30.0 * settings.PATIENCE
MEMINFO_EVERY_S = 0.1
JOBS_EVERY_S = 0.5


class Plane:
    """A memory plane in a folder, N donors and one borrower, and a cluster plane beside it where one is asked for."""

    def __init__(self, plan: Plan, state: Path) -> None:
        self.plan = plan
        self.state = state
        self.names = tuple(f"d{number}" for number in range(1, plan.donors + 1))
        posts = {name: post_in(pressure.donor_folder(state, name), "daemon") for name in self.names}
        posts[BORROWER] = post_in(state / "blockdev", "blockdev")
        self._crew = Crew(posts, changed=self._write_record, ended=self._on_end)
        self.cluster: Cluster | None = None
        if plan.cluster is not None:
            self.cluster = Cluster(plan.cluster, state, self._write_record, plan.program_settings)
        self._jobs_bytes: dict[str, int] = {}  # by donor: what jobs of its node use
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
            own = settings.donor_settings(self.plan, self.state, name=name, listen=listen)
            self._crew.posts[name].config.write_text(config_text(own, self._given("daemon")))
        (self.state / "peers.toml").write_text(peers_text(controls))
        (self.state / "blockdev").mkdir()
        text = config_text(settings.blockdev_settings(self.plan, self.state), self._given("blockdev"))
        self._crew.posts[BORROWER].config.write_text(text)
        if self.cluster is not None:
            self.cluster.write_files()

    def _given(self, program: str) -> Mapping[str, str]:
        return self.plan.program_settings.get(program, {})

    def record(self) -> SandboxRecord:
        """The running processes, for the record file."""
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
            donors=tuple(self._crew.record(name) for name in self.names),
            blockdev=self._crew.record(BORROWER),
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
        self._crew.watch_in(tasks)
        tasks.create_task(self._keep_meminfo())
        if self.cluster is not None:
            tasks.create_task(self._keep_jobs_bytes(self.cluster))
        for name in self.names:
            await self._crew.start(name)
        for name in self.names:
            await self._until_answering(name)
        await self._crew.start(BORROWER)
        await self._until_answering(BORROWER)
        await self._until_clients_may_connect()
        if self.cluster is not None:
            await self.cluster.start(tasks)
        self._crew.has_started = True
        self._write_record()

    async def start_donor(self, name: str) -> None:
        """Starts a donor that has ended, and returns when it answers.

        Raises:
            ConfigError: there is no such donor, or it is running.
        """
        await self._crew.start_again(name, "donor", self.names)
        await self._until_answering(name)

    async def end(self) -> None:
        """Ends every child: the cluster plane, the borrower, then the donors, together."""
        self._ending = True
        if self.cluster is not None:
            await self.cluster.end()
        await self._crew.end([BORROWER])
        await self._crew.end(self.names)

    async def _on_end(self, name: str, status: int) -> None:
        if self._ending:
            return
        self._write_record()
        if name == BORROWER and status < 0:
            killer = signal.Signals(-status).name
            raise PeerError(f"the borrower's supervisor was killed by {killer}; a sandbox ends with it")
        if name == BORROWER:
            raise PeerError(f"the borrower ended by itself: {self._crew.said(BORROWER)}")
        if self.plan.restart_donors:
            await self._crew.start(name)

    async def _keep_meminfo(self) -> None:
        while not self._ending:
            for name in self.names:
                pid, jobs = self._crew.pid(name), self._jobs_bytes.get(name, 0)
                pressure.refresh(
                    self.state, name, total_bytes=self.plan.donor_memory_bytes, pid=pid, jobs_bytes=jobs
                )  # fmt: skip
            await asyncio.sleep(MEMINFO_EVERY_S)

    async def _keep_jobs_bytes(self, cluster: Cluster) -> None:
        """Finding a job's processes takes longer than the rest, and so has its own time."""
        while not self._ending:
            for name in self.names:
                self._jobs_bytes[name] = await asyncio.to_thread(cluster.jobs_bytes, name)
            await asyncio.sleep(JOBS_EVERY_S)

    async def _until_answering(self, name: str) -> None:
        await self._crew.until_says(name, "to answer", limit_s=START_LIMIT_S)

    async def _until_clients_may_connect(self) -> None:
        async def ready() -> bool:
            told = await ask(self._crew.posts[BORROWER].admin, "status")
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

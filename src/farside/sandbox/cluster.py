"""The sandbox's cluster plane: a manager and agents with declared GPUs, beside the memory plane.

DIR/manager.sock     where `farside submit`, `queue` and the others reach the manager
DIR/manager/         its config, store and log
DIR/agents/nN/       config, admin socket and log of each agent, and state/: its tasks
DIR/aggregators/aN/  the same of the Aggregator on node nN, where --aggregators asks for it
DIR/executors/xN/    sockets and log of the executor on node nN, where --executors asks for it

The manager starts first and ends last. Agents end with their tasks, so that nothing of a sandbox is left; an agent that
is killed leaves its tasks running, and finds them when it is started again. With --later the last nodes' agents are not
started with the others: each joins when `start_agent` is asked for it, as a node that the manager has never seen.
"""

import asyncio
import contextlib
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil

from farside.errors import ConfigError, PeerError
from farside.sandbox import process, settings
from farside.sandbox.crew import Crew, Post, post_in
from farside.sandbox.files import free_port
from farside.sandbox.jobs_memory import jobs_bytes
from farside.sandbox.layout import RUN_FOLDER, ClusterRecord, Shape
from farside.sandbox.pressure import donor_folder
from farside.sandbox.program_settings import ProgramSettings, config_text
from farside.units import MIB

MANAGER = "manager"
NODES_MAX, GPUS_MAX = 64, 64
START_LIMIT_S = 60.0 * settings.PATIENCE
ANSWER_LIMIT_S = 5.0
REPORT_PERIOD_S = 1.0
RECONNECT_S = 1.0
NODE_TIMEOUT_S = 20.0 * settings.PATIENCE
# A person who tries preemption should not have to wait the minute of production.
MIN_RUN_S = 5.0
# Two queues, and a job of eight GPUs falls into the second within ten seconds instead of the paper's seven minutes.
POLICY_SETTINGS = "limits_gpu_s=60"
AGGREGATOR_BYTES = 512 * MIB
EXECUTOR_SOCKET = "x.sock"
NOTHING_GIVEN: ProgramSettings = {}


def parse_shape(text: str) -> Shape:
    """``4x8``: four nodes with eight GPUs each.

    Raises:
        ConfigError: it is something else.
    """
    nodes, cross, gpus = text.partition("x")
    is_number = all(part.isascii() and part.isdigit() and len(part) <= 3 for part in (nodes, gpus))
    if not cross or not is_number or not 1 <= int(nodes) <= NODES_MAX or not 1 <= int(gpus) <= GPUS_MAX:
        raise ConfigError(
            f"--cluster {text:.20}: is no cluster",
            hint=f"write NODESxGPUS, such as 4x8; up to {NODES_MAX} nodes of {GPUS_MAX} GPUs",
        )
    return Shape(nodes=int(nodes), gpus_per_node=int(gpus))


class Cluster:
    """A manager and its agents in a sandbox's folder."""

    def __init__(
        self, shape: Shape, state: Path, changed: Callable[[], None], program_settings: ProgramSettings = NOTHING_GIVEN
    ) -> None:
        """``changed`` is called whenever a process starts or ends."""
        self.shape, self.state, self._given = shape, state, program_settings
        self.names = tuple(f"n{number}" for number in range(1, shape.nodes + 1))
        self.aggregators = tuple(f"a{number}" for number in range(1, shape.aggregators + 1))
        posts = {name: post_in(agent_folder(state, name), "agent") for name in self.names}
        posts |= {name: post_in(state / "aggregators" / name, "aggregator") for name in self.aggregators}
        self.executors = tuple(f"x{name.removeprefix('n')}" for name in self.names[shape.nodes - shape.executors :])
        posts |= {name: _executor_post(state, name) for name in self.executors}
        posts[MANAGER] = Post(subcommand="manager", folder=state / MANAGER, admin=state / "manager.sock")
        self._crew = Crew(posts, changed=changed, ended=self._on_end)
        self._changed = changed
        self._ending = False

    @property
    def endpoint(self) -> str:
        """Where users reach the manager."""
        return f"unix:{self.state / 'manager.sock'}"

    def record(self) -> ClusterRecord:
        """What runs now."""
        return ClusterRecord(
            endpoint=self.endpoint,
            gpus_per_node=self.shape.gpus_per_node,
            manager=self._crew.record(MANAGER),
            agents=tuple(self._crew.record(name) for name in self.names),
            aggregators=tuple(self._crew.record(name) for name in self.aggregators),
            executors=tuple(self._crew.record(name) for name in self.executors),
        )

    def write_files(self) -> None:
        """Makes configs. Agents need no token: on its unix socket the manager sees whose programs they are."""
        port = free_port()
        folder = self._crew.posts[MANAGER].folder
        folder.mkdir(mode=0o700)
        for name in self.names:
            self._crew.posts[name].folder.mkdir(mode=0o700, parents=True)
            self._write(name, "agent", self._agent_settings(name))
        for name in self.aggregators:
            self._crew.posts[name].folder.mkdir(mode=0o700, parents=True)
            self._write(name, "aggregator", self._aggregator_settings(name))
        for name in self.executors:
            self._crew.posts[name].folder.mkdir(mode=0o700, parents=True)
        self._write(MANAGER, MANAGER, self._manager_settings(port))

    def _write(self, name: str, program: str, own: Mapping[str, settings.Value]) -> None:
        self._crew.posts[name].config.write_text(config_text(own, self._given.get(program, {})))

    # --- processes

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Starts everything and returns when jobs may be submitted.

        Raises:
            FarsideError: something ended instead of getting ready; the message holds the last line it wrote.
        """
        self._crew.watch_in(tasks)
        await self._crew.start(MANAGER)
        await self._crew.until(MANAGER, self._manager_answers, "to answer", limit_s=START_LIMIT_S)
        # Before the agents, which tell the manager at once what is offered.
        beside = (*self.aggregators, *self.executors)
        for name in beside:
            await self._crew.start(name)
        for name in beside:
            await self._crew.until_says(name, "to answer", limit_s=START_LIMIT_S)
        first = self.names[: self.shape.nodes - self.shape.later]
        for name in first:
            await self._crew.start(name)
        for name in first:
            await self._until_connected(name)
        self._crew.has_started = True

    async def start_aggregator(self, name: str) -> None:
        """Starts an Aggregator that has ended, and returns when it answers.

        Raises:
            ConfigError: there is no such Aggregator, or it is running.
        """
        await self._crew.start_again(name, "Aggregator", self.aggregators)
        await self._crew.until_says(name, "to answer", limit_s=START_LIMIT_S)

    async def start_executor(self, name: str) -> None:
        """Starts an executor that has ended, and returns when it answers.

        Raises:
            ConfigError: there is no such executor, or it is running.
        """
        await self._crew.start_again(name, "executor", self.executors)
        await self._crew.until_says(name, "to answer", limit_s=START_LIMIT_S)

    async def start_agent(self, name: str) -> None:
        """Starts an agent that has ended, or was left for later, and returns when it is connected.

        Raises:
            ConfigError: there is no such agent, or it is running.
        """
        await self._crew.start_again(name, "agent", self.names)
        await self._until_connected(name)

    async def start_manager(self) -> None:
        """Starts the manager when it has ended, and returns when it answers.

        Raises:
            ConfigError: it is running.
        """
        if self._crew.is_running(MANAGER):
            raise ConfigError("the manager is running")
        await self._crew.start(MANAGER)
        await self._crew.until(MANAGER, self._manager_answers, "to answer", limit_s=START_LIMIT_S)

    def jobs_bytes(self, donor: str) -> int:
        """Memory that jobs use on the donor's node; 0 if the donor has no node. Blocks for a moment."""
        name = f"n{donor.removeprefix('d')}"
        return jobs_bytes(agent_folder(self.state, name) / "state") if name in self.names else 0

    async def end(self) -> None:
        """Ends the agents with their tasks, and then the manager."""
        self._ending = True
        await self._crew.end(self.names)
        await asyncio.to_thread(end_tasks, self.state)  # of agents that had been killed before
        await self._crew.end((*self.aggregators, *self.executors))
        await self._crew.end([MANAGER])

    async def _on_end(self, name: str, status: int) -> None:
        if self._ending:
            return
        self._changed()
        kinds = {"aggregator": self.aggregators, "executor": self.executors}
        what = next((kind for kind, names in kinds.items() if name in names), "agent")
        command = "start_manager" if name == MANAGER else f"start_{what} name={name}"
        socket_path = shlex.quote(os.fspath(self.state / "sandbox.sock"))
        self._crew.tell_of_end(name, status, f"farside admin --socket {socket_path} {command}")

    async def _until_connected(self, name: str) -> None:
        what = "to reach the manager"
        await self._crew.until_says(name, what, lambda status: bool(status["connected"]), limit_s=START_LIMIT_S)

    async def _manager_answers(self) -> bool:
        # The kernel still takes connections for a process that was killed a moment ago.
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(ANSWER_LIMIT_S):
                reader, writer = await asyncio.open_unix_connection(self.endpoint.removeprefix("unix:"))
                with contextlib.closing(writer):
                    writer.write(b"GET /v1/health HTTP/1.1\r\nHost: manager\r\nConnection: close\r\n\r\n")
                    return bool(await reader.read(1))
        return False

    # --- settings

    def _manager_settings(self, port: int) -> dict[str, settings.Value]:
        folder = self._crew.posts[MANAGER].folder
        # Of another policy these would be no settings.
        has_queues = "policy" not in self._given.get(MANAGER, {})
        return {
            "node": MANAGER,
            "listen": (self.endpoint, f"tcp:127.0.0.1:{port}"),
            "tokens_file": os.fspath(folder / "tokens.toml"),
            "store_url": f"sqlite:///{folder / 'store.db'}",
            "state_dir": os.fspath(folder / RUN_FOLDER),
            "run_as": "starter",
            "policy_settings": POLICY_SETTINGS if has_queues else "",
            "min_run_s": MIN_RUN_S,
            "colocation_nodes": ",".join(f"n{name.removeprefix('x')}" for name in self.executors),
            "node_timeout_s": NODE_TIMEOUT_S,
        }

    def _agent_settings(self, name: str) -> dict[str, settings.Value]:
        folder, executor = self._crew.posts[name].folder, self._crew.posts.get(f"x{name.removeprefix('n')}")
        return {
            "node": name,
            "manager": self.endpoint,
            "token_file": "",
            "state_dir": os.fspath(folder / "state"),
            "run_as": "starter",
            "on_stop": "end",
            "declared_gpus": 0 if executor is not None else self.shape.gpus_per_node,
            "gpu_model": "sandbox",
            # The machine's memory is there once: each node is said to have its part of it.
            "memory_total_bytes": psutil.virtual_memory().total // self.shape.nodes,
            # The n-th node is the machine of the n-th donor, where there is one.
            "daemon_socket": os.fspath(donor_folder(self.state, f"d{name.removeprefix('n')}") / "admin.sock"),
            # The first node is the machine of the borrower as well.
            "blockdev_socket": os.fspath(self.state / "blockdev" / "admin.sock") if name == "n1" else "",
            "swap_device": "",  # the machine's own units are nothing of a sandbox's
            "peers_file": os.fspath(folder / "peers.toml"),
            "aggregator_socket": self._aggregator_socket(name),
            "aggregation_socket": os.fspath(folder / "aggregation.sock"),
            "executor_socket": os.fspath(executor.folder / EXECUTOR_SOCKET) if executor is not None else "",
            "executor_admin_socket": os.fspath(executor.admin) if executor is not None else "",
            "report_period_s": REPORT_PERIOD_S,
            "reconnect_s": RECONNECT_S,
            "admin_socket": os.fspath(self._crew.posts[name].admin),
        }

    def _aggregator_socket(self, agent: str) -> str:
        name = f"a{agent.removeprefix('n')}"
        return os.fspath(self._crew.posts[name].admin) if name in self.aggregators else ""

    def _aggregator_settings(self, name: str) -> dict[str, settings.Value]:
        post, port = self._crew.posts[name], free_port()
        return {
            "node": f"n{name.removeprefix('a')}",
            "listen": (f"unix:{post.folder / 'members.sock'}", f"tcp:127.0.0.1:{port}"),
            "address": f"127.0.0.1:{port}",
            "cores": 1,
            "memory_bytes": AGGREGATOR_BYTES,
            "admin_socket": os.fspath(post.admin),
        }


def _executor_post(state: Path, name: str) -> Post:
    post = post_in(state / "executors" / name, "executor")
    words = ("--socket", os.fspath(post.folder / EXECUTOR_SOCKET), "--admin-socket", os.fspath(post.admin))
    return replace(post, words=(*words, "--group-listen", f"127.0.0.1:{free_port()}"))


def agent_folder(state: Path, name: str) -> Path:
    """What belongs to one agent."""
    return state / "agents" / name


def end_tasks(state: Path) -> None:
    """Ends every task of agents that do not run any more.

    Raises:
        PeerError: some do not go away.
    """
    from farside.agent.run.cleanup import end_all_tasks  # late: a sandbox without a cluster needs none of it

    for folder in sorted((state / "agents").glob("*/state")):
        if not end_all_tasks(folder, cause="the sandbox ended", limit_s=process.END_LIMIT_S):
            raise PeerError(f"tasks in {folder} do not end")

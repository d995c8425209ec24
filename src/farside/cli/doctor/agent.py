"""Checks of `farside doctor` on what an agent would refuse to start over, or start without."""

import os
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

from farside.agent.run.account import users_here
from farside.agent.run.containment import CgroupRoot, cgroup_root
from farside.agent.run.hook import hooks_of
from farside.agent.run.task_memory import TaskMemory
from farside.agent.sense.gpu import GpuSense
from farside.agent.sense.node import reserve_of
from farside.agent.session import near_path
from farside.agent.startup import check_fence, gpus_of, manager_address, spill_dir_of, why_unfenced
from farside.cli.doctor.attempt import tried
from farside.cli.doctor.places import folder_checks, is_served, listen_checks
from farside.config import AgentConfig
from farside.config.check import names_in
from farside.kmod_shim.preflight import Check, Outcome
from farside.memory_sense import MemorySense
from farside.units import format_count

LIMIT_S = 3.0
_PORTS = {"ws": 80, "wss": 443}


def agent_checks(config: AgentConfig) -> Iterator[Check]:
    """One line for each thing that the agent needs, with what it found."""
    _, wrong = tried("manager", lambda: manager_address(config))
    yield wrong or _manager(config.manager)
    yield from _fence(config)
    yield from _spill_dir(config)
    yield from _people(config)
    yield from _places(config)
    cgroup = cgroup_root(config.cgroup)
    yield _cgroup(config, cgroup)
    gpus, wrong = tried("gpus", lambda: gpus_of(config))
    if gpus is None:
        assert wrong is not None
        yield wrong
        yield from _memory(config, cgroup, 1)
        return
    with closing(gpus):
        yield _gpus(gpus)
        yield from _gpu_fence(config, cgroup, gpus)
        yield from _memory(config, cgroup, sum(len(gpu.devices) for gpu in gpus.read()))


def _manager(url: str) -> Check:
    """Whether anybody answers. The agent starts without, and waits."""
    parts = urlsplit(url)
    near = near_path(url)
    try:
        if near:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(LIMIT_S)
                sock.connect(near)
        else:
            where = (parts.hostname or "", parts.port or _PORTS[parts.scheme])
            socket.create_connection(where, timeout=LIMIT_S).close()
    except OSError as error:
        found = f"{url}: {error.strerror or error}; the agent waits until it answers"
        return Check(name="manager", outcome=Outcome.WARNING, found=found, advice="is `farside manager` running there?")
    return Check(name="manager", outcome=Outcome.OK, found=f"{url} answers")


def _fence(config: AgentConfig) -> Iterator[Check]:
    _, wrong = tried("fence", lambda: check_fence(config))
    if wrong:
        yield wrong


def _spill_dir(config: AgentConfig) -> Iterator[Check]:
    _, wrong = tried("spill_dir", lambda: spill_dir_of(config))
    if wrong:
        yield wrong


def _people(config: AgentConfig) -> Iterator[Check]:
    """Users, hooks, and the program that shuts the node down."""
    _, wrong = tried("users", lambda: users_here(run_as=config.run_as, allowed=names_in(config.users)))
    if wrong:
        yield wrong
    hooks, wrong = tried("hooks", lambda: hooks_of(
        config.prolog, config.epilog, user=config.hook_user, limit_s=config.hook_limit_s
    ))  # fmt: skip
    if wrong:
        yield wrong
    programs = {"prolog": hooks.prolog, "epilog": hooks.epilog} if hooks is not None else {}
    for name, argv in programs.items():
        if argv and not os.access(argv[0], os.X_OK):
            found = f"{name}: {argv[0]} is not there, or can't be executed: each task would drain this node"
            yield Check(
                name="hooks", outcome=Outcome.FAILED, found=found, advice=f"chmod +x {argv[0]}, or name another"
            )


def _places(config: AgentConfig) -> Iterator[Check]:
    """Folder, sockets and ports: without the folder no task starts."""
    yield from folder_checks("state_dir", config.state_dir)
    is_running = is_served(config.admin_socket)
    if is_running:
        yield Check(name="agent", outcome=Outcome.OK, found=f"one runs already, at {config.admin_socket}")
    yield from listen_checks("admin_socket", [f"unix:{config.admin_socket}"], is_running=is_running)
    ports = [f"tcp:{config.metrics_listen}"] if config.metrics_listen else []
    yield from listen_checks("metrics_listen", ports, is_running=is_running)


def _memory(config: AgentConfig, cgroup: CgroupRoot | None, devices: int) -> Iterator[Check]:
    """Whether memory can be read, and leaves tasks any where each is to have a share."""
    total_bytes = config.memory_total_bytes
    if not total_bytes:
        found, wrong = tried("proc", lambda: MemorySense(proc_root=config.proc_root).read())
        if found is None:
            yield from [wrong] if wrong else []
            return
        total_bytes = found.total_bytes
    reserve_bytes = reserve_of(total_bytes, config.memory_reserve_bytes)
    memory = TaskMemory(
        mode=config.task_memory, bytes_per_device=config.task_memory_bytes,
        jobs_bytes=max(0, total_bytes - reserve_bytes), devices=devices,
    )  # fmt: skip
    problem = memory.problem(is_limited=cgroup is not None and cgroup.limits_memory)
    if problem:
        found_text = f"task_memory: is limit; {problem}"
        yield Check(name="task memory", outcome=Outcome.FAILED, found=found_text, advice='task_memory = "warn"')


def _cgroup(config: AgentConfig, cgroup: CgroupRoot | None) -> Check:
    if cgroup is None:
        advice = "mount cgroup v2, and run the agent by its unit" if config.cgroup != "off" else 'cgroup = "auto"'
        found = "no cgroup v2 for tasks: they have no limits on memory and CPUs, and can open all GPUs"
        return Check(name="cgroups", outcome=Outcome.WARNING, found=found, advice=advice)
    kept = f"{cgroup.folder}, by systemd" if cgroup.by_systemd else str(cgroup.folder)
    if not cgroup.limits_memory:
        found = f"{kept}: it limits no memory"
        return Check(name="cgroups", outcome=Outcome.WARNING, found=found, advice="boot with cgroup v2 alone")
    return Check(name="cgroups", outcome=Outcome.OK, found=kept)


def _gpus(gpus: GpuSense) -> Check:
    found = gpus.read()
    if gpus.unseen:
        advice = "install what is missing, or set declared_gpus"
        shown = f"{format_count(len(found), 'GPU')} {gpus.told_by}; " if found else ""
        return Check(name="gpus", outcome=Outcome.FAILED, found=f"{shown}{gpus.unseen}", advice=advice)
    if not found:
        return Check(name="gpus", outcome=Outcome.OK, found="none, and no driver of any")
    models = ", ".join(dict.fromkeys(gpu.model for gpu in found))
    broken = [f"GPU {gpu.index}: {gpu.reason}" for gpu in found if not gpu.healthy]
    text = f"{format_count(len(found), 'GPU')} {gpus.told_by}: {models}"
    if broken:
        return Check(name="gpus", outcome=Outcome.WARNING, found=f"{text}; {'; '.join(broken)}", advice="repair these")
    return Check(name="gpus", outcome=Outcome.OK, found=text)


def _gpu_fence(config: AgentConfig, cgroup: CgroupRoot | None, gpus: GpuSense) -> Iterator[Check]:
    why, wrong = tried("gpu fence", lambda: why_unfenced(config, cgroup, gpus))
    if wrong:
        yield wrong
    elif gpus.read():
        if why:
            advice = "docs/operating.md, Running jobs on a node, says what it takes"
            found = f"tasks can open GPUs that are not theirs: {why}"
            yield Check(name="gpu fence", outcome=Outcome.WARNING, found=found, advice=advice)
        else:
            yield Check(name="gpu fence", outcome=Outcome.OK, found="the kernel closes others' GPUs to a task")

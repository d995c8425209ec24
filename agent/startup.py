"""What an agent's settings must hold before it starts: asked by the agent itself, and by `farside doctor`."""

import os
import stat
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from farside.agent.run.containment import CgroupRoot
from farside.agent.run.gpu_fence import why_no_fence
from farside.agent.sense.gpu import GpuSense, open_gpus
from farside.agent.service.memory_rules import MemoryRules, Orders
from farside.agent.session import ManagerAddress, near_path
from farside.agent.token import read_token
from farside.config import AgentConfig
from farside.config.check import names_in
from farside.endpoint import is_near
from farside.errors import ConfigError
from farside.kmod_shim.disk_backing import find_backing
from farside.log import get_log
from farside.tls import TlsFiles, client_tls
from farside.units import parse_bound

FENCE_PERIODS = 3  # of report_period_s: the manager acknowledges each report, and one may be late

ALL_USERS = stat.S_ISVTX | stat.S_IWOTH | stat.S_IXOTH
"""Mode of a folder in which every user makes files, and takes away none of others'."""

_log = get_log("agent")


def borrowers_of(config: AgentConfig) -> tuple[Path, ...]:
    """Admin sockets of the node's borrowers."""
    return tuple(map(Path, names_in(config.blockdev_socket)))


def memory_rules(config: AgentConfig) -> MemoryRules:
    """What the node's owner says of its memory, beside a manager's orders."""
    return MemoryRules(
        orders=cast(Orders, config.memory_orders),
        lend_bytes=parse_bound(config.lend),
        swap_bytes=parse_bound(config.swap) if config.swap != "keep" else None,
        device=config.swap_device,
    )


def manager_address(config: AgentConfig) -> ManagerAddress:
    """Address of the manager.

    Raises:
        ConfigError: Token or certificate is wrong, or nothing would prove the manager.
    """
    tls = TlsFiles(ca=config.ca_file, cert=config.tls_cert, key=config.tls_key)
    is_secured = urlsplit(config.manager).scheme == "wss"
    if is_secured:
        client_tls(tls)
    is_near_by = bool(near_path(config.manager))
    if config.accept_unproved_manager and (is_near_by or is_secured):
        hint = "remove the setting: this address proves the manager"
        raise ConfigError(f"accept_unproved_manager is for ws:// only, not for {config.manager}", hint=hint)
    if config.token_file.is_absolute() and not (is_near_by and not config.token_file.exists()):
        read_token(config.token_file)
        if not (is_near_by or is_secured or is_near(urlsplit(config.manager).hostname or "")):
            _log.warning("jobs cross the network unencrypted; write wss://", manager=config.manager)
    elif not (is_near_by or is_secured):
        hint = "set token_file, which proves agent and manager to each other, or write wss://"
        raise ConfigError(f"manager {config.manager}: nothing proves who it is without a token", hint=hint)
    return ManagerAddress(
        url=config.manager, token_file=config.token_file, state_dir=config.state_dir, tls=tls,
        takes_unproved=config.accept_unproved_manager,
    )  # fmt: skip


def check_fence(config: AgentConfig) -> None:
    """Refuse a fence in time that would end tasks for nothing, or not at all.

    Raises:
        ConfigError: It is such a fence.
    """
    least_s = FENCE_PERIODS * config.report_period_s
    if config.fence_s and config.accept_unproved_manager:
        hint = "remove one of the two settings"
        raise ConfigError("fence_s: a manager that does not prove itself does not know of it", hint=hint)
    if config.fence_s and config.fence_s < least_s:
        hint = f"at least {least_s:g}, {FENCE_PERIODS} times report_period_s; 0: no fence"
        raise ConfigError(f"fence_s: is {config.fence_s:g}, and tasks would end for a report that is late", hint=hint)


def spill_dir_of(config: AgentConfig) -> Path | None:
    """The folder for input of co-located jobs that does not fit in their memory; None: there is none.

    Raises:
        ConfigError: Tasks can't make files there, or these would be in memory.
    """
    folder = config.spill_dir
    if not folder.is_absolute():
        return None
    try:
        place = folder.resolve(strict=True)
        mode, backing = place.stat().st_mode, find_backing(place)
    except OSError as error:
        hint = "make the folder, on a disk of this node"
        raise ConfigError(f"spill_dir {folder}: {error.strerror}", hint=hint) from error
    if not stat.S_ISDIR(mode):
        raise ConfigError(f"spill_dir {folder}: is no folder", hint="name one on a disk of this node")
    if backing.is_memory:
        kind = backing.filesystem or "a RAM disk"
        raise ConfigError(f"spill_dir {folder}: is in memory ({kind})", hint="name a folder on a disk of this node")
    if config.run_as == "starter" or os.geteuid() != 0:
        if not os.access(place, os.W_OK | os.X_OK):
            raise ConfigError(f"spill_dir {folder}: this user can't make files there", hint=f"chmod u+rwx {folder}")
    elif mode & ALL_USERS != ALL_USERS:
        raise ConfigError(f"spill_dir {folder}: not all users can make files there", hint=f"chmod 1777 {folder}")
    elif closed := [one for one in place.parents if not one.stat().st_mode & stat.S_IXOTH]:
        raise ConfigError(f"spill_dir {folder}: users can't reach it", hint=f"chmod o+x {closed[-1]}")
    return folder


def gpus_of(config: AgentConfig) -> GpuSense:
    """The GPUs that the settings declare, or that the driver has.

    Raises:
        ConfigError: The files of the declared ones are none.
    """
    return open_gpus(
        declared=config.declared_gpus, model=config.gpu_model, nvlink_errors_per_hour=config.nvlink_errors_per_hour,
        files=[names.split("+") for names in names_in(config.declared_gpu_files)],
    )  # fmt: skip


def why_unfenced(config: AgentConfig, cgroup: CgroupRoot | None, gpus: GpuSense) -> str:
    """Why other GPUs are not closed to tasks; empty: they are.

    Raises:
        ConfigError: They can't be, and ``gpu_fence`` is on.
    """
    if config.gpu_fence == "off":
        return "gpu_fence is off"
    if cgroup is None:
        problem = "tasks have no cgroup v2 here"
    else:
        problem = gpus.files.problem or why_no_fence(None if cgroup.by_systemd else cgroup.folder)
    if problem and config.gpu_fence == "on":
        raise ConfigError(f"gpu_fence: is on; {problem}", hint='gpu_fence = "auto" goes without')
    return problem

"""Description of this machine, for the record that a run leaves."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

from benchmarks.result import Machine

VERSION_COMMANDS = {
    "nbdkit": ("nbdkit", "--version"),
    "nbd-server": ("nbd-server", "--version"),
    "qemu-nbd": ("qemu-nbd", "--version"),
    "fio": ("fio", "--version"),
    "cc": ("cc", "--version"),
}


def this_machine() -> Machine:
    """This machine, now."""
    return Machine(
        cpu=_cpu_name(Path("/proc/cpuinfo").read_text()),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
        kernel=platform.release(),
        system=platform.freedesktop_os_release().get("PRETTY_NAME", "Linux"),
        load_before=round(os.getloadavg()[0], 2),
        versions={name: _first_line(command) for name, command in VERSION_COMMANDS.items()},
    )


def this_commit() -> str:
    """The commit of this checkout, with "+" when files differ from it; "" outside a repository."""
    here = Path(__file__).parent
    try:
        commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True)
        if commit.returncode:
            return ""
        ours = ["git", "status", "--porcelain", "--", "..", ":!../docs/benchmarks.md", ":!results"]
        changed = subprocess.run(ours, cwd=here, capture_output=True, text=True)
    except FileNotFoundError:  # no git: the figures are as good without it
        return ""
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def this_command(module: str) -> str:
    """How this program was called, as a reader would call it again."""
    return shlex.join(["python", "-m", module, *sys.argv[1:]])


def _cpu_name(cpuinfo: str) -> str:
    names = (line.partition(":")[2].strip() for line in cpuinfo.splitlines() if line.startswith("model name"))
    return next(names, platform.machine())


def _first_line(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not installed"
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "unknown"

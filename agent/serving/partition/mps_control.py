"""What an MPS control daemon is asked, by NVIDIA's program for that: whether it is there, and to end."""

import os
import subprocess
import time
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
# A daemon is up within a fraction of a second.
ANSWER_S = 10.0
_LOOK_S = 0.05
# In its folder, where the daemon has ended by itself.
ENDED = "ended"
# Said, as seen with several versions, with exit code 1.
_NOBODY = b"cannot find mps control daemon"


def environment_of(folder: str) -> dict[str, str]:
    """The variables of a process of the daemon that has its pipe and its log in this folder, and of no other one."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
    return {**ours, "CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}


def ask(folder: str, command: str, limit_s: float) -> bool:
    """Whether the daemon of this folder has answered a command.

    Raises:
        OSError: The program can't be run.
    """
    try:
        done = subprocess.run(
            [CONTROL], input=f"{command}\n".encode(), env=environment_of(folder), timeout=limit_s, capture_output=True
        )
    except subprocess.TimeoutExpired:
        return False
    said = (done.stdout + done.stderr).strip().lower()
    # A code without a word is no promise of theirs either: it refuses nobody.
    return _NOBODY not in said and (done.returncode == 0 or not said)


def why_silent(folder: str, limit_s: float = ANSWER_S) -> str:
    """Why the daemon of this folder does not answer within ``limit_s`` seconds; empty: it does.

    CUDA goes on without MPS, and so without a limit, in a process that finds no daemon.
    """
    by_s = time.monotonic() + limit_s
    try:
        while not ask(folder, "get_server_list", limit_s):
            if Path(folder, ENDED).exists() or time.monotonic() >= by_s:
                return f"{CONTROL}: does not answer in {folder}: {_last_line(Path(folder))}"
            time.sleep(_LOOK_S)
    except OSError as error:
        return f"{CONTROL}: {error.strerror}"
    return ""


def _last_line(folder: Path) -> str:
    try:
        lines = (folder / "control.log").read_text(errors="replace").split("\n")
    except OSError as error:
        return f"control.log: {error.strerror}"
    return next((line.strip() for line in reversed(lines) if line.strip()), "control.log is empty")

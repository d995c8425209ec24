"""The process between a front and the MPS control daemon of a GPU: starts it, and ends it when the front says, or ends.

At the end of a job all its processes get SIGTERM, and those of a terminal SIGINT by Ctrl-C, while executors end their
batches: so the daemon is in a session of its own, and starts with both signals ignored and blocked. END alone ends it,
which comes from the front, and from the kernel once the front is gone.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from farside.agent.serving.partition.mps_control import CONTROL, ENDED, ask
from farside.ending import ENDING, die_with

PROGRAM = ("-P", "-m", "farside.agent.serving.partition.mps_keeper")
END = signal.SIGUSR1
_LOOK_S = 0.05


def start_kept(parent: int) -> None:
    """Between fork and exec of this program: no signal is lost, and ``parent``'s end is one."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (*ENDING, END, signal.SIGCHLD))
    die_with(parent, END)


def main(arguments: list[str]) -> int:
    """Until the daemon has ended; the exit code, if it ended by itself.

    Args:
        arguments: The daemon's folder, and how many seconds it has to end when it is asked to.
    """
    folder, quit_s = arguments[0], float(arguments[1])
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    keeper = os.getpid()
    try:
        daemon = subprocess.Popen([CONTROL, "-f"], stdin=subprocess.DEVNULL, preexec_fn=lambda: _start_daemon(keeper))
    except OSError as error:
        with suppress(OSError):
            Path(folder, "control.log").write_text(f"{error.strerror}\n")  # where executors look
        return _ended(folder)
    while signal.sigwait((END, signal.SIGCHLD)) != END:
        if daemon.poll() is not None:
            return _ended(folder)  # its server may still serve the clients that it has
    with suppress(OSError, subprocess.TimeoutExpired):
        _quit(daemon, folder, quit_s)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # what is left, such as its server; and this process
    return 0


def _quit(daemon: "subprocess.Popen[bytes]", folder: str, quit_s: float) -> None:
    by_s = time.monotonic() + quit_s
    while not ask(folder, "quit", by_s - time.monotonic()):  # it may not be up yet
        with suppress(subprocess.TimeoutExpired):
            daemon.wait(_LOOK_S)
            return
        if time.monotonic() >= by_s or not Path(folder).exists():  # without it nobody can ask
            return
    daemon.wait(by_s - time.monotonic())


def _ended(folder: str) -> int:
    with suppress(OSError):
        Path(folder, ENDED).touch()
    return 1


def _start_daemon(keeper: int) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ENDING)
    die_with(keeper, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

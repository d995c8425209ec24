"""MPS: a part is a limit on the SMs that a process may use, kept by a control daemon of this driver's own.

The daemon has its own pipe and log folders, so that it neither uses nor disturbs one that the machine has already. A
limit is no reservation: parts that add up to more than 100 % share what there is.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.maker import make_folder
from farside.agent.serving.partition.mps_control import CONTROL, environment_of
from farside.agent.serving.partition.mps_keeper import END, PROGRAM, start_kept
from farside.agent.serving.partition.nvidia import NvidiaGpus, uncut_devices, uuid_to_cut
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Traits
from farside.errors import Unavailable
from farside.log import get_log

NAME = "mps"
# Of an end in all: that of a lease's job is forced after 30 s. And how much of it the daemon has once it is asked: its
# keeper may have to start before, and kills afterwards.
_END_S, _QUIT_S = 10.0, 8.0
_SOCKET_BYTES_MAX = 107  # unix(7): 108 with the byte that ends it

_log = get_log("agent.serving")


class MpsDriver(NvidiaGpus):
    """Cuts GPUs by limits."""

    traits: ClassVar[Traits] = Traits(on_gpu=True)

    def __init__(self, nvml: Any = None) -> None:
        super().__init__(nvml)
        self._daemons: dict[str, _Daemon] = {}

    def capabilities(self) -> Capabilities:
        """Whether there is a GPU, and the program that limits its clients."""
        try:
            is_there = bool(self.devices())
        except Unavailable as error:
            return Capabilities(problem=str(error))
        if not is_there:
            return Capabilities(problem="NVIDIA's driver finds no GPU that is not cut into instances")
        return Capabilities(
            parts="1 to 100 %",
            isolation="a limit on SMs; caches and memory bandwidth are shared, and so are errors that spoil the GPU",
        )

    def check(self, device: Device, part_pct: int) -> None:
        """Any percentage, of a GPU that is not cut into instances."""
        self._uuid(device, part_pct)

    def open(self, device: Device, part_pct: int) -> "MpsPlace":
        """A limit for one process of this GPU's daemon, which is started for the first, and anew where it has ended."""
        uuid = self._uuid(device, part_pct)
        daemon = self._daemons.get(uuid)
        if daemon is None or daemon.has_ended:
            daemon = self._daemons[uuid] = _Daemon(uuid)
        return MpsPlace(self, daemon, part_pct)

    def devices(self) -> tuple[Device, ...]:
        """GPUs of this machine that are not cut into instances.

        Raises:
            Unavailable: As `capabilities` says.
        """
        return uncut_devices(self.nvml(), with_instances=False)

    def release(self, daemon: "_Daemon") -> None:
        """Ends a daemon with its last part."""
        if not daemon.places:
            self._forget(daemon)
            daemon.end()

    def give_up(self, daemon: "_Daemon") -> None:
        """Ends all executors of a daemon. The next one has another daemon, also while some of them end still.

        After an error that leaves the GPU unusable a server takes no client until all that it has are gone, and those
        that have nothing to do would stay.
        """
        if self._forget(daemon):
            _log.warning(
                "an error has left a GPU unusable by the executors of its MPS daemon; they end", gpu=daemon.uuid
            )
            for place in daemon.places:
                place.on_spoilt()

    def _uuid(self, device: Device, part_pct: int) -> str:
        return uuid_to_cut(self.nvml(), device, part_pct, how="by limits ")

    def _forget(self, daemon: "_Daemon") -> bool:
        is_in_use = self._daemons.get(daemon.uuid) is daemon
        if is_in_use:
            del self._daemons[daemon.uuid]
        return is_in_use

    def nvml(self) -> Any:
        """The library, where there is a GPU and the program that limits its clients."""
        nvml = super().nvml()
        if not nvml.nvmlDeviceGetCount():
            raise Unavailable("NVIDIA's driver finds no GPU")
        if shutil.which(CONTROL) is None:
            raise Unavailable(f"the program {CONTROL} is not in PATH", hint="it comes with NVIDIA's driver")
        return nvml


class MpsPlace(FixedPlace):
    """A limit for one process, which keeps the one that it started with."""

    def __init__(self, driver: MpsDriver, daemon: "_Daemon", part_pct: int) -> None:
        limit = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part_pct)}
        variables = {**daemon.variables, **limit}
        super().__init__(part_pct, Entry(environment=variables, computes_on="cuda", daemon=daemon.folder))
        self._driver, self._daemon = driver, daemon
        self.on_spoilt: Callable[[], None] = _nothing
        daemon.places.append(self)

    def spoilt(self) -> None:
        """All executors of the daemon end."""
        self._driver.give_up(self._daemon)

    def close(self) -> None:
        """The limit is gone with its process."""
        self.on_spoilt = _nothing  # it refers to its executor, which refers to this
        self._daemon.places.remove(self)
        self._driver.release(self._daemon)


class _Daemon:
    """A control daemon for one GPU, kept by a child of this process (mps_keeper.py), with a folder of its own.

    It ends with the thread that makes it, which is that of the event loop. Whether it has come up, executors find out.
    """

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.places: list[MpsPlace] = []
        self.folder = _make_folder()
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": self.folder, "CUDA_VISIBLE_DEVICES": uuid}
        parent = os.getpid()
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, *PROGRAM, self.folder, str(_QUIT_S)],
                    env={**environment_of(self.folder), **self.variables}, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, start_new_session=True, preexec_fn=lambda: start_kept(parent),
                )  # fmt: skip
                undo.callback(self._kill)
                self._pidfd = os.pidfd_open(self._process.pid)
            except (OSError, subprocess.SubprocessError) as error:
                raise Unavailable(f"{CONTROL}: {(isinstance(error, OSError) and error.strerror) or error}") from error
            undo.pop_all()

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, and with it what a process would need to begin."""
        return self._has_ended_within(0)

    def end(self) -> None:
        """Has it end. That takes seconds, for which only the end of this process waits: nothing else would end it."""
        threading.Thread(target=self._end, name="farside-mps").start()

    def _end(self) -> None:
        """Has its keeper end it, and kills what is left."""
        signal.pidfd_send_signal(self._pidfd, END)
        self._has_ended_within(_END_S)
        self._kill()
        os.close(self._pidfd)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self) -> None:
        """Kills its keeper, and with it what is left of it."""
        os.killpg(self._process.pid, signal.SIGKILL)  # the number is no other's: nobody has waited for it yet
        self._process.wait()

    def _has_ended_within(self, limit_s: float) -> bool:
        look = select.poll()
        look.register(self._pidfd, select.POLLIN)
        return bool(look.poll(limit_s * 1000))


def _nothing() -> None:
    """For a place without an executor."""


def _make_folder() -> str:
    try:
        folder = str(make_folder("mps"))
        if len(os.fsencode(f"{folder}/control")) > _SOCKET_BYTES_MAX:
            os.rmdir(folder)
            why = f"{tempfile.gettempdir()}, where {CONTROL} has its pipe: its path is too long for a socket"
            raise Unavailable(why, hint="set TMPDIR to a shorter one")
    except OSError as error:
        raise Unavailable(f"{tempfile.gettempdir()}, where {CONTROL} has its pipe: {error.strerror}") from error
    return folder

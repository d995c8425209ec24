"""MPS: a part is a limit on the SMs that a process may use, kept by a control daemon of this driver's own.

The daemon has its own pipe and log folders, so that it neither uses nor disturbs one that the machine has already. A
limit is no reservation: parts that add up to more than 100 % share what there is.
"""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from typing import Any, ClassVar

from farside.agent.serving.partition.fixed import FixedPlace
from farside.agent.serving.partition.maker import make_folder
from farside.agent.serving.partition.nvidia import NvidiaGpus, uncut_devices, uuid_to_cut
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Traits
from farside.ending import die_with
from farside.errors import Unavailable

NAME = "mps"
CONTROL = "nvidia-cuda-mps-control"
_QUIT_S = 10.0


class MpsDriver(NvidiaGpus):
    """Cuts GPUs by limits."""

    traits: ClassVar[Traits] = Traits(on_gpu=True)

    def __init__(self, nvml: Any = None) -> None:
        super().__init__(nvml)
        self._daemons: dict[str, _Daemon] = {}

    def capabilities(self) -> Capabilities:
        """Whether there is a GPU, and the program that limits its clients."""
        try:
            self.nvml()
        except Unavailable as error:
            return Capabilities(problem=str(error))
        return Capabilities(parts="1 to 100 %", isolation="a limit on SMs; caches and memory bandwidth are shared")

    def open(self, device: Device, part_pct: int) -> "MpsPlace":
        """A limit for one process of this GPU's daemon, which is started for the first, and anew where it has ended."""
        uuid = uuid_to_cut(self.nvml(), device, part_pct, how="by limits ")
        daemon = self._daemons.get(uuid)
        if daemon is None or daemon.has_ended:
            daemon = self._daemons[uuid] = _Daemon(uuid)
        daemon.users += 1
        return MpsPlace(self, daemon, part_pct)

    def devices(self) -> tuple[Device, ...]:
        """GPUs of this machine that are not cut into instances.

        Raises:
            Unavailable: As `capabilities` says.
        """
        return uncut_devices(self.nvml(), with_instances=False)

    def release(self, daemon: "_Daemon") -> None:
        """Ends a daemon with its last part."""
        daemon.users -= 1
        if not daemon.users:
            for uuid in [uuid for uuid, one in self._daemons.items() if one is daemon]:
                del self._daemons[uuid]
            daemon.end()

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
        super().__init__(part_pct, Entry(environment={**daemon.variables, **limit}, computes_on="cuda"))
        self._driver, self._daemon = driver, daemon

    def close(self) -> None:
        """The limit is gone with its process."""
        self._driver.release(self._daemon)


class _Daemon:
    """A control daemon for one GPU, in the foreground and so a child of this process, with a folder of its own.

    It ends with the thread that makes it, which is that of the event loop.
    """

    def __init__(self, uuid: str) -> None:
        self.users = 0
        try:
            self._folder = str(make_folder("mps"))
        except OSError as error:
            raise Unavailable(f"{tempfile.gettempdir()}, where {CONTROL} has its pipe: {error.strerror}") from error
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": self._folder, "CUDA_VISIBLE_DEVICES": uuid}
        self._environment = {**os.environ, **self.variables, "CUDA_MPS_LOG_DIRECTORY": self._folder}
        parent = os.getpid()
        try:
            self._process = subprocess.Popen(
                [CONTROL, "-f"], env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                preexec_fn=lambda: die_with(parent, signal.SIGTERM),
            )  # fmt: skip
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise Unavailable(f"{CONTROL}: {error.strerror}") from error

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, and with it what a process would need to begin."""
        return self._process.poll() is not None

    def end(self) -> None:
        """Has it end. That takes seconds, for which only the end of this process waits: nothing else would end it."""
        threading.Thread(target=self._end, name="farside-mps").start()

    def _end(self) -> None:
        """Asks it to end, and kills it if it does not."""
        try:
            if not self.has_ended:
                subprocess.run([CONTROL], input=b"quit\n", env=self._environment, timeout=_QUIT_S, capture_output=True)
            self._process.wait(_QUIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

"""MPS: a part is a limit on the SMs that a process may use, kept by a control daemon of this driver's own.

The daemon has its own pipe and log folders, so that it neither uses nor disturbs one that the machine has already. A
limit is no reservation: parts that add up to more than 100 % share what there is.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from typing import Any

from farside.agent.serving.partition.nvidia import conditions_of, gpu_of, identity_of, open_nvml, process_bytes
from farside.agent.serving.partition.policy import Capabilities, Conditions, Device, Entry, Identity, Measured
from farside.errors import Unavailable

NAME = "mps"
CONTROL = "nvidia-cuda-mps-control"
_QUIT_S = 10.0


class MpsDriver:
    """Cuts GPUs by limits; ``nvml``: another module than pynvml, in tests."""

    def __init__(self, nvml: Any = None) -> None:
        self._given = nvml
        self._daemons: dict[int, _Daemon] = {}

    def capabilities(self) -> Capabilities:
        """Whether there is a GPU, and the program that limits its clients."""
        try:
            self._nvml()
        except Unavailable as error:
            return Capabilities(driver=NAME, problem=str(error))
        return Capabilities(
            driver=NAME, parts="1 to 100 %", isolation="a limit on SMs; caches and memory bandwidth are shared"
        )

    def open(self, device: Device, part_pct: int) -> "MpsPlace":
        """A limit for one process of this GPU's daemon, which is started for the first."""
        if not 1 <= part_pct <= 100:
            raise Unavailable(f"GPU {device.number}: has no part of {part_pct} %", hint="give 1 to 100")
        daemon = self._daemons.get(device.number)
        if daemon is None:
            nvml = self._nvml()
            uuid = str(nvml.nvmlDeviceGetUUID(gpu_of(nvml, device)))
            daemon = self._daemons[device.number] = _Daemon(uuid)
        daemon.users += 1
        return MpsPlace(self, device.number, daemon, part_pct)

    def identity(self, device: Device) -> Identity:
        """Model and memory of the GPU."""
        return identity_of(self._nvml(), device)

    def conditions(self, device: Device) -> Conditions:
        """Clock and temperature of the GPU now."""
        return conditions_of(self._nvml(), device)

    def process_bytes(self, device: Device, pid: int) -> int:
        """GPU memory of an executor."""
        return process_bytes(self._nvml(), device, pid)

    def release(self, number: int) -> None:
        """Ends a GPU's daemon with its last part."""
        daemon = self._daemons[number]
        daemon.users -= 1
        if not daemon.users:
            del self._daemons[number]
            daemon.end()

    def _nvml(self) -> Any:
        nvml = open_nvml(self._given)
        if not nvml.nvmlDeviceGetCount():
            raise Unavailable("NVIDIA's driver finds no GPU")
        if shutil.which(CONTROL) is None:
            raise Unavailable(f"the program {CONTROL} is not in PATH", hint="it comes with NVIDIA's driver")
        return nvml


class MpsPlace:
    """A limit for one process."""

    def __init__(self, driver: MpsDriver, number: int, daemon: "_Daemon", part_pct: int) -> None:
        self.part_pct = part_pct
        self._driver, self._number = driver, number
        limit = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(part_pct)}
        self.entry = Entry(environment={**daemon.variables, **limit}, computes_on="cuda")

    def resize(self, part_pct: int) -> bool:
        """A process keeps the limit that it started with."""
        return part_pct == self.part_pct

    def hold(self, prepare_pct: int) -> bool:
        """A process keeps the limit that it started with."""
        return False

    def let_go(self) -> None:
        """Changes nothing: the part was not held."""

    def measured(self) -> Measured | None:
        """The driver does not count a process's SMs."""
        return None

    def close(self) -> None:
        """The limit is gone with its process."""
        self._driver.release(self._number)


class _Daemon:
    """A control daemon for one GPU, in the foreground and so a child of this process."""

    def __init__(self, uuid: str) -> None:
        self.users = 0
        self._folder = tempfile.mkdtemp(prefix="farside-mps-")
        self.variables = {"CUDA_MPS_PIPE_DIRECTORY": self._folder, "CUDA_VISIBLE_DEVICES": uuid}
        self._environment = {**os.environ, **self.variables, "CUDA_MPS_LOG_DIRECTORY": self._folder}
        try:
            self._process = subprocess.Popen(
                [CONTROL, "-f"], env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise Unavailable(f"{CONTROL}: {error.strerror}") from error

    def end(self) -> None:
        """Asks it to end, and kills it if it does not."""
        try:
            subprocess.run([CONTROL], input=b"quit\n", env=self._environment, timeout=_QUIT_S, capture_output=True)
            self._process.wait(_QUIT_S)
        except (OSError, subprocess.TimeoutExpired):
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

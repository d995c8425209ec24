"""Green contexts: a part is a set of SMs of its own, for executors that one process of each GPU computes for.

Contexts of two processes would take turns on the whole GPU, whatever SMs each of them chose. So the first part of a GPU
starts a process that computes for all of them (agent/serving/green_process.py). An executor's own process is a
placeholder: it passes its file descriptors on, and ends with its part.
"""

import itertools
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, ClassVar

import msgspec

from farside.agent.serving.model_file import Framework
from farside.agent.serving.partition.maker import make_folder
from farside.agent.serving.partition.nvidia import NvidiaGpus, uncut_devices, uncut_of, uuid_of, uuid_to_cut
from farside.agent.serving.partition.policy import Capabilities, Device, Entry, Measured, Traits
from farside.errors import Unavailable
from farside.installed import is_installed

NAME = "green"
# What its parts run: of ONNX Runtime nobody has shown that all it starts stays on the stream that it is given.
FRAMEWORK: Framework = "pytorch"
PROGRAM = ("-P", "-m", "farside.agent.serving.green_process")
# Of CUDA, as NVIDIA's library counts: 12.5 is the first whose green contexts have streams.
_CUDA_LEAST = 12_050
# What its process imports; what each is called, and what to install.
MODULES = (("torch", "PyTorch", "PyTorch for CUDA"), ("cuda.bindings", "the Python package cuda-bindings", "it"))
_BACKLOG = 64
_MOST_PCT = 100
# Of all drivers of this process.
_numbers = itertools.count(1)


class GreenDriver(NvidiaGpus):
    """Cuts GPUs by SMs.

    Args:
        nvml: Another module than pynvml, in tests.
        program: Python's arguments that start a GPU's process; others than PROGRAM in tests.
    """

    traits: ClassVar[Traits] = Traits(on_gpu=True, can_resize=True)

    def __init__(self, nvml: Any = None, program: Sequence[str] = PROGRAM) -> None:
        super().__init__(nvml)
        self._program = tuple(program)
        self._hosts: dict[str, _Host] = {}

    def capabilities(self) -> Capabilities:
        """Whether there is a GPU, a driver that knows green contexts, and what computes in them."""
        try:
            self.nvml()
        except Unavailable as error:
            return Capabilities(problem=str(error))
        return Capabilities(
            parts="1 to 100 %, rounded down to granules of SMs",
            isolation="SMs of its own; caches and memory bandwidth are shared, and so is the end of their process",
        )  # fmt: skip

    def check(self, device: Device, part_pct: int) -> None:
        """Any percentage, of a GPU that is not cut into instances."""
        uuid_to_cut(self.nvml(), device, part_pct)

    def open(self, device: Device, part_pct: int) -> "GreenPlace":
        """SMs of a GPU, whose process is started for the first part."""
        uuid = uuid_to_cut(self.nvml(), device, part_pct)
        host = self._hosts.get(uuid)
        if host is None or host.has_ended:
            host = self._hosts[uuid] = _Host(uuid, self._program)
        return GreenPlace(self, host, part_pct)

    def devices(self) -> tuple[Device, ...]:
        """GPUs of this machine that are not cut into instances.

        Raises:
            Unavailable: As `capabilities` says.
        """
        return uncut_devices(self.nvml(), with_instances=False)

    def process_bytes(self, device: Device, pid: int) -> int | None:
        """GPU memory of the process that computes for all parts of a GPU, whichever executor ``pid`` is."""
        nvml = self.nvml()
        host = self._hosts.get(uuid_of(nvml, uncut_of(nvml, device)))
        if host is None or host.has_ended:
            return None
        return super().process_bytes(device, host.pid)

    def nvml(self) -> Any:
        """The library, where there is a GPU, a driver that knows green contexts, and what computes in them."""
        nvml = super().nvml()
        if not uncut_devices(nvml, with_instances=False):
            raise Unavailable("NVIDIA's driver finds no GPU that is not cut into instances")
        version = nvml.nvmlSystemGetCudaDriverVersion()
        if version < _CUDA_LEAST:
            raise Unavailable(
                f"NVIDIA's driver knows CUDA {version // 1000}.{version % 1000 // 10}, "
                "and streams of green contexts are of 12.5",
                hint="install a newer driver, or use mps",
            )
        for module, package, wanted in MODULES:
            if not is_installed(module):
                raise Unavailable(f"{package} is not installed", hint=f"install {wanted}, or use mps")
        return nvml

    def release(self, host: "_Host") -> None:
        """Ends a GPU's process with its last part."""
        if not host.parts:
            for uuid in [uuid for uuid, one in self._hosts.items() if one is host]:
                del self._hosts[uuid]
            host.end()


class GreenPlace:
    """A number of SMs of a GPU."""

    def __init__(self, driver: GreenDriver, host: "_Host", part_pct: int) -> None:
        self.part_pct = part_pct
        self._driver, self._host, self._number = driver, host, next(_numbers)
        self._is_closed = False
        self.entry = Entry(computes_on="cuda", host=host.address, part=self._number)
        host.have(self._number, part_pct)

    def resize(self, part_pct: int) -> bool:
        """Other SMs from the next batch on."""
        if not 1 <= part_pct <= _MOST_PCT or self._is_closed or self._host.has_ended:
            return False
        self.part_pct = part_pct
        self._host.have(self._number, part_pct)
        return True

    def hold(self, prepare_pct: int) -> bool:
        """Takes few SMs until it is let go."""
        self._host.have(self._number, min(prepare_pct, self.part_pct))
        return True  # of a part that was just opened

    def let_go(self) -> None:
        """Takes all SMs of its size."""
        if not self._is_closed:  # as it is where its executor did not become ready
            self._host.have(self._number, self.part_pct)

    def measured(self) -> Measured | None:
        """Nobody counts what a set of SMs has done."""
        return None

    def close(self) -> None:
        """Its SMs are free for other parts."""
        self._is_closed = True
        self._host.have(self._number, 0)
        self._driver.release(self._host)


class _Host:
    """The process of a GPU, seen from where its parts are opened; a child, which ends with this process."""

    def __init__(self, uuid: str, program: Sequence[str]) -> None:
        self.parts: dict[int, int] = {}
        with ExitStack() as stack:
            try:
                self._folder = make_folder("green")
                stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
                self.address = str(self._folder / "parts")
                self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.callback(self._line.close)
                self._line.setblocking(False)
                with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                    listener.bind(self.address)
                    listener.listen(_BACKLOG)
                    self._process = subprocess.Popen(
                        [sys.executable, *program, str(theirs.fileno()), str(listener.fileno())],
                        pass_fds=(theirs.fileno(), listener.fileno()),
                        env={**os.environ, "CUDA_VISIBLE_DEVICES": uuid}, stdin=subprocess.DEVNULL,
                    )  # fmt: skip
            except OSError as error:
                hint = f"look at {tempfile.gettempdir()}, where its socket is to be"
                raise Unavailable(f"the process of GPU {uuid} could not be started: {error}", hint=hint) from error
            stack.pop_all()
        self.pid = self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has stopped computing. It may still exist then: a driver takes its time to give a GPU back."""
        if self._process.poll() is not None:
            return True
        look = select.poll()
        look.register(self._line, 0)  # POLLHUP is told anyway
        return bool(look.poll(0))

    def have(self, number: int, part_pct: int) -> None:
        """Sets the size of a part, in percent of the GPU, from its next batch on; 0: the part is gone."""
        if part_pct:
            self.parts[number] = part_pct
        else:
            self.parts.pop(number, None)
        try:
            self._line.send(msgspec.json.encode(list(self.parts.items())))
        except BlockingIOError:  # it has read nothing for a long time: its executors are started again elsewhere
            self._process.kill()
        except OSError:  # it has ended, as the executors of its parts tell
            pass

    def end(self) -> None:
        """Ends it. Nobody waits for that: a driver takes its time to give a GPU back."""
        self._line.close()
        self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        threading.Thread(target=self._process.wait, daemon=True).start()

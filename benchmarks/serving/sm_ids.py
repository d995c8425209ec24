"""The process of a GPU whose models tell on which SMs they ran: run in place of the one that serves, to see its parts.

A model has one output, a row of as many numbers as blocks that are started: far more than a GPU has SMs, and each block
stays for a while, so that all SMs that may be used are.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from cuda.bindings import driver, nvrtc

from farside.agent.serving.arena import Slot
from farside.agent.serving.green_process import main
from farside.agent.serving.model_file import Framework, ModelFile, TensorSpec
from farside.errors import FarsideError

BLOCKS = 2048
_THREADS = 256
_CYCLES = 200_000
_SOURCE = b"""
extern "C" __global__ void tell(unsigned *found, long long cycles)
{
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    long long start = clock64();
    while (clock64() - start < cycles)
        ;
    if (threadIdx.x == 0)
        found[blockIdx.x] = sm;
}
"""


def teller(path: str) -> ModelFile:
    """A model that tells; ``path`` is any file, which is not read."""
    return ModelFile(
        name="teller", path=path, framework="pytorch", inputs=(TensorSpec("input", "FP32", (1,)),),
        outputs=(TensorSpec("output", "INT32", (BLOCKS,)),), max_batch=1,
    )  # fmt: skip


class _Teller:
    """Runs the kernel on the stream that its thread is on."""

    def __init__(self, model: ModelFile, slots: Sequence[Slot], threads: int, device: str) -> None:
        self._slots = slots
        self._found = torch.zeros(BLOCKS, dtype=torch.int32, device=device)
        major, minor = torch.cuda.get_device_capability()
        program = _taken(nvrtc.nvrtcCreateProgram(_SOURCE, b"tell.cu", 0, [], []))
        options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
        _taken(nvrtc.nvrtcCompileProgram(program, len(options), options))
        code = b" " * _taken(nvrtc.nvrtcGetCUBINSize(program))
        _taken(nvrtc.nvrtcGetCUBIN(program, code))
        self._module = _taken(driver.cuModuleLoadData(code))
        self._kernel = _taken(driver.cuModuleGetFunction(self._module, b"tell"))

    def run(self, rows: int, slot: int) -> None:
        """Starts the blocks, and gives what they tell."""
        values = (np.array([self._found.data_ptr()], np.uint64), np.array([_CYCLES], np.int64))
        places = np.array([one.ctypes.data for one in values], np.uint64)
        stream = torch.cuda.current_stream()
        _taken(
            driver.cuLaunchKernel(
                self._kernel, BLOCKS, 1, 1, _THREADS, 1, 1, 0, stream.cuda_stream, places.ctypes.data, 0
            )
        )
        stream.synchronize()
        self._slots[slot].outputs["output"][0] = self._found.cpu().numpy()


def load(framework: Framework) -> type[_Teller]:
    """For `main`: all models tell."""
    return _Teller


def _taken(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    if int(result) != 0:
        raise FarsideError(f"the driver answers {result.name}")
    return values[0] if values else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], load=load))

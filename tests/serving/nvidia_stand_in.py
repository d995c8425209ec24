"""A stand-in for NVIDIA's library, and one for the control program of its Multi-Process Service."""

from types import SimpleNamespace
from typing import ClassVar

# A control daemon that says with what it was started, and ends when it is told to, but for as long as it is held up, or
# is deaf to it; a broken one ends at once. Its server ends when it is killed.
PROGRAM = """#!{python}
import json, os, subprocess, sys, time
folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
if sys.argv[1:] == ["-f"]:
    if os.path.exists("{seen}.broken"):
        open(os.environ["CUDA_MPS_LOG_DIRECTORY"] + "/control.log", "w").write("Starting\\nno room\\n\\n")
        sys.exit(1)
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_LOG_DIRECTORY")
    with open("{seen}", "a") as file:
        file.write(json.dumps([folder, *[os.environ[name] for name in names]]) + "\\n")
    with open("{seen}.mps", "w") as file:
        file.write(" ".join(sorted(name for name in os.environ if name.startswith("CUDA_MPS_"))))
    with open("{seen}.pids", "w") as file:
        server = subprocess.Popen(["sleep", "600"])
        file.write(f"{{os.getpid()}} {{server.pid}}")
    open(folder + "/control", "w").close()
    while not os.path.exists(folder + "/quit") or os.path.exists("{seen}.deaf"):
        time.sleep(0.01)
    server.kill()
else:
    command = sys.stdin.read()
    while command == "quit\\n" and os.path.exists("{seen}.hold"):
        time.sleep(0.01)
    if not os.path.exists(folder + "/control"):
        sys.exit("Cannot find MPS control daemon process")
    if command == "quit\\n":
        open(folder + "/quit", "w").close()
    else:
        assert command == "get_server_list\\n"
"""


class NVMLError(Exception):
    pass


class Nvml:
    """A machine with two GPUs, the second one cut into instances of 3, 3 and 1 sevenths where ``is_cut``."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0
    NVML_GPU_INSTANCE_PROFILE_4_SLICE, NVML_GPU_INSTANCE_PROFILE_7_SLICE = 3, 4
    NVML_GPU_INSTANCE_PROFILE_8_SLICE, NVML_GPU_INSTANCE_PROFILE_6_SLICE = 5, 6
    slices: ClassVar = {3: 4, 4: 7}  # by what profile
    mode: int | None = 0

    def __init__(self, gpus: int = 2, *, is_cut: bool = True) -> None:
        self._gpus, self._is_cut = gpus, is_cut

    def nvmlInit(self) -> None:  # noqa: N802
        if self._gpus < 0:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._gpus

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if index >= self._gpus:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle: object) -> str:  # noqa: N802
        return "NVIDIA A100 MIG 3g.20gb" if isinstance(handle, str) else "NVIDIA A100"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=40 << 30)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=7, usedGpuMemory=3 << 20), SimpleNamespace(pid=8, usedGpuMemory=None)]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=10, usedGpuMemory=5 << 20)]

    def nvmlDeviceGetUUID(self, handle: object) -> str:  # noqa: N802
        return f"MIG-{handle}" if isinstance(handle, str) else f"GPU-{handle}"

    def nvmlDeviceGetMigMode(self, handle: int) -> tuple[int, int]:  # noqa: N802
        return (handle, handle) if self._is_cut else (0, 0)

    def nvmlDeviceGetComputeMode(self, handle: object) -> int:  # noqa: N802
        if self.mode is None:
            raise NVMLError("Not Supported")
        return self.mode

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, at: int) -> str:  # noqa: N802
        if at not in (0, 2, 5):
            raise NVMLError("Not Found")
        return f"{handle}.{at}"

    def nvmlDeviceGetAttributes_v2(self, instance: str) -> SimpleNamespace:  # noqa: N802
        slices = 1 if instance.endswith("5") else 3
        return SimpleNamespace(gpuInstanceSliceCount=slices, computeInstanceSliceCount=slices)

    def nvmlDeviceGetGpuInstanceProfileInfo(self, handle: int, profile: int) -> SimpleNamespace:  # noqa: N802
        if profile not in self.slices:
            raise NVMLError("Not Supported")
        return SimpleNamespace(sliceCount=self.slices[profile])

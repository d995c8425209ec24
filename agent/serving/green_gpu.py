"""A GPU in green contexts: its SMs are split once, and a range of the pieces has a stream of its own.

Kernels of a stream run on its context's SMs alone [CUDA driver API, green contexts].
"""

import threading
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from cuda.bindings import driver

from farside.errors import Unavailable

_MB = 1 << 20


class Gpu(Protocol):
    """What computes for the parts of a GPU. ``granules``: pieces that its SMs are split into."""

    granules: int

    def on(self, granules: range) -> AbstractContextManager[object]:
        """What is run in its body runs on these pieces alone; all of them are the whole GPU.

        Raises:
            Unavailable: The driver refuses; the line has its name of why.
        """
        ...

    def sms(self, granules: range) -> int:
        """How many SMs that are."""
        ...

    def is_broken(self, error: Exception) -> bool:
        """Whether an error that a model raised has left it unusable by this process."""
        ...


class GreenGpu:
    """The first GPU that this process sees.

    SMs are split into the smallest pieces that a GPU can be split into with all kernels still running: 8 on compute
    capability 9. What is left over then is used by the whole GPU alone: 120 of 132 SMs of an H100 are in pieces.

    Raises:
        Unavailable: PyTorch sees no GPU, or the driver refuses to split it.
    """

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            raise Unavailable(f"PyTorch {torch.__version__} sees no GPU", hint="install a build for GPUs, and a driver")
        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the primary context
        self._device = _taken(driver.cuDeviceGet(0))
        kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
        whole = _taken(driver.cuDeviceGetDevResource(self._device, kind))
        # Packages of CUDA 12 do not have it; the driver makes a smaller piece as large as it has to be.
        least = getattr(whole.sm, "minSmPartitionSize", 0) or 1
        pieces, count, _ = _taken(driver.cuDevSmResourceSplitByCount(whole.sm.smCount // least, whole, 0, least))
        self._pieces = list(pieces)[: int(count)]
        self._whole_sms = int(whole.sm.smCount)
        self.granules = len(self._pieces)
        # Kept: to make one takes time, and a GPU has few ranges.
        self._streams: dict[tuple[int, int], Any] = {}
        self._making = threading.Lock()

    def on(self, granules: range) -> AbstractContextManager[object]:
        """See Gpu."""
        key = (granules.start, granules.stop)
        stream = self._streams.get(key)
        if stream is None:
            with self._making:
                stream = self._streams.get(key)
                if stream is None:
                    stream = self._streams[key] = self._made(granules)
        entered: AbstractContextManager[object] = torch.cuda.stream(stream)
        return entered

    def sms(self, granules: range) -> int:
        """See Gpu."""
        if len(granules) == self.granules:
            return self._whole_sms
        return sum(int(self._pieces[at].sm.smCount) for at in granules)

    def is_broken(self, error: Exception) -> bool:
        """See Gpu."""
        if "CUDA" not in str(error) or isinstance(error, torch.cuda.OutOfMemoryError):
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def _made(self, granules: range) -> Any:
        make: Any = torch.cuda.Stream
        if len(granules) == self.granules:
            return make()
        pieces = self._pieces[granules.start : granules.stop]
        described = _taken(driver.cuDevResourceGenerateDesc(pieces, len(pieces)))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = _taken(driver.cuGreenCtxCreate(described, self._device, flags))
        own = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        make = torch.cuda.ExternalStream
        return make(int(_taken(driver.cuGreenCtxStreamCreate(context, own, 0))))


def _taken(answer: tuple[Any, ...]) -> Any:
    """What a call of the driver gave: one value, or a tuple of several."""
    result, *values = answer
    if int(result) != 0:
        raise Unavailable(f"green contexts: the driver answers {result.name}")
    return values[0] if len(values) == 1 else tuple(values)

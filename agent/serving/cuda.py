"""CUDA's driver, asked by an executor on a GPU whether it can go on there."""

import ctypes
from typing import Any

_LIBRARY = "libcuda.so.1"
# CUresult of cuda.h: success; and not initialised, deinitialised, no context: nothing there that could be broken.
_SOUND = (0, 3, 4, 201)


def is_context_broken(driver: Any = None) -> bool:
    """Whether an error has left the GPU unusable by this process, until it ends; False where it has not used one.

    Of some errors, such as an illegal address, the driver answers every later call with the same one, whatever library
    makes it [CUDA driver API, CUresult]. ``driver``: another library than libcuda, in tests. Waits for what runs.
    """
    if driver is None:
        try:
            driver = ctypes.CDLL(_LIBRARY)
        except OSError:
            return False
    return driver.cuCtxSynchronize() not in _SOUND

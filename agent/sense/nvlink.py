"""NVLinks of GPUs: a link that has stopped working, or has too many errors, makes its GPU unfit.

NVML is asked once in `PERIOD_S`, as each link takes four calls and a node has more than a hundred.
"""

import math
from collections.abc import Callable
from typing import Any

from farside.agent.sense.growth import HourlyGrowth, problem_of

PERIOD_S = 60.0


class NvLinkSense:
    """Watches the links of one GPU that have been active since this was made: the others lead nowhere."""

    def __init__(self, nvml: Any, handle: Any, *, errors_per_hour: int, now_s: Callable[[], float]) -> None:
        """``nvml`` is the module ``pynvml``; ``errors_per_hour`` 0: nothing is watched."""
        self._nvml, self._handle = nvml, handle
        self._limit, self._now_s = errors_per_hour, now_s
        self._worked: set[int] = set()
        self._growth = HourlyGrowth()
        # The first reading asks.
        self._next_s = -math.inf

    def read(self) -> str:
        """What is wrong with the links, in one line; empty: nothing, or nothing new since it was asked last."""
        now_s = self._now_s()
        if not self._limit or now_s < self._next_s:
            return ""
        self._next_s = now_s + PERIOD_S
        nvml = self._nvml
        # None: there is no such link, or nobody can say.
        states = {
            link: asked(nvml, nvml.nvmlDeviceGetNvLinkState, self._handle, link)
            for link in range(nvml.NVML_NVLINK_MAX_LINKS)
        }
        self._worked |= {link for link, is_active in states.items() if is_active}
        down = sorted(link for link in self._worked if states[link] is not None and not states[link])
        if down:
            return f"NVLink {', '.join(map(str, down))}: down"
        return self._errors(now_s)

    def _errors(self, now_s: float) -> str:
        nvml = self._nvml
        kinds = {
            "replay": nvml.NVML_NVLINK_ERROR_DL_REPLAY,
            "recovery": nvml.NVML_NVLINK_ERROR_DL_RECOVERY,
            "CRC": nvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        }
        counts = {}
        for link in self._worked:
            for name, kind in kinds.items():
                count = asked(nvml, nvml.nvmlDeviceGetNvLinkErrorCounter, self._handle, link, kind)
                if count is not None:
                    counts[f"{name} on link {link}"] = int(count)
        problem = problem_of(self._growth.of(counts, now_s), self._limit)
        return f"NVLink: {problem}" if problem else ""


def asked(nvml: Any, call: Any, *arguments: Any) -> Any:
    """Answer of a function of NVML; None where this device, or this driver, does not report that."""
    try:
        return call(*arguments)
    except nvml.NVMLError:
        return None

"""Garbage collection settings for a process that keeps a hundred thousand records for months.

How it works
  What nobody refers to is freed at once. Only for what refers to itself in a circle Python looks through all objects,
  each time that a quarter more of them are there: with two thousand agents and ten thousand jobs it took half a second,
  in which nobody was answered. Here what such a look has found in use is put aside (`gc.freeze`), so that each looks
  only at what has come since the one before, a few hundredths of a second at most.

  What was put aside and becomes a circle later is not found by that. There is little of it, as connections and requests
  break theirs when they end (of handshakes that fail api/handshake.py does it); now and then all is looked at.
"""

import asyncio
import gc
from collections.abc import Mapping

# Between two looks at everything.
THOROUGH_PERIOD_S = 3600.0
_OLDEST = 2


async def keep_aside() -> None:
    """Puts aside what stays, as it comes, until it is cancelled."""
    gc.callbacks.append(_after_look)
    try:
        while True:
            # Not at the start: what the parent had put aside is shared with it until it is looked at.
            await asyncio.sleep(THOROUGH_PERIOD_S)
            gc.unfreeze()
            gc.collect()
    finally:
        gc.callbacks.remove(_after_look)
        gc.unfreeze()


def _after_look(phase: str, about: Mapping[str, int]) -> None:
    if phase == "stop" and about["generation"] == _OLDEST:
        gc.freeze()

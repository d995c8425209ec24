"""The process of a GPU with a stand-in for the GPU: its granules are numbers, and models tell on which they ran.

A model's file is a text file here, to which each run adds a line. A model named hang does not come back from a bad
batch, one named broken leaves the GPU unusable by it, one named slow loads until it is killed, and absent can't be
loaded.
"""

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from farside.agent.serving.arena import Slot
from farside.agent.serving.green_process import main
from farside.agent.serving.model_file import Framework, ModelFile
from farside.errors import Unavailable

GRANULES = 15
HANG_END_S = 0.1


class Here(threading.local):
    """The granules that this thread computes on."""

    granules = range(0)


here = Here()


class StandIn:
    """A GPU of 15 granules of 8 SMs."""

    def __init__(self) -> None:
        why = os.environ.get("FARSIDE_TEST_NO_GPU")
        if why == "busy":
            raise RuntimeError("CUDA error: all devices are busy\nDevice-side assertions are off")
        if why:
            raise Unavailable("PyTorch 2.13.0 sees no GPU", hint="install a build for GPUs, and a driver")
        self.granules = GRANULES

    @contextmanager
    def on(self, granules: range) -> Iterator[None]:
        here.granules = granules
        yield

    def sms(self, granules: range) -> int:
        return 8 * len(granules)

    def is_broken(self, error: Exception) -> bool:
        return "illegal" in str(error)


class Model:
    def __init__(self, model: ModelFile, slots: Sequence[Slot], threads: int, device: str) -> None:
        self._model, self._slots = model, slots
        if model.name == "slow":
            Path(model.path).write_text("loading\n")
            threading.Event().wait()
        if model.name == "absent":
            raise RuntimeError("no such model")

    def run(self, rows: int, slot: int) -> None:
        with Path(self._model.path).open("a") as file:
            file.write(f"{here.granules.start} {here.granules.stop}\n")
        views = self._slots[slot]
        if views.inputs["input"][0, 0] == 1:
            if self._model.name == "hang":
                threading.Event().wait()
            raise RuntimeError("an illegal memory access" if self._model.name == "broken" else "a wrong shape")
        views.outputs["output"][:rows] = [os.getpid(), here.granules.start, here.granules.stop]


def load(framework: Framework) -> type[Model]:
    return Model


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], StandIn, load, HANG_END_S))

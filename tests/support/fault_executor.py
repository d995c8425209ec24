"""An executor's process whose models fail when a test says so: they raise, take long, hang, end the process,
or leave its device unusable by it.
"""

import os
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from farside.agent.serving.executor_process import main
from farside.agent.serving.model import Load, LoadedModel, loader
from farside.agent.serving.model_file import Framework

Fault = Literal["error", "delay", "hang", "exit", "broken"]
broken = threading.Event()  # the device, for this process


class Faults:
    """What happens to the next batches of executors that were started with ``program``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.program = ("-m", "tests.support.fault_executor", str(folder))
        self._count = 0

    def arm(self, fault: Fault, *, batches: int = 1, delay_s: float = 0.0) -> None:
        """One batch each, in the order of these calls; a batch that runs already is not touched."""
        for _ in range(batches):
            self._count += 1
            place = self.folder / f"{self._count:06}.new"
            place.write_text(f"{fault} {delay_s}")
            place.rename(place.with_suffix(".fault"))


class FaultyModel:
    """A model that looks for a fault before each batch."""

    def __init__(self, folder: Path, model: LoadedModel) -> None:
        self._folder, self._model = folder, model

    def run(self, rows: int, slot: int) -> None:
        for file in sorted(self._folder.glob("*.fault")):
            fault, delay_s = file.read_text().split()
            file.unlink()
            if fault == "broken":
                broken.set()
            if fault in ("error", "broken"):
                raise ValueError("an error that a test asked for")
            if fault == "exit":
                os._exit(3)
            time.sleep(3600 if fault == "hang" else float(delay_s))
            break
        self._model.run(rows, slot)


if __name__ == "__main__":
    faults = Path(sys.argv[1])

    def load(framework: Framework) -> Load:
        return lambda *arguments: FaultyModel(faults, loader(framework)(*arguments))

    sys.exit(main(sys.argv[2:], load, broken.is_set))

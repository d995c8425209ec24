"""`farside swap watch` beside swap, as its service runs it: sockets of /dev/nbdX that have died are dialled again."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def watched(folder: Path) -> Iterator[None]:
    """It runs, and must run to the end; what it says stands in `folder`."""
    with (folder / "watch.log").open("ab") as log:
        watch = subprocess.Popen([sys.executable, "-m", "farside", "swap", "watch"], stdout=log, stderr=log)
    try:
        yield
        assert watch.poll() is None, "swap watch has ended"
    finally:
        watch.terminate()
        watch.wait()

"""The Aggregator that `farside train` starts for its workers: `python -m farside.cli.train_aggregator FOLDER WORD...`.

WORDs are those of the command `farside`. The folder goes with it, also where `farside train` was killed.
"""

import os
import shutil
import signal
import sys
from types import FrameType

from farside.cli.app import main
from farside.cli.train_worker import die_with_parent


def _end(_number: int, _frame: FrameType | None) -> None:
    # No exception: it would come out in the middle of an import, and libraries print what comes out there.
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    folder = sys.argv.pop(1)
    try:
        signal.signal(signal.SIGTERM, _end)  # until the Aggregator has its own
        die_with_parent(signal.SIGTERM)
        main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

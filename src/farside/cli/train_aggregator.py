"""The Aggregator that `farside train` starts for its workers: `python -m farside.cli.train_aggregator FOLDER WORD...`.

WORDs are those of the command `farside`. The folder goes with it, also where `farside train` was killed.
"""

import shutil
import signal
import sys
from types import FrameType

from farside.cli.app import main
from farside.cli.train_worker import die_with_parent


def _on_term(_number: int, _frame: FrameType | None) -> None:
    sys.exit(1)


if __name__ == "__main__":
    folder = sys.argv.pop(1)
    try:
        signal.signal(signal.SIGTERM, _on_term)  # until the Aggregator has its own
        die_with_parent(signal.SIGTERM)
        main()
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""Carries admin commands to Farside's processes, inside their guest: each start of the CLI takes seconds there.

    python3 -m benchmarks.apps.door

Answers each line ``SOCKET COMMAND [JSON]`` with one of JSON, until its input ends.
"""

import json
import sys
from pathlib import Path

from farside import admin

LIMIT_S = 120.0


def main() -> None:
    """Until the end of standard input."""
    print("ready", flush=True)
    for line in sys.stdin:
        socket, command, *arguments = line.split(maxsplit=2)
        settings = json.loads(arguments[0]) if arguments else {}
        print(json.dumps(admin.call(Path(socket), command, timeout_s=LIMIT_S, **settings)), flush=True)


if __name__ == "__main__":
    main()

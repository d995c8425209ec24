"""The command `farside status`: both planes of a machine, as tables or JSON."""

import sys
from pathlib import Path

import msgspec
from rich.console import Console

from farside.client.state_folder import state_told
from farside.status.gather import ProcessStatus, gather, statuses_of
from farside.status.table import tables


def run(*, json_output: bool = False, state: Path | None = None, socket: Path | None = None) -> int:
    """Prints what the processes say and returns the exit code: 0, or 1 when some of them do not answer.

    FARSIDE_STATE is the sandbox's folder where neither that nor a socket is named.

    Raises:
        FarsideError: none of them answers.
    """
    processes = gather(state=state if socket is not None else state_told(state), socket=socket)
    if json_output:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(as_json(processes)), indent=2).decode() + "\n")
    else:
        console = Console()
        for table in tables(processes):
            console.print(table)
    return 0 if all(process.status for process in processes) else 1


def as_json(processes: tuple[ProcessStatus, ...]) -> dict[str, object]:
    """The document that `--json` prints: every process, then what each has to say of itself."""
    return {
        "processes": [
            {
                "name": process.name,
                "role": process.role,
                "pid": process.pid,
                "socket": process.socket,
                "answers": bool(process.status),
                "error": process.error,
            }
            for process in processes
        ],
        **{
            f"{role}s": statuses_of(processes, role)
            for role in ("blockdev", "daemon", "manager", "agent", "aggregator")
        },
    }

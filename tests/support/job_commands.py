"""Jobs of a sandbox by the command line, as its users have them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from farside.client.manager_client import ManagerAddress, ManagerClient
from farside.sandbox.process import command
from farside.sandbox.session import Session
from tests.support.waiting import until


def farside(session: Session, *arguments: str, cwd: Path | None = None, limit_s: float = 240.0) -> str:
    """What `farside` prints, called in ``cwd`` or the sandbox's folder; it must succeed. Jobs find our interpreter."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "FARSIDE_STATE": str(session.state), "PATH": path}
    done = subprocess.run(
        command(*arguments), env=environment, capture_output=True, text=True, check=False, cwd=cwd or session.state,
        timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def asked(session: Session, *path: str) -> Any:
    """What a sandbox's manager answers."""
    with ManagerClient(ManagerAddress(endpoint=f"unix:{session.state}/manager.sock")) as client:
        return client.get(*path)


def until_job(
    session: Session, job: str, *states: str, deadline_s: float = 90.0, every_s: float = 0.2
) -> dict[str, Any]:
    """The job as `farside show --json` has it, once it is in one of these states.

    It is asked for without the command, which would take half a second of processor for each look.
    """

    def there() -> dict[str, Any] | None:
        found: dict[str, Any] = asked(session, "jobs", job)
        return found if found["state"] in states else None

    found = until(there, what=f"job {job} {' or '.join(states)}", deadline_s=deadline_s, every_s=every_s)
    assert found is not None
    return found

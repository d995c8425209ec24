"""A munged of a test's own: its key, socket and log in one folder."""

import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farside.errors import FarsideError, Unavailable
from farside.munge import make_credential
from tests.support.waiting import until


@contextmanager
def munged(folder: Path, *options: str) -> Iterator[Path]:
    """The socket of one that runs, or skips where munge is not installed."""
    program = shutil.which("munged") or shutil.which("munged", path="/usr/sbin:/sbin")
    if program is None:
        pytest.skip("munged is not installed (apt-get install munge)")
    folder.mkdir(parents=True, exist_ok=True)
    file, socket = folder / "munge.key", folder / "munge.socket"
    file.write_bytes(secrets.token_bytes(64))
    file.chmod(0o400)
    command = [
        program, "--foreground", "--force", f"--socket={socket}", f"--key-file={file}",
        f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log",
        *options,
    ]  # fmt: skip
    with (folder / "out").open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, umask=0o022) as process:
        try:
            until(lambda: answers(socket) or process.poll() is not None, what="a munged that answers", deadline_s=60)
            assert process.poll() is None, (folder / "out").read_text()
            yield socket
        finally:
            until(lambda: has_ended(process), what="the end of munged", deadline_s=60, every_s=0.2)


def has_ended(process: "subprocess.Popen[bytes]") -> bool:
    """Asked to at each look: munged does not hear a signal that comes just before it waits for its next client."""
    process.terminate()
    return process.poll() is not None


def answers(socket: Path) -> bool:
    try:
        return bool(make_credential(b"", socket))
    except Unavailable as error:
        pytest.skip(str(error))
    except FarsideError:
        return False


def credential_of(uid: int, payload: bytes, socket: Path) -> str:
    """One made by another user, as whom a process is started; only root can."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a credential as somebody else")
    done = subprocess.run(
        ["munge", "--socket", str(socket)], input=payload, user=uid, group=uid, extra_groups=[], capture_output=True,
        check=True, cwd="/",
    )  # fmt: skip
    return done.stdout.decode().strip()

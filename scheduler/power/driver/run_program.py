"""Run another program with a time limit; kill it and all its children when the time is over."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farside.errors import PeerError, Unavailable

MAX_OUTPUT = 1 << 16  # bytes of each stream that are kept; status lines are a hundred
_CHUNK = 1 << 14
# A hook that systemd starts may have no PATH at all.
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Result of a program: exit status, negative for a signal, and output."""

    status: int
    stdout: str
    stderr: str

    def complaint(self) -> str:
        """Its last line on standard error, or on standard output, or its status."""
        lines = [line.strip() for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        return lines[-1][:200] if lines else f"exit status {self.status}"


async def run_program(
    argv: Sequence[str],
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    most_bytes: int = MAX_OUTPUT,
) -> Finished:
    """Run a program without terminal or input. ``environment``: all variables besides PATH and the locale.

    Of each stream the first ``most_bytes`` are kept.

    Raises:
        PeerError: It has not ended within ``limit_s``, and was killed.
        Unavailable: It is not there, or may not be run.
    """
    surroundings = {"PATH": os.environ.get("PATH") or _PATH, "LC_ALL": "C", **(environment or {})}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, env=surroundings, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"{argv[0]}: {error.strerror}", hint="install it, or name it by its whole path") from error
    try:
        async with asyncio.timeout(limit_s):
            assert process.stdout is not None
            assert process.stderr is not None
            stdout, stderr = await asyncio.gather(_kept(process.stdout, most_bytes), _kept(process.stderr, most_bytes))
            status = await process.wait()
    except TimeoutError:
        raise PeerError(f"{argv[0]} has not ended in {limit_s:g} s", hint="is the BMC reachable?") from None
    finally:
        await _end(process)
    return Finished(status=status, stdout=stdout, stderr=stderr)


async def _kept(stream: asyncio.StreamReader, most_bytes: int) -> str:
    """Read a stream to its end, so that the program never blocks, and keep the beginning."""
    kept = bytearray()
    while chunk := await stream.read(_CHUNK):
        kept += chunk[: most_bytes - len(kept)]
    return kept.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    # The whole group: a hook's children hold its pipes open.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()

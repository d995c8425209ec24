"""Answers the manager's question about a checkpoint folder, as the user who would run there."""

import asyncio
import os
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from farside.agent import messages as m
from farside.agent.run import checkpoint_folder
from farside.agent.run.account import Account, Refused, account_of

LIMIT_S = 8.0
"""A mount that answers later than this holds a job's start up longer than a person waits at a prompt."""


async def answer(probe: m.Probe, *, run_as: str, allowed: Collection[str]) -> m.Probed:
    """What this user lacks in that folder on this node."""
    try:
        account = account_of(probe.user, run_as=run_as, allowed=allowed)
    except Refused:
        return m.Probed(probe_id=probe.probe_id, is_refused=True)
    problem, made = await _tried(probe, account)
    return m.Probed(probe_id=probe.probe_id, problem=problem[: m.CAUSE_CHARS_MAX], made=made)


def look(step: str, path: str, mark: str, made: str) -> list[str]:
    """The command that looks. It needs nothing that its user might not read: Farside may lie in a folder of root's."""
    script = Path(checkpoint_folder.__file__).read_text()
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", script, step, path, mark, made]


async def _tried(probe: m.Probe, account: Account) -> tuple[str, str]:
    try:
        process = await asyncio.create_subprocess_exec(
            *look(probe.step, probe.path, probe.mark, probe.made),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd="/",
            umask=0o022,
            **_identity(account),
        )
    except OSError as error:
        return f"this node could not look: {error.strerror}", ""
    try:
        async with asyncio.timeout(LIMIT_S):
            told, _ = await process.communicate()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()  # and not waited for: what waits for a dead mount can't be killed
        return f"does not answer within {LIMIT_S:g} s", ""
    problem, made, *_ = [*told.decode(errors="replace").split("\n"), "", ""]
    return problem if process.returncode == 0 else "this node could not look", made


def _identity(account: Account) -> dict[str, Any]:
    if not account.becomes:
        return {}
    groups = os.getgrouplist(account.name, account.gid)
    return {"user": account.uid, "group": account.gid, "extra_groups": groups}

"""Power-off of this node on the manager's request, where the operator allows it: for nodes without a BMC.

Only a node that was closed by the same order and has no task is shut down: an order that comes late does nothing.
"""

import asyncio
import shlex
from collections.abc import Sequence

from farside.agent import messages as m
from farside.log import get_log

_log = get_log("agent.power")


def why_not(order: m.PowerOff, *, closed_by: int, has_tasks: bool, holding: Sequence[str] = ()) -> str:
    """Reason to refuse the order; empty: obey.

    ``closed_by``: the order that closed its donor; 0: none. ``holding``: services that have something of others.
    """
    if not closed_by or order.closed_by != closed_by:
        return f"it is closed by {closed_by}, and not by {order.closed_by}"
    if holding:
        return f"others have something at its services: {', '.join(holding)}"
    return "it has tasks" if has_tasks else ""


async def power_off(program: str) -> None:
    """Run the operator's program, which shuts the machine down; log its failure."""
    # No shell: the setting is quoted as for one, but nothing in it is expanded.
    argv = shlex.split(program)
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    except OSError as error:
        _log.error("this node can't be shut down", program=argv[0], why=error.strerror)
        return
    if process.returncode:
        lines = said.decode(errors="replace").strip().splitlines()
        _log.error("this node can't be shut down", program=argv[0], why=lines[-1] if lines else process.returncode)

"""End of all tasks in an agent's state folder, for when no agent will run there again."""

import time
from pathlib import Path

from farside.agent.run.runner import Policy, Runner

LOOK_EVERY_S = 0.02


def end_all_tasks(state_dir: Path, *, cause: str, limit_s: float) -> bool:
    """Kills every task of the folder with all its processes; False when some are left after ``limit_s``.

    Only for a folder that no agent works in. Nothing happens where there is no such folder.
    """
    if not state_dir.is_dir():
        return True
    # Nothing is started here: of the policy nothing counts.
    policy = Policy(run_as="starter", users=(), cgroup=None, devices=tuple)
    runner = Runner(state_dir, policy, lambda _: None)
    runner.end_all(cause, 0)
    end_s = time.monotonic() + limit_s
    while runner.has_live_tasks and time.monotonic() < end_s:
        runner.look()
        time.sleep(LOOK_EVERY_S)
    return not runner.has_live_tasks

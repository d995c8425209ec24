"""Memory use of jobs on a sandbox's node, which its simulated donor machine counts as its own programs'."""

from pathlib import Path


def jobs_bytes(agent_state: Path) -> int:
    """Memory of all processes of the tasks that run in an agent's state folder; shared pages count in each."""
    # Late: a sandbox without a cluster needs none of it.
    from farside.agent.run.ledger import FINAL, RANK
    from farside.agent.run.task_folder import Status, read
    from farside.agent.sense.usage import rss_below
    from farside.errors import FarsideError

    total = 0
    for folder in agent_state.glob("tasks/*"):
        try:
            status = read(folder, Status)
        except (FarsideError, OSError):
            continue  # it is just being taken away
        if status is not None and RANK[status.state.state] < FINAL:
            total += rss_below(status.supervisor_pid)
    return total

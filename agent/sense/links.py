"""Ports of RDMA adapters: one that worked and does no more makes the node unfit for jobs that meet over it."""

from collections.abc import Mapping
from pathlib import Path

from farside.log import get_log

ACTIVE = "ACTIVE"
_log = get_log("agent.sense")


class LinkSense:
    """Watches the ports that have worked since this was made: of the others nobody knows that they are to."""

    def __init__(self, root: Path) -> None:
        """``root`` has sys/."""
        self._root = root
        self._worked: set[str] = set()
        self._problem = ""

    def read(self) -> str:
        """Which ports do not work any more, in one line; empty: all do."""
        states = read_ports(self._root)
        self._worked |= {port for port, state in states.items() if state == ACTIVE}
        broken = {port: states.get(port, "gone") for port in sorted(self._worked)}
        problem = ", ".join(f"port {port}: {state}" for port, state in broken.items() if state != ACTIVE)
        if problem and problem != self._problem:
            _log.error("a link is broken", why=problem)
        self._problem = problem
        return problem


def read_ports(root: Path) -> Mapping[str, str]:
    """State of every port, ``mlx5_0/1``, in the words of IBTA's PortState: ``ACTIVE``, ``DOWN``, ``INIT``..."""
    found = {}
    for file in root.glob("sys/class/infiniband/*/ports/*/state"):
        try:
            state = file.read_text()  # 4: ACTIVE
        except OSError:  # its adapter is just being taken away
            continue
        found[f"{file.parts[-4]}/{file.parts[-2]}"] = state.partition(":")[2].strip()
    return found

"""Green contexts: sets of SMs within one process. Executors are processes of their own, so this driver has no parts."""

from farside.agent.serving.partition.policy import Capabilities, Conditions, Device, Identity, Place
from farside.errors import Unavailable

NAME = "green"
_PROBLEM = "green contexts cut a GPU within one process, and each part here is a process of its own"
_HINT = "use mps or mig"


class GreenDriver:
    """Refuses: contexts of two processes take turns on the whole GPU, whatever SMs each of them chose."""

    def capabilities(self) -> Capabilities:
        """Why there are none."""
        return Capabilities(driver=NAME, problem=f"{_PROBLEM}; {_HINT}")

    def open(self, device: Device, part_pct: int) -> Place:
        """Never."""
        raise Unavailable(_PROBLEM, hint=_HINT)

    def identity(self, device: Device) -> Identity:
        """Never."""
        raise Unavailable(_PROBLEM, hint=_HINT)

    def conditions(self, device: Device) -> Conditions:
        """Never."""
        raise Unavailable(_PROBLEM, hint=_HINT)

    def process_bytes(self, device: Device, pid: int) -> int:
        """Never."""
        raise Unavailable(_PROBLEM, hint=_HINT)

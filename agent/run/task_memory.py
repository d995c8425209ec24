"""Memory of tasks whose jobs name none: the share of their GPUs in the node's. PURE."""

from dataclasses import dataclass

from msgspec.structs import replace

from farside.agent import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMemory:
    """What a task gets whose job names no memory.

    Attributes:
        mode: "limit": its share is its limit; "warn": it has none, and the log says once that it uses more; "off".
        bytes_per_device: For each of its GPUs, or parts of GPUs; 0: the share of one in what jobs may have.
        jobs_bytes: What all jobs of the node may have together.
        devices: GPUs of the node, or the parts that they are cut into.
    """

    mode: str
    bytes_per_device: int
    jobs_bytes: int
    devices: int

    def problem(self, *, is_limited: bool) -> str:
        """Why this mode would do nothing here; empty: it does what it says. ``is_limited``: cgroups limit memory."""
        if self.mode != "limit":
            return ""
        if not is_limited:
            return "no cgroup v2 that limits memory is here, and without one no task has a limit"
        return "" if self.share_bytes(1) else "memory_reserve_bytes leaves tasks nothing, which would be no limit"

    def told(self, *, is_limited: bool) -> str:
        """The fact for the manager: the mode, or "none" where no cgroup can limit any task's memory."""
        return self.mode if is_limited else "none"

    def share_bytes(self, devices: int) -> int:
        """Share of a task with this number of devices; a task without any gets that of one device."""
        wanted = max(1, devices)
        if self.bytes_per_device:
            return wanted * self.bytes_per_device
        return self.jobs_bytes * min(wanted, max(1, self.devices)) // max(1, self.devices)

    def limited(self, spec: m.TaskSpec) -> m.TaskSpec:
        """What to run, with the limit that it has here."""
        if spec.memory_bytes or self.mode != "limit":
            return spec
        return replace(spec, memory_bytes=self.share_bytes(len(spec.devices)))

    def watched_bytes(self, *, limit_bytes: int, devices: int) -> int:
        """Above how much a task is warned of; 0: it is not."""
        return 0 if limit_bytes or self.mode != "warn" else self.share_bytes(devices)

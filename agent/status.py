"""Status of the agent, for the admin socket and the metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from farside.agent import messages as m


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHolder:
    """A task that has a GPU, or ``part`` of it, and whose job that is."""

    gpu: int
    part: str
    task: str
    job: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentStatus:
    """Status of a node agent at one moment. Bytes and seconds; the names say which."""

    kind: str
    node: str
    pid: int
    manager: str
    connected: bool
    is_manager_proved: bool  # False: connected to one that could not prove itself
    problem: str  # why it is not, in one line
    generation: int
    run_as: str
    containment: str  # "cgroup" or "process tree"
    gpu_fence: str  # "on", or why tasks can open others' GPUs
    memory_bytes: int
    headroom_bytes: int
    donor: m.Donor | None
    swap: m.Swap | None
    peers_file: str  # kept by the manager's list; empty: none is
    peers: int  # donors in it
    peers_problem: str  # why it could not be written
    services: Mapping[str, Mapping[str, float]]  # node services by name, with their figures
    service_faults: Mapping[str, int]  # how often what one said, or was told, could not be used
    psi: m.Psi
    gpus: tuple[m.Gpu, ...]
    gpus_unseen: str  # why GPUs that a driver has are none of these; empty: there are none such
    gpus_in_use: Mapping[int, str]  # index -> tasks
    gpu_holders: tuple[GpuHolder, ...]  # the same, one by one
    tasks: tuple[m.TaskState, ...]
    task_counts: Mapping[str, int]  # state -> how many

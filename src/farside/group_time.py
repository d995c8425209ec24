"""How long a group of co-located jobs takes for one iteration, and how busy its machines are meanwhile. PURE.

The jobs of a group have the same machines and take turns there, step by step: one computes while another one's updates
are on the network. Both the simulator and whoever plans or measures groups use these equations [harmony §IV-B2].
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Bound = Literal["cpu", "network", "job"]
BOUND_WORDS: Mapping[Bound, str] = {
    "cpu": "computing",
    "network": "communicating",
    "job": "the longest of its jobs",
}
"""What a shorter iteration would need less of, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkProfile:
    """What one iteration of a job needs, whatever the number of its machines.

    Attributes:
        job: Its name.
        work_machine_s: Machine seconds of computing that all its machines share among them.
        net_s: Seconds that its updates are on the network, with two or more machines.
        net_alone_s: The same with one machine, where nothing crosses the network.
        update_s: Seconds of computing that every machine repeats, and that more machines do not shorten.
        floor_bytes: Memory that it needs on each machine though all of its input lies on the disk.
        input_bytes: Its input, which all its machines share among them.
        machines_least, machines_most: On how many machines it can run.
    """

    job: str
    work_machine_s: float
    net_s: float
    net_alone_s: float = 0.0
    update_s: float = 0.0
    floor_bytes: int = 0
    input_bytes: int = 0
    machines_least: int = 1
    machines_most: int = 1 << 30

    def comp_s(self, machines: int) -> float:
        """Seconds of computing in an iteration, falling with the number of machines [harmony §IV-B2 eq. 2]."""
        return self.work_machine_s / machines + self.update_s

    def comm_s(self, machines: int) -> float:
        """Seconds on the network in an iteration."""
        return self.net_s if machines > 1 else self.net_alone_s

    def iteration_s(self, machines: int) -> float:
        """Seconds of an iteration of the job alone."""
        return self.comp_s(machines) + self.comm_s(machines)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """One iteration of a group.

    Attributes:
        comp_s: Seconds in which some job computes.
        comm_s: Seconds in which some job uses the network.
        longest_s: Seconds of the job that takes longest by itself.
    """

    comp_s: float
    comm_s: float
    longest_s: float

    @property
    def iteration_s(self) -> float:
        """Seconds until all jobs have done an iteration [harmony §IV-B2 eq. 1]."""
        return max(self.comp_s, self.comm_s, self.longest_s)

    @property
    def bound(self) -> Bound:
        """What a shorter iteration would need more of."""
        if self.longest_s > max(self.comp_s, self.comm_s):
            return "job"
        return "cpu" if self.comp_s >= self.comm_s else "network"

    @property
    def busy_cpu(self) -> float:
        """Share of the time in which the processors compute [harmony §IV-B2 eq. 3]."""
        return self.comp_s / self.iteration_s if self.iteration_s else 0.0

    @property
    def busy_net(self) -> float:
        """Share of the time in which the network carries updates [harmony §IV-B2 eq. 3]."""
        return self.comm_s / self.iteration_s if self.iteration_s else 0.0


def group_time(jobs: Sequence[WorkProfile], machines: int) -> GroupTime:
    """The three terms of a group's iteration on some machines, at least one."""
    return GroupTime(
        comp_s=sum(job.comp_s(machines) for job in jobs),
        comm_s=sum(job.comm_s(machines) for job in jobs),
        longest_s=max((job.iteration_s(machines) for job in jobs), default=0.0),
    )

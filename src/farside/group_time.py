"""How long a group of co-located jobs takes for one iteration, and how busy its machines are meanwhile. PURE.

The jobs of a group have the same machines and take turns there, step by step: one computes while another one's updates
are on the network. Both the simulator and whoever plans or measures groups use these equations [harmony §IV-B2].
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Bound = Literal["cpu", "network", "job", "disk", "peer"]
BOUND_WORDS: Mapping[Bound, str] = {
    "cpu": "computing",
    "network": "communicating",
    "job": "the longest of its jobs",
    "disk": "reading input back from the disk",
    "peer": "reading input back from peers' memory",
}
"""What a shorter iteration would need less of, in words."""


LEAST_BYTES_S = 1.0
"""What a place delivers at least; whoever says less has measured nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """What reading input back from one place costs: bytes a second, and CPU seconds a byte."""

    bytes_s: float
    cpu_s_byte: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloading:
    """Where input that does not stay in memory is read from.

    Attributes:
        disk: A disk of the machine.
        peer: Idle memory of another machine; None: there is none.
        net_bytes_s: What the network carries, where updates are on it too; infinite: that memory has a network of its
            own.
    """

    disk: ReadCost
    peer: ReadCost | None = None
    net_bytes_s: float = math.inf


def mean_cost(reads: Sequence[tuple[float, ReadCost]]) -> ReadCost:
    """What several jobs' reading from one place costs: the time of a byte is averaged over all bytes.

    Args:
        reads: The bytes that each job reads, more than none in all, and what they cost it.
    """
    read_bytes = sum(size_bytes for size_bytes, _ in reads)
    byte_s = sum(size_bytes / cost.bytes_s for size_bytes, cost in reads) / read_bytes
    return ReadCost(
        bytes_s=1 / byte_s if byte_s else math.inf,
        cpu_s_byte=sum(size_bytes * cost.cpu_s_byte for size_bytes, cost in reads) / read_bytes,
    )


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
        kept_bytes: What of its input each machine was seen to keep in memory; the rest is read back in each iteration.
        reloading: Where from, as was measured; None: it was not seen to read anything back.
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
    kept_bytes: float = math.inf
    reloading: Reloading | None = None

    def comp_s(self, machines: int) -> float:
        """Seconds of computing in an iteration, falling with the number of machines [harmony §IV-B2 eq. 2]."""
        return self.work_machine_s / machines + self.update_s

    def comm_s(self, machines: int) -> float:
        """Seconds on the network in an iteration."""
        return self.net_s if machines > 1 else self.net_alone_s

    def iteration_s(self, machines: int) -> float:
        """Seconds of an iteration of the job alone."""
        return self.comp_s(machines) + self.comm_s(machines)

    def reload_bytes(self, machines: int) -> float:
        """What each of its machines reads back in an iteration."""
        return 0.0 if self.reloading is None else max(0.0, self.input_bytes / machines - self.kept_bytes)

    def disk_s(self, machines: int) -> float:
        """Seconds in which the disk of each machine would be read for it alone, if nothing came from a peer."""
        return 0.0 if self.reloading is None else self.reload_bytes(machines) / self.reloading.disk.bytes_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """One iteration of a group.

    Attributes:
        comp_s: Seconds in which some job computes.
        comm_s: Seconds in which some job uses the network.
        longest_s: Seconds of the job that takes longest by itself.
        read_cpu_s: Seconds that processors work on input that is read back.
        read_net_s: Seconds in which it is on the network.
        disk_s, peer_s: Seconds in which the disk, and peers' memory, are read.
    """

    comp_s: float
    comm_s: float
    longest_s: float
    read_cpu_s: float = 0.0
    read_net_s: float = 0.0
    disk_s: float = 0.0
    peer_s: float = 0.0

    @property
    def iteration_s(self) -> float:
        """Seconds until all jobs have done an iteration [harmony §IV-B2 eq. 1].

        Ours are the terms of input that is read back: the paper's model has none [harmony §IV-C].
        """
        return max(
            self.comp_s + self.read_cpu_s, self.comm_s + self.read_net_s, self.longest_s, self.disk_s, self.peer_s
        )

    @property
    def bound(self) -> Bound:
        """What a shorter iteration would need more of."""
        cpu_s, net_s = self.comp_s + self.read_cpu_s, self.comm_s + self.read_net_s
        if max(self.disk_s, self.peer_s) > max(cpu_s, net_s, self.longest_s):
            return "disk" if self.disk_s >= self.peer_s else "peer"
        if self.longest_s > max(cpu_s, net_s):
            return "job"
        return "cpu" if cpu_s >= net_s else "network"

    @property
    def busy_cpu(self) -> float:
        """Share of the time in which the processors compute, without reading back [harmony §IV-B2 eq. 3]."""
        return self.comp_s / self.iteration_s if self.iteration_s else 0.0

    @property
    def busy_net(self) -> float:
        """Share of the time in which the network carries updates [harmony §IV-B2 eq. 3]."""
        return self.comm_s / self.iteration_s if self.iteration_s else 0.0


def group_time(jobs: Sequence[WorkProfile], machines: int) -> GroupTime:
    """The terms of a group's iteration on some machines, at least one; with what its jobs were seen to read back."""
    time = GroupTime(
        comp_s=sum(job.comp_s(machines) for job in jobs),
        comm_s=sum(job.comm_s(machines) for job in jobs),
        longest_s=max((job.iteration_s(machines) for job in jobs), default=0.0),
    )
    reads = [(job.reload_bytes(machines), job.reloading) for job in jobs if job.reloading is not None]
    return read_together(time, [(read_bytes, way) for read_bytes, way in reads if read_bytes])


_PLAYED, _FIRST = 16, 6
_PULL, _PUSH = 0, 2


def iteration_in_turns_s(jobs: Sequence[WorkProfile], machines: int) -> float:
    """Seconds of a group's iteration when its turns are played one after the other, each job's times always the same.

    Equation 1 takes it that steps can be cut anywhere. A turn is not cut: a job that computes long keeps another one
    from the few moments of computing between its pull and its push, so both wait. This is longer then, never shorter.
    On the network pulls go before pushes, and where a job has one worker its pull follows its push
    (`agent/training/node_queue.py`); with several it is ready once all have pushed, and another job may be first.
    """
    times = [(half := 0.5 * job.comm_s(machines), job.comp_s(machines), half) for job in jobs]
    done: list[list[float]] = [[] for _ in jobs]
    numbers = itertools.count(len(jobs))
    # For the network, and for the processors.
    waiting: list[list[tuple[bool, int, int, int]]] = [[(False, job, job, _PULL) for job in range(len(jobs))], []]
    is_free, running, now_s = [True, True], list[tuple[float, int, int, int]](), 0.0

    def fill() -> None:
        for resource in (0, 1):
            if is_free[resource] and waiting[resource]:
                _, number, job, phase = heapq.heappop(waiting[resource])
                is_free[resource] = False
                heapq.heappush(running, (now_s + times[job][phase], number, job, phase))

    while done and min(map(len, done)) < _PLAYED:
        fill()
        now_s, _, job, phase = heapq.heappop(running)
        is_free[phase % 2] = True
        if phase == _PUSH:
            done[job].append(now_s)
            if machines > 1:
                fill()
        after = (phase + 1) % len(times[job])
        heapq.heappush(waiting[after % 2], (after == _PUSH, next(numbers), job, after))
    slowest_s = max(((ends[-1] - ends[_FIRST]) / (len(ends) - 1 - _FIRST) for ends in done), default=0.0)
    return max(slowest_s, group_time(jobs, machines).iteration_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeInTurns:
    """An iteration of a group in turns: how long it is, and what a shorter one would need less of."""

    iteration_s: float
    bound: Bound


def time_in_turns(jobs: Sequence[WorkProfile], machines: int) -> TimeInTurns:
    """An iteration of these jobs in turns, bound by the greatest of the terms of equation 1."""
    return TimeInTurns(iteration_s=iteration_in_turns_s(jobs, machines), bound=group_time(jobs, machines).bound)


_NEAR_LEAST = 0.01
_HALVINGS = 50


def reloading_s(time: GroupTime, spilled_bytes: float, peer_bytes: float, way: Reloading) -> float:
    """Seconds of a group's iteration that reads input back: equation 1 with the disk, the peer, and what they cost.

    Ours: the paper reads from the disk alone, and its model has no term for it [harmony §IV-B2 eq. 1, §IV-C].

    Args:
        time: The iteration of the group without that.
        spilled_bytes: What all its jobs read in an iteration, on each machine.
        peer_bytes: How many of these come from a peer.
        way: Where from.
    """
    return max(start + slope * peer_bytes for start, slope in _terms(time, spilled_bytes, way))


def reloaded(time: GroupTime, spilled_bytes: float, peer_bytes: float, way: Reloading) -> GroupTime:
    """The terms of an iteration that reads input back; the arguments and its seconds are those of `reloading_s`."""
    disk, peer, disk_bytes = way.disk, way.peer or ReadCost(bytes_s=math.inf), spilled_bytes - peer_bytes
    return replace(
        time,
        read_cpu_s=time.read_cpu_s + disk.cpu_s_byte * disk_bytes + peer.cpu_s_byte * peer_bytes,
        read_net_s=time.read_net_s + peer_bytes / way.net_bytes_s,
        disk_s=time.disk_s + disk_bytes / disk.bytes_s,
        peer_s=time.peer_s + peer_bytes / peer.bytes_s,
    )


def read_together(time: GroupTime, reads: Sequence[tuple[float, Reloading]]) -> GroupTime:
    """The terms of an iteration whose jobs read input back, as much of it from peers as makes it shortest.

    Args:
        time: The iteration without that.
        reads: Of each job that does so, the bytes that it reads on each machine, more than none, and where from.
    """
    if not reads:
        return time
    near = [(read_bytes, way.peer) for read_bytes, way in reads if way.peer is not None]
    together = Reloading(
        disk=mean_cost([(read_bytes, way.disk) for read_bytes, way in reads]),
        peer=mean_cost(near) if near else None,
        net_bytes_s=min(way.net_bytes_s for _, way in reads),
    )
    spilled_bytes = sum(read_bytes for read_bytes, _ in reads)
    peer_bytes = min(sum(read_bytes for read_bytes, _ in near), best_peer_bytes(time, spilled_bytes, together))
    return reloaded(time, spilled_bytes, peer_bytes, together)


def best_peer_bytes(time: GroupTime, spilled_bytes: float, way: Reloading) -> float:
    """How many of the bytes that are read should come from a peer: the fewest with a time within 1 % of the least.

    The time is the greatest of straight lines, so the least is at an end or where two of them cross.
    """
    if way.peer is None or spilled_bytes <= 0:
        return 0.0
    lines = _terms(time, spilled_bytes, way)
    tried = [0.0, spilled_bytes]
    for (start, slope), (other, its_slope) in itertools.combinations(lines, 2):
        if slope != its_slope and 0 < (crossing := (other - start) / (slope - its_slope)) < spilled_bytes:
            tried.append(crossing)

    def seconds(peer_bytes: float) -> float:
        return reloading_s(time, spilled_bytes, peer_bytes, way)

    best = min(tried, key=lambda one: (seconds(one), one))
    enough_s = (1 + _NEAR_LEAST) * seconds(best)
    low, high = 0.0, best
    if seconds(low) <= enough_s:
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if seconds(middle) <= enough_s else (middle, high)
    return high


def _terms(time: GroupTime, spilled_bytes: float, way: Reloading) -> list[tuple[float, float]]:
    """Each term of the iteration as seconds without a peer, and seconds more for each byte that comes from one."""
    disk, peer = way.disk, way.peer or ReadCost(bytes_s=math.inf)
    return [
        (time.comp_s + time.read_cpu_s + disk.cpu_s_byte * spilled_bytes, peer.cpu_s_byte - disk.cpu_s_byte),
        (time.comm_s + time.read_net_s, 1 / way.net_bytes_s),
        (time.disk_s + spilled_bytes / disk.bytes_s, -1 / disk.bytes_s),
        (time.peer_s, 1 / peer.bytes_s),
        (time.longest_s, 0.0),
    ]

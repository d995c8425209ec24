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
        net_cpu_s: Seconds in which its pulls and pushes would take all processors of a machine, with two or more of
            them: CPU seconds over processors.
        net_cpu_alone_s: The same with one machine.
        leaves_processor: Whether a processor of each machine is idle while it computes.
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
    net_cpu_s: float = 0.0
    net_cpu_alone_s: float = 0.0
    leaves_processor: bool = False

    def comp_s(self, machines: int) -> float:
        """Seconds of computing in an iteration, falling with the number of machines [harmony §IV-B2 eq. 2]."""
        return self.work_machine_s / machines + self.update_s

    def comm_s(self, machines: int) -> float:
        """Seconds on the network in an iteration."""
        return self.net_s if machines > 1 else self.net_alone_s

    def comm_cpu_s(self, machines: int) -> float:
        """Seconds in which communicating in an iteration would take all processors of a machine."""
        return self.net_cpu_s if machines > 1 else self.net_cpu_alone_s

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
        longest_s: Seconds of the job that takes longest by itself, with the processor time of the others' updates.
        net_cpu_s: Seconds in which updates take all processors; 0 where computing leaves one to them.
        read_cpu_s: Seconds that processors work on input that is read back.
        read_net_s: Seconds in which it is on the network.
        disk_s, peer_s: Seconds in which the disk, and peers' memory, are read.
    """

    comp_s: float
    comm_s: float
    longest_s: float
    net_cpu_s: float = 0.0
    read_cpu_s: float = 0.0
    read_net_s: float = 0.0
    disk_s: float = 0.0
    peer_s: float = 0.0

    @property
    def iteration_s(self) -> float:
        """Seconds until all jobs have done an iteration [harmony §IV-B2 eq. 1].

        Ours are the processor time of updates, and the terms of input that is read back: the paper's model has none
        [harmony §IV-C].
        """
        return max(self.cpu_s, self.comm_s + self.read_net_s, self.longest_s, self.disk_s, self.peer_s)

    @property
    def cpu_s(self) -> float:
        """Seconds of an iteration in which processors work: for jobs, for their updates, and for reading back."""
        return self.comp_s + self.net_cpu_s + self.read_cpu_s

    @property
    def bound(self) -> Bound:
        """What a shorter iteration would need more of."""
        cpu_s, net_s = self.cpu_s, self.comm_s + self.read_net_s
        if max(self.disk_s, self.peer_s) > max(cpu_s, net_s, self.longest_s):
            return "disk" if self.disk_s >= self.peer_s else "peer"
        if self.longest_s > max(cpu_s, net_s):
            return "job"
        return "cpu" if cpu_s >= net_s else "network"

    @property
    def busy_cpu(self) -> float:
        """Share of the time in which the processors compute, and nothing else [harmony §IV-B2 eq. 3]."""
        return self.comp_s / self.iteration_s if self.iteration_s else 0.0

    @property
    def busy_net(self) -> float:
        """Share of the time in which the network carries updates [harmony §IV-B2 eq. 3]."""
        return self.comm_s / self.iteration_s if self.iteration_s else 0.0


def group_time(jobs: Sequence[WorkProfile], machines: int) -> GroupTime:
    """The terms of a group's iteration on some machines, at least one; with what its jobs were seen to read back.

    The processors do what all jobs compute and what their updates take. One job is on the network at a time, so while
    others are, a job computes more slowly or waits: its iteration has the processor time of their updates besides.
    """
    updates_s = _updates_s(jobs, machines)
    all_updates_s = sum(updates_s)
    time = GroupTime(
        comp_s=sum(job.comp_s(machines) for job in jobs),
        comm_s=sum(job.comm_s(machines) for job in jobs),
        longest_s=max(
            (
                job.iteration_s(machines) + max(0.0, all_updates_s - own_s)
                for job, own_s in zip(jobs, updates_s, strict=True)
            ),
            default=0.0,
        ),
        net_cpu_s=all_updates_s,
    )
    reads = [(job.reload_bytes(machines), job.reloading) for job in jobs if job.reloading is not None]
    return read_together(time, [(read_bytes, way) for read_bytes, way in reads if read_bytes])


def _updates_s(jobs: Sequence[WorkProfile], machines: int) -> list[float]:
    """By job, seconds in which its updates take all processors; none where all leave a processor to them."""
    if all(job.leaves_processor for job in jobs):
        return [0.0] * len(jobs)
    return [job.comm_cpu_s(machines) for job in jobs]


_PLAYED, _FIRST = 16, 6
_PULL, _PUSH = 0, 2
_NET, _CPU = 0, 1
_MOST_SLOWED = 0.99


def iteration_in_turns_s(jobs: Sequence[WorkProfile], machines: int) -> float:
    """Seconds of a group's iteration when its turns are played one after the other, each job's times always the same.

    Equation 1 takes it that steps can be cut anywhere. A turn is not cut: a job that computes long keeps another one
    from the few moments of computing between its pull and its push, so both wait. This is longer then, never shorter.
    On the network pulls go before pushes, and where a job has one worker its pull follows its push
    (`agent/training/node_queue.py`); with several it is ready once all have pushed, and another job may be first.
    While a job is on the network, one that computes is slowed by the processor time which that takes.
    """
    return max(_Turns(jobs, machines).slowest_s() if jobs else 0.0, group_time(jobs, machines).iteration_s)


@dataclass(slots=True)
class _Turn:
    ends_s: float
    number: int
    job: int
    phase: int


class _Turns:
    """Turns of a group, played."""

    def __init__(self, jobs: Sequence[WorkProfile], machines: int) -> None:
        self._times = [(half := 0.5 * job.comm_s(machines), job.comp_s(machines), half) for job in jobs]
        self._slowed = [
            min(_MOST_SLOWED, cpu_s / net_s) if (net_s := job.comm_s(machines)) else 0.0
            for job, cpu_s in zip(jobs, _updates_s(jobs, machines), strict=True)
        ]
        self._has_several = machines > 1
        self._numbers = itertools.count(len(jobs))
        self._done: list[list[float]] = [[] for _ in jobs]
        # Both for the network, and for the processors.
        self._waiting: list[list[tuple[bool, int, int, int]]] = [
            [(False, job, job, _PULL) for job in range(len(jobs))], [],
        ]  # fmt: skip
        self._on: list[_Turn | None] = [None, None]
        self._now_s = 0.0

    def slowest_s(self) -> float:
        """Seconds of an iteration of the job that takes longest."""
        while min(map(len, self._done)) < _PLAYED:
            self._fill()
            turn = min((one for one in self._on if one is not None), key=lambda one: (one.ends_s, one.number))
            self._end(turn)
        return max((ends[-1] - ends[_FIRST]) / (len(ends) - 1 - _FIRST) for ends in self._done)

    def _fill(self) -> None:
        for resource in (_NET, _CPU):
            if self._on[resource] is None and self._waiting[resource]:
                _, number, job, phase = heapq.heappop(self._waiting[resource])
                self._begin(resource, _Turn(self._now_s + self._times[job][phase], number, job, phase))

    def _begin(self, resource: int, turn: _Turn) -> None:
        self._on[resource] = turn
        computing, talking = self._on[_CPU], self._on[_NET]
        # Whichever of the two begins, from now on the one that computes is slowed.
        if computing is not None and talking is not None and (slowed := self._slowed[talking.job]):
            computing.ends_s = self._now_s + (computing.ends_s - self._now_s) / (1 - slowed)

    def _end(self, turn: _Turn) -> None:
        self._now_s, resource = turn.ends_s, turn.phase % 2
        self._on[resource] = None
        computing = self._on[_CPU]
        if resource == _NET and computing is not None and (slowed := self._slowed[turn.job]):
            computing.ends_s = self._now_s + (computing.ends_s - self._now_s) * (1 - slowed)
        if turn.phase == _PUSH:
            self._done[turn.job].append(self._now_s)
            if self._has_several:
                self._fill()
        after = (turn.phase + 1) % len(self._times[turn.job])
        heapq.heappush(self._waiting[after % 2], (after == _PUSH, next(self._numbers), turn.job, after))


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
        (time.cpu_s + disk.cpu_s_byte * spilled_bytes, peer.cpu_s_byte - disk.cpu_s_byte),
        (time.comm_s + time.read_net_s, 1 / way.net_bytes_s),
        (time.disk_s + spilled_bytes / disk.bytes_s, -1 / disk.bytes_s),
        (time.peer_s, 1 / peer.bytes_s),
        (time.longest_s, 0.0),
    ]

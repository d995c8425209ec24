"""What an Aggregator says of itself, to operators and to its node's agent."""

import msgspec


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One start of a job.

    Attributes:
        lanes: Members that have one.
        lanes_shm, lanes_rdma: Of these: whose gradients go by shared memory, and by RDMA; all others by TCP.
        lanes_without_codes: Of these: by TCP, and the members' Farside is of before codes.
        wrong_codes: Frames' heads that the member, or the other Aggregator, did not send.
        updates: Chunks updated since it came.
        busy_s: Processor time of its updates.
        size_squares, size_times: Over all updates, of the bytes that all members pushed: their squares, and their
            product with the processor time. What a chunk and a byte cost follows from them.
        waits_for: The lowest rank whose push is lacking where others have pushed; None: none is.
        is_static: Without a manager's plan.
        copied, pushed, broken_here, broken_there: Of moves under way, runs as [first, count, epoch].
        lost: No member and no Aggregator can go on.
    """

    job: str
    start: int
    members: int
    rule: str
    chunks: int
    lanes: int
    updates: int
    busy_s: float
    pushed_bytes: int
    result_bytes: int
    memory_bytes: int
    size_squares: float = 0.0
    size_times: float = 0.0
    lanes_shm: int = 0
    lanes_rdma: int = 0
    lanes_without_codes: int = 0
    wrong_codes: int = 0
    waits_for: int | None = None
    is_static: bool = False
    copied: tuple[tuple[int, int, int], ...] = ()
    pushed: tuple[tuple[int, int, int], ...] = ()
    broken_here: tuple[tuple[int, int, int], ...] = ()
    broken_there: tuple[tuple[int, int, int], ...] = ()
    lost: bool = False


class AggregatorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """An Aggregator.

    Attributes:
        incarnation: Random, of its server's process: another one means that the one before has ended.
        unix, tcp: Where members reach it, on this machine and from others; "": not so.
        machine: The kernel's boot id: equal means the same machine.
        restarts: Servers that its parent has replaced.
        rdma: "auto", or why no member is reached by RDMA.
        rdma_fallbacks: Lanes that go by TCP because a queue pair could not be made.
        refused: Callers that got no lane, by reason.
        problems: What of the manager's last word could not be done.
        takes_grants: It serves jobs of which a manager says the key alone.
    """

    kind: str = "aggregator"
    node: str
    pid: int
    incarnation: int
    cores: int
    memory_bytes: int
    used_bytes: int
    unix: str
    tcp: str
    machine: str
    restarts: int
    rdma: str = ""
    rdma_fallbacks: int = 0
    jobs: tuple[JobStatus, ...] = ()
    refused: dict[str, int] = msgspec.field(default_factory=dict)
    problems: tuple[str, ...] = ()
    takes_grants: bool = True

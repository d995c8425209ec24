"""Nodes of a job's parameter servers. PURE. [tiresias §3.3.1, §3.3.3.1]

A gang is W workers, a GPU each, and PS parameter servers, which need none. Every placement but the ILP (ilp.py) puts
the servers beside the workers, in their proportion, so the place of the workers says all: what a job asks of CPUs and
memory for each GPU includes its servers' part, and servers never hold up a job that has room for its workers.
"""

from farside.scheduler.state import Allocation


def servers_beside(workers: Allocation, servers: int) -> Allocation:
    """Number of parameter servers on each node of a job, in proportion to its workers there.

    What is left after rounding down goes to the nodes with the greatest fractions, the first on ties.
    """
    if servers == 0:
        return ()
    total = sum(gpus for _, gpus in workers)
    # In whole numbers, so that equal fractions are equal and ties are decided by place.
    shares = [divmod(gpus * servers, total) for _, gpus in workers]
    missing = servers - sum(whole for whole, _ in shares)
    favoured = sorted(range(len(shares)), key=lambda place: (-shares[place][1], place))[:missing]
    counts = [whole + (place in favoured) for place, (whole, _) in enumerate(shares)]
    return tuple((at, count) for (at, _), count in zip(workers, counts, strict=True) if count)


def server_sizes(model_bytes: float, servers: int, skew: float) -> tuple[float, ...]:
    """s_j, the bytes of the tensors that each server hosts: a tensor is never split, so one hosts the largest alone.

    Where the largest tensor is less than an even share, all host the same.
    """
    if servers <= 1:
        return (model_bytes,) * servers
    largest = max(skew, 1 / servers) * model_bytes
    return (largest, *[(model_bytes - largest) / (servers - 1)] * (servers - 1))

"""Fragmentation: the share of free GPUs that a job of a given size cannot use. PURE."""

from farside.scheduler.ledger import Ledger


def stranded_share(ledger: Ledger, gpus: int) -> float:
    """The share of the free GPUs that can't serve a job of ``gpus`` GPUs, from 0 to 1; 0 where none is free.

    A free GPU serves if, on its node, it belongs to a group of as many as the job needs: a node with seven free GPUs
    serves a job of three twice, and one GPU is stranded. A job larger than the largest node is served by wholly free
    nodes of that size alone, and one that needs more of them than there are by nothing. CPUs, memory and models don't
    count. Read from the ledger's buckets: the number of nodes does not matter.
    """
    free = sum(count * nodes.bit_count() for count, nodes in enumerate(ledger.buckets))
    if not free:
        return 0.0
    largest = ledger.sets.by_size[0][0]
    group = min(gpus, largest)
    served = sum(count // group * group * nodes.bit_count() for count, nodes in enumerate(ledger.buckets))
    return 1.0 - (served / free if served >= gpus else 0.0)

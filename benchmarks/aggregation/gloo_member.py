"""A rank of torch.distributed over gloo: ``python -m benchmarks.aggregation.gloo_member RANK MEMBERS STORE``."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.aggregation.conversation import converse


class Buckets:
    """Tensors in buckets, each reduced in place as DistributedDataParallel does it."""

    def __init__(self, counts: Sequence[int], buckets: Sequence[Sequence[int]]) -> None:
        self._flat = [torch.zeros(sum(counts[tensor] for tensor in bucket)) for bucket in buckets]
        self._of = {tensor: at for at, bucket in enumerate(buckets) for tensor in bucket}
        self._sizes = [len(bucket) for bucket in buckets]
        self._lacking = list(self._sizes)
        self._under_way: list[Any] = []

    def step(self) -> None:
        for bucket in self._flat:
            self._under_way.append(dist.all_reduce(bucket, async_op=True))
        self.wait()

    def push(self, tensor: int) -> None:
        at = self._of[tensor]
        self._lacking[at] -= 1
        if not self._lacking[at]:
            self._lacking[at] = self._sizes[at]
            self._under_way.append(dist.all_reduce(self._flat[at], async_op=True))

    def wait(self) -> None:
        for work in self._under_way:
            work.wait()
        self._under_way.clear()

    def check(self) -> None:
        for bucket in self._flat:
            bucket.fill_(dist.get_rank() + 1)
        self.step()
        members = dist.get_world_size()
        if not all(bool((bucket == members * (members + 1) / 2).all()) for bucket in self._flat):
            raise ValueError("a sum is wrong")
        # Reduced in place, anything else would grow to infinity.
        for bucket in self._flat:
            bucket.zero_()

    def close(self) -> None:
        self._flat.clear()


def prepare(order: Mapping[str, Any]) -> Buckets:
    """All ranks prepare the same."""
    return Buckets(order["counts"], order["buckets"])


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[3]}", rank=int(sys.argv[1]), world_size=int(sys.argv[2])
    )
    converse(prepare)

"""What every node for co-located jobs has, which limits what such a job may ask for. PURE.

A job may be moved to any of these nodes, so they have to be alike. The same size decides which jobs are taken at
submission, where they may be placed, and what `farside explain` says.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farside.units import format_bytes

# A node with less memory than most, by more than this share, is left out.
MEMORY_SPREAD = 1 / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSize:
    """CPUs and memory of a node. ``memory_bytes``: 0: not known."""

    cpus: int = 0
    memory_bytes: int = 0

    def problems(self, threads: int, memory_bytes: float) -> Iterator[tuple[str, str]]:
        """Why no node of this size takes a job that asks for so much: by key of the job, in words."""
        if threads > self.cpus:
            yield "threads", f"it asks for {threads:,}, and a node for co-located jobs has {self.cpus:,} CPUs"
        if self.memory_bytes and memory_bytes > self.memory_bytes:
            asked, has = format_bytes(int(memory_bytes)), format_bytes(self.memory_bytes)
            yield "memory_bytes", f"it asks for {asked} of memory, and a node for co-located jobs has {has}"

    def unlike(self, node: "NodeSize") -> str:
        """Why no co-located job starts on a node; empty: it may."""
        if node.cpus != self.cpus:
            return f"it has {node.cpus:,} CPUs, and the others have {self.cpus:,}"
        if 0 < node.memory_bytes < self.memory_bytes:
            has, least = format_bytes(node.memory_bytes), format_bytes(self.memory_bytes)
            return f"it has {has} of memory, and the others have at least {least}"
        return ""


def common_size(nodes: Sequence[NodeSize]) -> NodeSize:
    """The CPUs of most nodes, and the least memory of those of them that have not much less than the median one."""
    counts = Counter(node.cpus for node in nodes)
    cpus = max(counts, key=lambda cpus: (counts[cpus], cpus), default=0)
    memories = sorted(node.memory_bytes for node in nodes if node.cpus == cpus and node.memory_bytes)
    if not memories:
        return NodeSize(cpus=cpus)
    enough = (1 - MEMORY_SPREAD) * memories[len(memories) // 2]
    return NodeSize(cpus=cpus, memory_bytes=next(memory for memory in memories if memory >= enough))

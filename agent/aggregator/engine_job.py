"""A layout in the engine's words, the same at members and Aggregators."""

from farside.agent.aggregator.layout import Layout
from farside.kmod_shim.engine.aggregation import Chunk, DType, Job, Rule


def engine_job(layout: Layout, *, rule: str, members: int, hold: bool = False) -> Job:
    """The job of a layout and rule; ``hold``: results wait until a member asks for them."""
    described = zip(layout.counts, layout.dtypes, layout.groups, strict=True)
    chunks = tuple(Chunk(count, DType[dtype.upper()], group) for count, dtype, group in described)
    return Job(members, Rule[rule.upper()], chunks, hold)

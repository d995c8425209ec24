"""Measure how long donors take to answer and to lease: a borrower of our own beside a live sandbox's."""

import asyncio
import os
import time
import tomllib
from dataclasses import dataclass, field

from benchmarks.load import BenchmarkError
from benchmarks.sandbox import Sandbox
from farside.blockdev.donor.dial import open_control
from farside.daemon.control import messages as m
from farside.daemon.control.channel import Channel
from farside.daemon.control.keys import read_keys
from farside.daemon.control.protocol import Received

READY_SLABS = 2  # a donor's preallocate_slabs
REFILL_S = 1.0  # a sandbox's donor looks at its memory four times a second and makes two slabs in that time


@dataclass(slots=True, kw_only=True)
class LeaseTimes:
    """Seconds that each phase took, one entry a repetition."""

    ask_s: list[float] = field(default_factory=list)  # QUERY_MEM to both donors until both FREE_MEM
    ready_s: list[float] = field(default_factory=list)  # MAP until MR_INFO with the memfd; a slab stood ready
    made_s: list[float] = field(default_factory=list)  # the same; the slab had to be made
    release_s: list[float] = field(default_factory=list)  # RELEASE until OK


def measure(box: Sandbox, *, repetitions: int) -> LeaseTimes:
    """Asks, leases and releases so many times; the sandbox has two donors on this host."""
    return asyncio.run(_measure(box, repetitions))


async def _measure(box: Sandbox, repetitions: int) -> LeaseTimes:
    peers = tomllib.loads((box.state / "peers.toml").read_text())["donor"]
    keys = read_keys(box.state / "cluster.key")
    channels = []
    times = LeaseTimes()
    try:
        for peer in peers[:2]:
            features = m.Feature.SHM | m.Feature.MIGRATE
            channel, _ = await open_control(peer["control"], keys=keys, node="benchmark", session=0, features=features)
            channels.append(channel)
        for _ in range(repetitions):
            await asyncio.sleep(REFILL_S)
            await _once(channels, times)
    finally:
        for channel in channels:
            channel.close()
    return times


async def _once(channels: list[Channel], times: LeaseTimes) -> None:
    started_s = time.perf_counter()
    await asyncio.gather(*(_ask(channel, m.QueryMem(device="benchmark")) for channel in channels))
    times.ask_s.append(time.perf_counter() - started_s)
    leases = []
    for number in range(READY_SLABS + 1):
        started_s = time.perf_counter()
        leases += await _map(channels[0])
        took = times.ready_s if number < READY_SLABS else times.made_s
        took.append(time.perf_counter() - started_s)
    started_s = time.perf_counter()
    await _ask(channels[0], m.Release(leases=tuple(leases)))
    times.release_s.append(time.perf_counter() - started_s)


async def _map(channel: Channel) -> list[int]:
    answer = await _ask(channel, m.Map(device="benchmark"))
    if not isinstance(answer, m.MrInfo):
        raise BenchmarkError(f"a donor did not lease: {answer}")
    for fd in channel.take_fds(len(answer.leases)):
        os.close(fd)
    return [lease.lease for lease in answer.leases]


async def _ask(channel: Channel, message: m.Message) -> m.Message:
    seq = channel.ask(message)
    while True:
        event = await channel.next_event()
        if not isinstance(event, Received):
            raise BenchmarkError(f"a donor ended the connection: {event}")
        if event.seq == seq:
            return event.message

"""Events as a training job's process would leave them, with all that makes them hard to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from farside.agent.profile.ring import Event

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A worker that sends each tensor to the server that hosts it, after each step.

    ``chunk_bytes``: what is larger goes in pieces of this; 0: whole. ``cut``: how often a socket takes only a part.
    """

    tensors: Sequence[int]
    iterations: int = 8
    servers: int = 1
    step_s: float = 0.2
    jitter: float = 0.1
    chunk_bytes: int = 0
    cut: float = 0.0
    heartbeat_s: float = 0.0
    broadcast: bool = False


def events_of(training: Training, random: Random) -> list[Event]:
    """In the order of time."""
    now_ns = 10**9
    found: list[Event] = []
    begun_ns = now_ns
    if training.broadcast:
        for size in training.tensors:
            now_ns += 20_000
            found += sent(now_ns, 1, size, training, random)
    for _ in range(training.iterations):
        now_ns += int(training.step_s * 1e9 * random.uniform(1 - training.jitter, 1 + training.jitter))
        for at, size in enumerate(training.tensors):
            parts = [size]
            if training.chunk_bytes:
                parts = [training.chunk_bytes] * (size // training.chunk_bytes) + [size % training.chunk_bytes]
            for part in filter(None, parts):
                now_ns += int(random.uniform(5_000, 50_000))
                found += sent(now_ns, 1 + at % training.servers, part, training, random)
                now_ns = found[-1].at_ns
    if training.heartbeat_s:
        for at in range(int((now_ns - begun_ns) / 1e9 / training.heartbeat_s)):
            found.append(Event(begun_ns + int(at * training.heartbeat_s * 1e9) + 7, 1, 40, False, False))
    return sorted(found)


def sent(at_ns: int, flow: int, size: int, training: Training, random: Random) -> list[Event]:
    """One message, whole or in the parts that a socket took."""
    if random.random() >= training.cut or size < 2:
        return [Event(at_ns, flow, size, False, False)]
    first = random.randrange(1, size)
    return [Event(at_ns, flow, first, True, False), Event(at_ns + 2_000, flow, size - first, False, False)]

"""Which keys and values a Memcached holds, and what is asked of it: the mixes ETC and SYS. Pure. [infiniswap §2.7.3.2]

The paper gives the shares and sizes below. Where it is silent (ETC's tenth of other values, how SYS's smaller values
lie, which keys are asked for) the choice is ours and said beside it. Keys are asked for evenly: no key is hot, which is
the worst case for a cache that does not fit.
"""

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

SET_BIT = 1 << 31  # of a request; the other bits are the key's number


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Sizes drawn evenly from ``low`` to ``high`` bytes, both included, in ``share`` of the cases."""

    share: float
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """One workload; ``key_count`` is what makes tens of MiB of it."""

    name: str
    set_share: float
    key_bytes: tuple[Range, ...]
    value_bytes: tuple[Range, ...]
    key_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What the client plays: sizes by key, and requests (key number, ``SET_BIT`` for a SET)."""

    key_bytes: tuple[int, ...]
    value_bytes: tuple[int, ...]
    requests: tuple[int, ...]


ETC = Mix(
    name="etc",
    set_share=0.05,
    key_bytes=(Range(share=1, low=16, high=16),),
    # The paper's nine tenths; the rest is ours.
    value_bytes=(Range(share=0.9, low=16, high=512), Range(share=0.1, low=513, high=2048)),
    key_count=100_000,
)
SYS = Mix(
    name="sys",
    set_share=0.25,
    key_bytes=(Range(share=0.4, low=16, high=20), Range(share=0.6, low=21, high=45)),
    # 8 % are "smaller" than 320: from 16 on is ours.
    value_bytes=(
        Range(share=0.8, low=320, high=500),
        Range(share=0.08, low=16, high=319),
        Range(share=0.12, low=500, high=10_000),
    ),
    key_count=42_000,
)
MIXES = {mix.name: mix for mix in (ETC, SYS)}


def script(mix: Mix, rng: random.Random, *, request_count: int) -> Script:
    """Sizes and requests drawn from a mix; a key keeps its value's size: the cache neither grows nor shrinks."""
    keys = range(mix.key_count)
    return Script(
        key_bytes=tuple(_draw(mix.key_bytes, rng) for _ in keys),
        value_bytes=tuple(_draw(mix.value_bytes, rng) for _ in keys),
        requests=tuple(_requests(mix, rng, request_count)),
    )


def packed(what: Script) -> bytes:
    """As ``cache_load.c`` reads it, little endian: counts; (u16 key, u16 value) bytes a key; u32 a request."""
    sizes = [size for pair in zip(what.key_bytes, what.value_bytes, strict=True) for size in pair]
    head = struct.pack("<II", len(what.key_bytes), len(what.requests))
    return head + struct.pack(f"<{len(sizes)}H", *sizes) + struct.pack(f"<{len(what.requests)}I", *what.requests)


def payload_bytes(what: Script) -> int:
    """Bytes of all keys and values, without what the cache adds to each."""
    return sum(what.key_bytes) + sum(what.value_bytes)


def _requests(mix: Mix, rng: random.Random, count: int) -> Iterator[int]:
    for _ in range(count):
        key = rng.randrange(mix.key_count)
        yield key | SET_BIT if rng.random() < mix.set_share else key


def _draw(ranges: tuple[Range, ...], rng: random.Random) -> int:
    chosen = rng.choices(ranges, weights=[one.share for one in ranges])[0]
    return rng.randint(chosen.low, chosen.high)

"""Layout of a model: its tensors in declared order, cut and joined into chunks, the same on every member. PURE.

A tensor of `JOIN_BYTES` or more is cut into chunks of `CHUNK_BYTES`, the last one shorter; a model that would have more
than `CHUNKS_MAX` gets larger ones. Smaller tensors of one number format and parameter group are joined in order,
whatever stands between, until they make `JOIN_BYTES`; but for those that are to be apart.

Chunks are numbered by where their first tensor is declared. Members push in descending order: the gradient of a tensor
that is declared first comes last, and with it its chunk is complete.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import prod
from types import MappingProxyType
from typing import Annotated

import msgspec

from farside.errors import ConfigError

KIB, MIB = 1 << 10, 1 << 20
JOIN_BYTES = 64 * KIB
"""Smaller tensors are joined: a frame, a turn and a version each would cost more than their sum."""
CHUNK_BYTES = 256 * KIB
"""With 512 KiB and more, receiving, summing and sending overlap less."""
CHUNK_BYTES_MAX = MIB
"""The engine's; also the largest payload of a frame."""
CHUNKS_MAX = 65_536
TENSORS_MAX = 65_536
NAME_BYTES_MAX = 256
GROUPS_MAX = 64
COUNT_MAX = 1 << 40
DIMENSIONS_MAX = 8
"""A shape with more of them is not declared. One that is takes 20 bytes at most, as it has `COUNT_MAX` elements."""
DECLARATION_BYTES_MAX = MIB
"""Limit of all tensors of a job, encoded: a declaration is one message."""
ITEM_BYTES: Mapping[str, int] = MappingProxyType({"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "i32": 4, "i64": 8})
"""Bytes of an element, by number format."""
SUM_ONLY = frozenset(("f64", "i32", "i64"))
"""Formats that no optimizer and no mean takes."""
RULES = ("sum", "mean", "sgd", "adam", "adamw")
"""What becomes of the members' gradients."""
OPTIMIZERS = frozenset(("sgd", "adam", "adamw"))
"""Those that update parameters at the Aggregators."""
WORKERS_OWN = "farside.used"
"""Name of the tensor that `farside.attach(..., update="worker")` declares before the model's."""
LAYOUT_VERSION = 1
"""Goes into the digest: members whose Farside cuts otherwise don't agree."""


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One trainable tensor.

    Attributes:
        name: As the model has it.
        count: Elements.
        dtype: Number format, of `ITEM_BYTES`.
        group: The optimizer's parameter group.
        is_apart: It is joined with no other.
        shape: Empty: not said, as by a Farside of before, and then compared with no other.
    """

    name: str
    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)]
    dtype: str
    group: Annotated[int, msgspec.Meta(ge=0, lt=GROUPS_MAX)] = 0
    is_apart: bool = False
    shape: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)], ...], msgspec.Meta(max_length=DIMENSIONS_MAX)
    ] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of its gradient."""
        return self.count * ITEM_BYTES[self.dtype]


class Piece(msgspec.Struct, frozen=True, gc=False):
    """Elements [offset, offset + count) of a tensor, by its place in the layout."""

    tensor: int
    offset: int
    count: int


class Task(msgspec.Struct, frozen=True, gc=False):
    """Run of chunks [first, first + count) with the same tensors and number of bytes each."""

    first: int
    count: int
    chunk_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all of them."""
        return self.count * self.chunk_bytes


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Chunks of a model.

    Attributes:
        tensors: As they were declared; without shapes where these would make the declaration too long.
        chunks: What lies in each, one piece behind the other.
        digest: SHA-256 in hex: equal where tensors, their order and the way they are cut are. Shapes are not in it.
    """

    tensors: tuple[Tensor, ...]
    chunks: tuple[tuple[Piece, ...], ...]
    digest: str

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Elements of each chunk."""
        return tuple(sum(piece.count for piece in pieces) for pieces in self.chunks)

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Number format of each chunk."""
        return tuple(self.tensors[pieces[0].tensor].dtype for pieces in self.chunks)

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Parameter group of each chunk."""
        return tuple(self.tensors[pieces[0].tensor].group for pieces in self.chunks)

    @cached_property
    def sizes_bytes(self) -> tuple[int, ...]:
        """Bytes of each chunk's gradient."""
        return tuple(count * ITEM_BYTES[dtype] for count, dtype in zip(self.counts, self.dtypes, strict=True))

    @cached_property
    def has_apart(self) -> bool:
        """A tensor is joined with no other though it is small: an Aggregator must know that there are such."""
        return any(one.is_apart for one in self.tensors)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """Runs of a tensor's equal chunks, and joined chunks by themselves, in order: what is placed as one."""
        alike = groupby(range(len(self.chunks)), key=self._likeness)
        runs = [tuple(chunks) for _key, chunks in alike]
        return tuple(Task(run[0], len(run), self.sizes_bytes[run[0]]) for run in runs)

    def _likeness(self, chunk: int) -> tuple[int, int]:
        # A joined chunk shares its first tensor with no other.
        return self.chunks[chunk][0].tensor, self.sizes_bytes[chunk]


def make_layout(tensors: Sequence[Tensor]) -> Layout:
    """The layout of a model's trainable tensors, a tied one once.

    Raises:
        ConfigError: no tensor, one that can't be aggregated, or more than the limits above, in one line.
    """
    declared = tuple(tensors)
    problem = _problem(declared)
    if problem:
        raise ConfigError(problem)
    # A Farside that knows of none that is apart has the same digest where none is, and one that knows of no shapes too.
    fields = 5 if any(one.is_apart for one in declared) else 4
    encoded = msgspec.msgpack.encode((LAYOUT_VERSION, [msgspec.structs.astuple(one)[:fields] for one in declared]))
    if len(encoded) > DECLARATION_BYTES_MAX:
        raise ConfigError(f"the names and sizes of {len(declared)} tensors take {len(encoded)} bytes; 1 MiB can be had")
    if len(msgspec.msgpack.encode(declared)) > DECLARATION_BYTES_MAX:
        declared = tuple(msgspec.structs.replace(one, shape=()) for one in declared)
    chunk_bytes = CHUNK_BYTES
    while chunk_bytes <= CHUNK_BYTES_MAX:
        if _chunk_count(declared, chunk_bytes) <= CHUNKS_MAX:
            chunks = tuple(_chunks(declared, chunk_bytes))
            return Layout(tensors=declared, chunks=chunks, digest=hashlib.sha256(encoded).hexdigest())
        chunk_bytes *= 2
    raise ConfigError(
        f"the model has {sum(one.size_bytes for one in declared)} bytes, more than {CHUNKS_MAX} chunks of 1 MiB hold; "
        "aggregate it in parts"
    )


def _problem(tensors: tuple[Tensor, ...]) -> str:
    if not tensors:
        return "the model has no trainable tensor; there is nothing to aggregate"
    if len(tensors) > TENSORS_MAX:
        return f"the model has {len(tensors)} trainable tensors; {TENSORS_MAX} can be aggregated"
    names: set[str] = set()
    for one in tensors:
        if not 0 < len(one.name.encode(errors="surrogatepass")) <= NAME_BYTES_MAX:
            return f"tensor '{one.name:.40}': a name has 1 to {NAME_BYTES_MAX} bytes"
        if one.name in names:
            return f"tensor '{one.name}' is declared twice; declare a tied tensor once"
        if one.dtype not in ITEM_BYTES:
            return f"tensor '{one.name}' is of {one.dtype:.20}; formats that can be aggregated: {', '.join(ITEM_BYTES)}"
        if not 1 <= one.count <= COUNT_MAX:
            return f"tensor '{one.name}' has {one.count} elements; 1 to {COUNT_MAX} can be aggregated"
        if not 0 <= one.group < GROUPS_MAX:
            return (
                f"tensor '{one.name}' is in parameter group {one.group}; there may be {GROUPS_MAX}, from 0; "
                'farside.attach(..., update="worker") takes any number of them'
            )
        if one.shape and prod(one.shape) != one.count:
            return f"tensor '{one.name}' of shape {_shown(one.shape)} does not have {one.count} elements"
        names.add(one.name)
    return ""


def rule_problem(tensors: Sequence[Tensor], rule: str) -> str:
    """What speaks against this rule for these tensors, in one line; "" if nothing does."""
    if rule not in RULES:
        return f"'{rule:.20}' is no rule of aggregation; there are {', '.join(RULES)}"
    unfit = next((one for one in tensors if rule != "sum" and one.dtype in SUM_ONLY), None)
    return f"tensor '{unfit.name}' is of {unfit.dtype}, which can only be summed, not '{rule}'" if unfit else ""


def _chunk_count(tensors: tuple[Tensor, ...], chunk_bytes: int) -> int:
    # Without making them: a model that is far too large would make millions. Joined ones hold 64 KiB or more, but for
    # the last of each format and group, and those apart are as many as the tensors.
    large = sum(-(-one.size_bytes // chunk_bytes) for one in tensors if one.size_bytes >= JOIN_BYTES)
    return large + len(_joined(tensors))


def _joined(tensors: tuple[Tensor, ...]) -> dict[int, tuple[Piece, ...]]:
    """Joined chunks by the number of their first tensor."""
    done: dict[int, tuple[Piece, ...]] = {}
    open_ones: dict[tuple[str, int], list[Piece]] = {}
    held_bytes: dict[tuple[str, int], int] = {}
    for number, one in enumerate(tensors):
        if one.size_bytes >= JOIN_BYTES:
            continue
        if one.is_apart:
            done[number] = (Piece(number, 0, one.count),)
            continue
        key = one.dtype, one.group
        pieces = open_ones.setdefault(key, [])
        pieces.append(Piece(number, 0, one.count))
        held_bytes[key] = held_bytes.get(key, 0) + one.size_bytes
        if held_bytes[key] >= JOIN_BYTES:
            held_bytes[key] = 0
            done[pieces[0].tensor] = tuple(open_ones.pop(key))
    for pieces in open_ones.values():
        done[pieces[0].tensor] = tuple(pieces)
    return done


def _chunks(tensors: tuple[Tensor, ...], chunk_bytes: int) -> Iterator[tuple[Piece, ...]]:
    joined = _joined(tensors)
    for number, one in enumerate(tensors):
        if number in joined:
            yield joined[number]
        elif one.size_bytes >= JOIN_BYTES:
            items = chunk_bytes // ITEM_BYTES[one.dtype]
            for offset in range(0, one.count, items):
                yield (Piece(number, offset, min(items, one.count - offset)),)


def update_of(tensors: Sequence[Tensor], rule: str) -> str:
    """Which ``update`` of `farside.attach` declared these: "worker" or "server"; "": neither is known to have."""
    if tensors[:1] and tensors[0].name == WORKERS_OWN:
        return "worker"
    return "server" if rule in OPTIMIZERS else ""


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def first_difference(mine: Sequence[Tensor], theirs: Sequence[Tensor], *, them: str = "rank 0") -> str:
    """The first tensor that differs between two declarations, in one line; "" where none does."""
    for number, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one.name != other.name:
            return f"tensor {number} is '{one.name}' here and '{other.name}' at {them}"
        shapes = (one.shape, other.shape) if one.shape and other.shape else ((), ())
        for word, here, there in (
            ("shape", *map(_shown, shapes)),
            ("elements", one.count, other.count),
            ("format", one.dtype, other.dtype),
            ("parameter group", one.group, other.group),
            ("find_unused_parameters", one.is_apart, other.is_apart),
        ):
            if here != there:
                return f"tensor '{one.name}': {word} {here} here and {there} at {them}"
    if len(mine) > len(theirs):
        return f"tensor '{mine[len(theirs)].name}' is here and not at {them}"
    if len(mine) < len(theirs):
        return f"tensor '{theirs[len(mine)].name}' is at {them} and not here"
    return ""

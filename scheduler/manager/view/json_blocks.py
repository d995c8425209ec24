"""Cache of a long JSON list, in blocks: after a change only the blocks with changed records are encoded again. PURE.

How it works
  A record has a place, by which they are ordered. Its row, the record as JSON, is made once; the rows of some hundred
  places are kept joined as they stand in an answer. A change makes its block stale, and `renew` makes one stale block
  anew, so that who has others waiting can stop between two. `pieces` is an answer: the blocks themselves, none of them
  copied. Joined they were three megabytes of new memory for each answer, which took longer than all else.

  `version` grows with each change, so two answers of one version are the same.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

Record = TypeVar("Record")
_ENCODER = msgspec.json.Encoder()
NO_OTHERS: Mapping[int, bytes] = {}


@dataclass(slots=True)
class _Block(Generic[Record]):
    records: dict[int, Record] = field(default_factory=dict)
    rows: dict[int, bytes] = field(default_factory=dict)  # of those that are as they were
    body: bytes = b""  # a comma before each row


class Blocks(Generic[Record]):
    """Records by place. Each is frozen: what is the same object is the same."""

    def __init__(self, show: Callable[[Record], object], size: int) -> None:
        """``size``: places of a block."""
        self.version = 0
        self._show, self._size = show, size
        self._blocks: dict[int, _Block[Record]] = {}
        self._stale: set[int] = set()
        self._count = 0

    def __len__(self) -> int:
        """Number of records."""
        return self._count

    def put(self, place: int, record: Record) -> bool:
        """Puts a record into its place; whether there was none."""
        number = place // self._size
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        before = block.records.get(place)
        # Identity is enough: records are frozen, so a changed one is another object.
        if before is record:
            return False
        block.records[place] = record
        block.rows.pop(place, None)
        self._count += before is None
        self._change(number)
        return before is None

    def drop(self, place: int) -> bool:
        """Takes what is in a place away; whether there was something."""
        number = place // self._size
        block = self._blocks.get(number)
        if block is None or place not in block.records:
            return False
        del block.records[place]
        block.rows.pop(place, None)
        self._count -= 1
        self._change(number)
        return True

    def clear(self) -> None:
        """Takes all away."""
        self._blocks.clear()
        self._stale.clear()
        self._count = 0
        self.version += 1

    def _change(self, number: int) -> None:
        self._stale.add(number)
        self.version += 1

    def renew(self) -> bool:
        """Makes one stale block anew; False: none was stale."""
        if not self._stale:
            return False
        number = self._stale.pop()
        block = self._blocks[number]
        if not block.records:
            del self._blocks[number]
            return True
        for place in block.records.keys() - block.rows.keys():
            block.rows[place] = _ENCODER.encode(self._show(block.records[place]))
        block.body = _body(block.rows)
        return True

    def pieces(self, what: str, last: int, others: Mapping[int, bytes] = NO_OTHERS) -> tuple[bytes, ...]:
        """``{what: [...]}`` of the ``last`` records, in pieces; no block may be stale.

        ``others``: rows by place that stand there in this answer alone; only their blocks are joined anew for it.
        """
        assert not self._stale
        found: list[bytes] = []
        mixed = {place // self._size for place in others}
        # From the newest block backwards, until there are enough; the pieces are turned round at the end.
        for number in sorted(self._blocks, reverse=True):
            block, is_mixed = self._blocks[number], number in mixed
            rows = {at: others.get(at, row) for at, row in block.rows.items()} if is_mixed else block.rows
            if len(rows) > last:
                found += [b"," + rows[place] for place in sorted(rows, reverse=True)[:last]]
                break
            found.append(_body(rows) if is_mixed else block.body)
            last -= len(rows)
        head, tail = b'{"%b":[' % what.encode(), b"]}"
        if not found:
            return (head + tail,)
        found.reverse()
        # Each body begins with a comma; the first one of the answer is cut off.
        found[0] = head + found[0][1:]
        found[-1] += tail
        return tuple(found)


def _body(rows: Mapping[int, bytes]) -> bytes:
    return b"," + b",".join(map(rows.__getitem__, sorted(rows)))

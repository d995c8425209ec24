"""A worker of ps-lite, as MXNet 1.9.1 has it: ``python pslite_member.py``, with ps-lite's variables in the environment.

It runs in a virtual environment of its own, where nothing of Farside is. MXNet's last release is of 2021 and looks for
names that NumPy has dropped. As scheduler and server (``DMLC_ROLE``) the import alone serves, and never returns.
"""

import importlib
import warnings
from collections.abc import Mapping
from typing import Any

from benchmarks.aggregation.conversation import converse


class Keys:
    """A tensor a key; the server sums what all workers push, and gives the sum."""

    def __init__(self, mx: Any, kv: Any, order: Mapping[str, Any], known: set[int]) -> None:
        self._kv, self._rank, self._members = kv, kv.rank, kv.num_workers
        counts = order["counts"]
        self._keys = [order["first_key"] + tensor for tensor in range(len(counts))]
        self._pushed = [mx.ndarray.zeros((count,)) for count in counts]
        self._pulled = [mx.ndarray.zeros((count,)) for count in counts]
        fresh = [at for at, key in enumerate(self._keys) if key not in known]
        if fresh:
            kv.init([self._keys[at] for at in fresh], [self._pulled[at] for at in fresh])
        known.update(self._keys)
        mx.ndarray.waitall()

    def step(self) -> None:
        for tensor in reversed(range(len(self._keys))):
            self.push(tensor)
        self.wait()

    def push(self, tensor: int) -> None:
        # What is used first in the next forward pass goes first, as MXNet's own trainer has it.
        self._kv.push(self._keys[tensor], self._pushed[tensor], priority=-tensor)
        self._kv.pull(self._keys[tensor], out=self._pulled[tensor], priority=-tensor)

    def wait(self) -> None:
        for pulled in self._pulled:
            pulled.wait_to_read()

    def check(self) -> None:
        for pushed in self._pushed:
            pushed[:] = self._rank + 1
        self.step()
        expected = self._members * (self._members + 1) / 2
        if not all(float(pulled[0].asscalar()) == float(pulled[-1].asscalar()) == expected for pulled in self._pulled):
            raise ValueError("a sum is wrong")
        # On one CPU what is pulled may share memory with what was pushed, so that anything else would grow.
        for pushed in self._pushed:
            pushed[:] = 0
            pushed.wait_to_read()

    def close(self) -> None:
        self._pushed.clear()
        self._pulled.clear()


def main() -> None:
    np = importlib.import_module("numpy")
    warnings.simplefilter("ignore")
    for name, kind in (("bool", bool), ("object", object), ("int", int), ("float", float)):
        setattr(np, name, kind)
    mx = importlib.import_module("mxnet")
    kv = mx.kv.create("dist_sync")
    known: set[int] = set()
    converse(lambda order: Keys(mx, kv, order, known))


if __name__ == "__main__":
    main()

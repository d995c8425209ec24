"""What a measured process is told and says: JSON, a line each way.

Peers' members import it in environments of their own, so it needs nothing but Python. Orders: ``prepare`` (allocate,
connect, and check one exchange), ``run`` (so many exchanges, timed as a whole), ``train`` (iterations of a timer that
stands for the GPU, timed one by one), ``save`` (a checkpoint), ``release``.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


class Exchange(Protocol):
    """Tensors of one workload, at one member."""

    def step(self) -> None:
        """Pushes all, and returns when all results are here."""
        ...

    def push(self, tensor: int) -> None:
        """A tensor's gradient is ready; in an iteration they come in descending order."""
        ...

    def wait(self) -> None:
        """Returns when all results are here."""
        ...

    def check(self) -> None:
        """One exchange of known values, whose results are compared.

        Raises:
            ValueError: A result is wrong.
        """
        ...

    def close(self) -> None:
        """Gives everything back."""
        ...


@runtime_checkable
class Saved(Protocol):
    """An exchange of which there can be a checkpoint."""

    def save(self, path: str) -> None:
        """Writes it; on the disk when this returns."""
        ...


def converse(prepare: Callable[[Mapping[str, Any]], Exchange]) -> None:
    """Obeys orders until standard input ends; what libraries print goes to standard error."""
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    exchange: Exchange | None = None
    _say(told, {"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            match order["do"]:
                case "prepare":
                    exchange = prepare(order)
                    exchange.check()
                case "run" if exchange:
                    answer["seconds"] = _run(exchange, order["steps"])
                case "train" if exchange:
                    answer["steps_s"] = _train(exchange, order)
                case "release" if exchange:
                    exchange.close()
                    exchange = None
                case "save":
                    _save(exchange, order["path"])
        except Exception as error:  # the other side is told, and ends this process
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        _say(told, answer)


def _say(told: Any, answer: Mapping[str, Any]) -> None:
    told.write(json.dumps(answer) + "\n")
    told.flush()


def _save(exchange: object, path: str) -> None:
    if not isinstance(exchange, Saved):
        raise TypeError("of this exchange there is no checkpoint")
    exchange.save(path)


def _run(exchange: Exchange, steps: int) -> float:
    begun_s = time.perf_counter()
    for _ in range(steps):
        exchange.step()
    return time.perf_counter() - begun_s


def _train(exchange: Exchange, order: Mapping[str, Any]) -> list[float]:
    """Seconds of each iteration: a third of ``compute_s`` forward, then gradients become ready by their bytes."""
    counts: Sequence[int] = order["counts"]
    compute_s, total = order["compute_s"], sum(counts)
    time.sleep(order.get("after_s", 0.0))
    steps_s: list[float] = []
    begun_s = time.perf_counter()
    for _ in range(order["steps"]):
        ready_s = begun_s + compute_s / 3
        for tensor in reversed(range(len(counts))):
            ready_s += compute_s * 2 / 3 * counts[tensor] / total
            _sleep_until(ready_s)
            exchange.push(tensor)
        exchange.wait()
        now_s = time.perf_counter()
        steps_s.append(now_s - begun_s)
        begun_s = now_s
    return steps_s


def _sleep_until(at_s: float) -> None:
    left_s = at_s - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)

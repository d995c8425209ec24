"""The planner: plans in a process of its own, so that the doors' event loop never waits for a decision.

The process ends with its standard input, so it does not outlive the front.
"""

import asyncio
import base64
import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from farside.errors import FarsideError
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Glet, Plan, Refusal
from farside.scheduler.sharing.glet.profile import DeviceProfile, ModelProfile, slowed
from farside.scheduler.sharing.glet.scaling import Asking, enough
from farside.scheduler.sharing.glet.size import Sizes

PLAN_LIMIT_S = 10.0
LINE_BYTES_MAX = 1 << 24
SCHEDULER = "glet+int"
_GPUS_LOOKED = 64

T = TypeVar("T")


class PlannerError(FarsideError):
    """The planner has no answer."""


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    rates: dict[str, float]
    gpus: int
    slower: dict[str, float] = {}
    is_explained: bool = False


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    glets: tuple[Glet, ...] = ()
    refused: tuple[str, float, str] | None = None
    enough: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan or a refusal; ``enough``: GPUs that would do, 0 where that was not asked or none would."""

    found: Plan | Refusal
    enough: int = 0


class Planner:
    """Plans for models on a kind of device; one question at a time.

    Args:
        models: By name, with their SLOs.
        device: What they run on.
    """

    def __init__(self, models: Mapping[str, ModelProfile], device: DeviceProfile) -> None:
        self._tables = base64.b64encode(pickle.dumps((dict(models), device))) + b"\n"
        self._process: asyncio.subprocess.Process | None = None

    async def plan(
        self, rates: Mapping[str, float], gpus: int, slower: Mapping[str, float], *, is_explained: bool = False
    ) -> Planned:
        """The fewest GPUs, of at most ``gpus``, for planned rates.

        Args:
            rates: Requests a second by model.
            gpus: GPUs that there are.
            slower: How many times as long as in the profile a model's batches take, where that is not once.
            is_explained: Whether a refusal is to say how many GPUs would do.

        Raises:
            PlannerError: It gave none within PLAN_LIMIT_S; the next question goes to a new process.
        """
        asked = (
            msgspec.json.encode(_Asked(rates=dict(rates), gpus=gpus, slower=dict(slower), is_explained=is_explained))
            + b"\n"
        )
        try:
            async with asyncio.timeout(PLAN_LIMIT_S):
                process = await self._started()
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(asked)
                await process.stdin.drain()
                line = await process.stdout.readline()
            answer = msgspec.json.decode(line, type=_Answer)
        except (OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            await self.close()
            raise PlannerError(f"no plan within {PLAN_LIMIT_S:g} s: {type(error).__name__}") from error
        if answer.refused is not None:
            model, left, why = answer.refused
            return Planned(found=Refusal(model=model, left=left, why=why), enough=answer.enough)
        return Planned(found=Plan(glets=answer.glets))

    async def close(self) -> None:
        """Ends its process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.communicate()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "farside.serve.planner", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                limit=LINE_BYTES_MAX, start_new_session=True,
            )  # fmt: skip
            assert self._process.stdin is not None
            self._process.stdin.write(self._tables)
        return self._process


async def answered(planner: Planner, asking: Asking[T], gpus: int, slower: Mapping[str, float]) -> T:
    """What comes of a decision for which a planner makes the plans; past PLAN_LIMIT_S it is asked for none.

    Args:
        planner: Makes them, while the event loop goes on.
        asking: The decision.
        gpus: GPUs that there are.
        slower: As in `Planner.plan`.

    Raises:
        PlannerError: It has no answer to the first question. To a later one that is as if it had no plan.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + PLAN_LIMIT_S
    try:
        found = (await planner.plan(next(asking), gpus, slower)).found
        while True:
            rates = asking.send(found)
            found = Refusal(model="", left=0.0, why="there is no time for it")
            if loop.time() < until_s:
                with suppress(PlannerError):
                    found = (await planner.plan(rates, gpus, slower)).found
    except StopIteration as end:
        decided: T = end.value
        return decided


def sizes_of(models: Mapping[str, ModelProfile], device: DeviceProfile, slower: Mapping[str, float]) -> Sizes:
    """Models and device for plans; ``slower``: how many times as long as in its profile a model takes."""
    seen = {name: slowed(model, slower[name]) if name in slower else model for name, model in models.items()}
    return SCHEDULERS[SCHEDULER].sizes(seen, device)


def main() -> None:
    """Reads tables, then questions, from standard input; writes a line for each question."""
    models, device = pickle.loads(base64.b64decode(sys.stdin.buffer.readline()))  # noqa: S301 - from our own parent
    slower: Mapping[str, float] = {}
    sizes = sizes_of(models, device, slower)
    for line in sys.stdin.buffer:
        asked = msgspec.json.decode(line, type=_Asked)
        if asked.slower != slower:
            slower = asked.slower
            sizes = sizes_of(models, device, slower)
        sys.stdout.buffer.write(msgspec.json.encode(_answered(sizes, asked)) + b"\n")
        sys.stdout.buffer.flush()


def _answered(sizes: Sizes, asked: _Asked) -> _Answer:
    found = SCHEDULERS[SCHEDULER].plan(sizes, asked.rates, asked.gpus)
    if isinstance(found, Plan):
        return _Answer(glets=found.glets)
    count = enough(sizes, asked.rates, asked.gpus, _GPUS_LOOKED) if asked.is_explained else None
    return _Answer(refused=(found.model, found.left, found.why), enough=count or 0)


if __name__ == "__main__":
    main()

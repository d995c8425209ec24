"""Node service `rest`: turns CPUs and GPUs of this node down while it stays on and has nothing to do.

The manager says after how much idle time, or that the node may not, since a job is on its way, or the node is closed.
What is turned down is the owner's to say: the setting ``rest``. A rest ends as soon as anything comes: a task that is
to start, another order, something of others at a service, the end of the agent. What was set before is in a file by
then (`agent/rest/saver.py`), which the next agent goes by if this one was killed. What can't be turned up again is
tried until it can, each second, whatever the settings say by then. A node that stays turned down takes no new jobs.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress

import msgspec

from farside.agent import messages as m
from farside.agent.rest.rules import Rest, RestCommand, next_rest
from farside.agent.rest.saver import RestHand
from farside.agent.service.service import NodeService
from farside.clock import Clock
from farside.errors import FarsideError
from farside.log import get_log

PERIOD_S = 1.0
RETRY_S = 300.0
"""Before a node that could not turn something down tries again: why is read by people."""

UNFIT_S = 60.0
"""For so long it is tried to turn a node up before it takes no new jobs: what lasts a moment needs no operator."""

_STUCK = "this node's CPUs or GPUs could not be turned up again, and jobs run slower here"
_log = get_log("agent.rest")
_ENCODER = msgspec.json.Encoder()
_ORDER = msgspec.json.Decoder(m.RestOrder)


class RestService(NodeService):
    """The service ``rest``.

    Args:
        hand: Turns this node's settings down and up.
        is_idle: Whether nothing is on the node: no task, and nothing of others at a service.
    """

    name = m.REST
    version = 1

    def __init__(self, hand: RestHand, *, is_idle: Callable[[], bool], clock: Clock) -> None:
        self._hand, self._is_idle, self._clock = hand, is_idle, clock
        self._order = m.RestOrder()
        self._rest = Rest()
        self._problem, self._is_stuck, self._stuck_since_s = "", False, clock.now_s()
        self._retry_at_s = clock.now_s()
        self._is_called = False  # something has come since the last look
        self._wake = asyncio.Event()

    def facts(self) -> bytes:
        """Its `RestFacts`."""
        return _ENCODER.encode(
            m.RestFacts(
                rests=self._rest.is_resting, turns_down=self._hand.names, problem=self._problem[: m.CAUSE_CHARS_MAX]
            )
        )

    def obey(self, order: msgspec.Raw) -> None:
        """When it may rest, a `RestOrder`. Another one than before ends a rest: something has come, or has ended."""
        told = _ORDER.decode(order)
        if told != self._order:
            self._order = told
            self.come()

    def come(self) -> None:
        """Ends a rest, as something comes; idle time begins anew."""
        self._is_called = True
        self._wake.set()

    def metrics(self) -> Mapping[str, float]:
        """Whether it rests, and whether it is turned down although it should not be."""
        return {"resting": float(self._rest.is_resting), "stuck": float(self._is_stuck)}

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do: this node turns something down, or has something to turn up."""
        return bool(self._hand.names) or self._hand.has_record

    def drained(self) -> bool:
        """Always: it has nothing of others."""
        return True

    def unfit(self) -> str:
        """Why it takes no new jobs: it is turned down since `UNFIT_S`, although it should not be."""
        return self._problem if self._is_stuck and self._clock.now_s() - self._stuck_since_s >= UNFIT_S else ""

    async def begin(self) -> None:
        """Puts back what an agent that was killed has left turned down. Before any task starts."""
        if not await self._do(self._hand.resume):
            self._stay_down()

    async def run(self) -> None:
        """Turns down and up, until it is cancelled."""
        while self._hand.names or self._rest.is_resting:
            self._wake.clear()
            await self.look()
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._wake.wait()

    async def look(self) -> None:
        """One look at the node, and what follows."""
        now_s, is_called, self._is_called = self._clock.now_s(), self._is_called, False
        is_idle = self._is_idle() and not is_called
        after_s = self._order.after_s if now_s >= self._retry_at_s or self._rest.is_resting else None
        rest, command = next_rest(self._rest, is_idle=is_idle, now_s=now_s, after_s=after_s)
        if command is None:
            self._rest = rest
            return
        is_down = command is RestCommand.REST
        if await self._do(self._hand.rest if is_down else self._hand.resume):
            # What has come meanwhile is seen by the next look, which begins at once.
            self._rest = rest
            _log.info("idle node turned down" if is_down else "node turned up", what=",".join(self._hand.names))
        elif is_down and not self._hand.has_record:
            self._retry_at_s = now_s + RETRY_S
        else:
            self._stay_down()

    async def close(self) -> None:
        """Ends a rest with the agent, also one that is just being begun."""
        if await self._do(self._hand.end):
            self._rest = Rest()

    def _stay_down(self) -> None:
        """Something is turned down and should not be: the next look turns it up."""
        self._retry_at_s = self._clock.now_s() + RETRY_S
        self._rest, self._is_called = Rest(is_resting=True, since_s=self._clock.now_s()), True

    async def _do(self, turn: Callable[[], None]) -> bool:
        try:
            await asyncio.to_thread(turn)
        except (FarsideError, OSError, ValueError) as error:  # whatever is wrong there: tasks go on
            self._note(str(error), is_stuck=self._hand.has_record)
            return False
        self._note("", is_stuck=False)
        return True

    def _note(self, why: str, *, is_stuck: bool) -> None:
        problem = f"{_STUCK}: {why}" if is_stuck else why
        if problem and problem != self._problem:  # once, and not with each try
            if is_stuck:
                _log.error(_STUCK, why=why)
            else:
                _log.warning("this node cannot rest", why=why)
        if is_stuck and not self._is_stuck:
            self._stuck_since_s = self._clock.now_s()
        self._problem, self._is_stuck = problem, is_stuck

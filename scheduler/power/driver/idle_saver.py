"""Interface of idle savers: settings of a node that save power while the node is on and idle."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from farside.errors import FarsideError
from farside.scheduler.power.idle_saving import RestCommand


class Saver(Protocol):
    """A knob of this very machine. Both calls may be repeated: the second one changes nothing.

    Raises:
        Unavailable: This machine lacks it, or does not let us.
    """

    @property
    def name(self) -> str:
        """As logs call it."""
        ...

    def rest(self) -> None:
        """Turns it down, and remembers what it was."""
        ...

    def resume(self) -> None:
        """Turns it back to what it was."""
        ...


class Savers:
    """All knobs of this machine together: all of them turned down, or none."""

    def __init__(self, savers: Sequence[Saver]) -> None:
        self._savers = tuple(savers)

    async def __call__(self, node: str, command: RestCommand) -> None:
        """Carries out a rest of this node.

        Raises:
            FarsideError: A knob did not turn. After REST the others are as they were, after RESUME turned back.
        """
        await asyncio.to_thread(self._rest if command is RestCommand.REST else self._resume)

    def _rest(self) -> None:
        try:
            for saver in self._savers:
                saver.rest()
        except FarsideError:
            with suppress(FarsideError):  # the first reason is the one to tell
                self._resume()
            raise

    def _resume(self) -> None:
        failed: list[FarsideError] = []
        for saver in self._savers:
            try:
                saver.resume()
            except FarsideError as error:
                failed.append(error)
        if failed:
            raise failed[0]

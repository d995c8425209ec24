"""Interface of idle savers: settings of a node that save power while the node is on and idle."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from farside.errors import FarsideError
from farside.scheduler.power.idle_saving import RestCommand


class Saver(Protocol):
    """One setting of this machine that saves power. A repeated call changes nothing.

    Raises:
        Unavailable: This machine lacks it, or does not let us.
    """

    @property
    def name(self) -> str:
        """Name for logs."""
        ...

    def rest(self) -> None:
        """Lower the setting, and remember the old value."""
        ...

    def resume(self) -> None:
        """Restore the old value."""
        ...


class Savers:
    """All idle savers of this machine together: all are on, or none."""

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

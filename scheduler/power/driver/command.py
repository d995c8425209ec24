"""Power driver that calls a program of the site: for power strips, hypervisors or a provider's API.

It is called as ``PROGRAM... ACTION NODE`` with ACTION one of on, soft-off, off, status, reading. Exit status 0 means
done. ``status`` prints on or off; ``reading`` prints watts, or nothing where nobody knows. It must not go on working
after it has ended, and is killed with all its children when it takes too long.
"""

import math
from dataclasses import dataclass

from farside.errors import PeerError
from farside.scheduler.power.driver.run_program import run_program
from farside.scheduler.power.state import Power


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDriver:
    """Driver by a program. ``program``: the program and its first arguments."""

    node: str
    program: tuple[str, ...]
    limit_s: float = 20.0

    async def on(self) -> None:
        """Calls the hook with ``on``."""
        await self._call("on")

    async def soft_off(self) -> None:
        """Calls the hook with ``soft-off``."""
        await self._call("soft-off")

    async def off(self) -> None:
        """Calls the hook with ``off``."""
        await self._call("off")

    async def status(self) -> Power:
        """What the hook prints."""
        said = (await self._call("status")).lower()
        if said not in ("on", "off"):
            raise PeerError(f"{self.node}: {self.program[0]} status says {said[:40]!r}", hint="let it print on or off")
        return Power(said)

    async def reading_w(self) -> float | None:
        """What the hook prints, or None where it prints nothing."""
        said = await self._call("reading")
        try:
            watts = float(said) if said else None
        except ValueError:
            watts = math.nan
        if watts is not None and not 0 <= watts < 1e6:
            raise PeerError(f"{self.node}: {self.program[0]} reading says {said[:40]!r}", hint="let it print watts")
        return watts

    async def _call(self, action: str) -> str:
        argv = [*self.program, action, self.node]
        try:
            done = await run_program(argv, limit_s=self.limit_s)
        except PeerError as error:
            raise PeerError(f"{self.node}: {action}: {error}") from error
        if done.status:
            hint = f"run it by hand: {' '.join(argv)}"
            raise PeerError(f"{self.node}: {self.program[0]} {action} failed: {done.complaint()}", hint=hint)
        return done.stdout.strip()

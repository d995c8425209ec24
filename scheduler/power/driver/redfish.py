"""Redfish power driver, by sushy, which is imported on first use.

sushy blocks, so each call has a thread. A thread cannot be killed; instead every request has a limit, which is that of
the whole call, as a slow BMC is slow at its first answer; and an order is sent only while there is time for its answer.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from farside.errors import PeerError, Unavailable
from farside.scheduler.power.driver.secret import read_secret
from farside.scheduler.power.state import Power

T = TypeVar("T")

# root, session or collection, system, chassis, power: what the longest call asks for
_REQUESTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RedfishDriver:
    """A BMC that speaks Redfish.

    Attributes:
        node: As messages name it.
        url: Of the BMC: ``https://bmc7``.
        user: Its login there.
        password_file: Holds the password in its first line; readable by its owner alone.
        system: The system's path, ``/redfish/v1/Systems/1``; empty: the only one that the BMC has.
        ca_file: Certificates to trust; None: those of this machine.
        verify: False trusts any certificate: for BMCs on a network of their own.
        limit_s: For one call.
    """

    node: str
    url: str
    user: str
    password_file: Path
    system: str = ""
    ca_file: Path | None = None
    verify: bool = True
    limit_s: float = 25.0

    async def on(self) -> None:
        """Orders power on."""
        await self._reset("RESET_ON", "RESET_FORCE_ON")

    async def soft_off(self) -> None:
        """Asks for a shutdown, by the power button where the BMC knows no other way."""
        await self._reset("RESET_GRACEFUL_SHUTDOWN", "RESET_PUSH_POWER_BUTTON")

    async def off(self) -> None:
        """Cuts the power."""
        await self._reset("RESET_FORCE_OFF")

    async def status(self) -> Power:
        """What the BMC says of the power; one that is changing is unknown."""
        said = await self._in_thread("status", lambda system, _: system.power_state)
        text = str(getattr(said, "value", said)).lower()
        return Power(text) if text in ("on", "off") else Power.UNKNOWN

    async def reading_w(self) -> float | None:
        """Power reading of the first chassis that has one; None without any."""
        return await self._in_thread("reading", lambda system, _: _watts(system))

    async def _reset(self, *names: str) -> None:
        def reset(system: Any, deadline_s: float) -> None:
            sushy = _sushy()
            allowed = system.get_allowed_reset_system_values()
            wanted = [getattr(sushy, name) for name in names]
            chosen = next((one for one in wanted if one in allowed), wanted[0])
            if time.monotonic() > deadline_s - self.limit_s / _REQUESTS:
                raise TimeoutError
            system.reset_system(chosen)

        await self._in_thread(names[0].removeprefix("RESET_").replace("_", " ").lower(), reset)

    async def _in_thread(self, action: str, use: Callable[[Any, float], T]) -> T:
        sushy = _sushy()
        deadline_s = time.monotonic() + self.limit_s

        def call() -> T:
            return use(self._connect(sushy), deadline_s)

        try:
            async with asyncio.timeout(self.limit_s):
                return await asyncio.to_thread(call)
        except TimeoutError:
            raise PeerError(f"{self.node}: {self.url} has not answered {action} in {self.limit_s:g} s") from None
        except sushy.exceptions.SushyError as error:
            said = " ".join(str(error).split())[:200]
            raise PeerError(f"{self.node}: {action} by {self.url} failed: {said}", hint="look at the BMC") from error

    def _connect(self, sushy: Any) -> Any:
        verify: bool | str = str(self.ca_file) if self.ca_file and self.verify else self.verify
        root = sushy.Sushy(
            self.url, verify=verify, auth=sushy.auth.BasicAuth(self.user, read_secret(self.password_file)),
            server_side_retries=0, read_timeout=self.limit_s, connect_timeout=self.limit_s / _REQUESTS,
        )  # fmt: skip
        return root.get_system(self.system or None)


def _sushy() -> Any:
    try:
        import sushy
    except ImportError as error:
        raise Unavailable("Redfish needs the Python package sushy", hint="pip install sushy") from error
    # It writes what it sends, which may hold secrets, into its debug log.
    logging.getLogger("sushy").setLevel(logging.WARNING)
    return sushy


def _watts(system: Any) -> float | None:
    for chassis in system.chassis:
        try:
            controls = (chassis.power.json or {}).get("PowerControl") or ()
        except _sushy().exceptions.SushyError:
            continue  # a chassis without the Power resource
        for control in controls:
            watts = control.get("PowerConsumedWatts")
            if isinstance(watts, int | float):
                return float(watts)
    return None

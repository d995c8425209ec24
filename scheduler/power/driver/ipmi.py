"""IPMI 2.0 power driver over the network, by ipmitool.

The cipher suite is named (``-C``): without it ipmitool 1.8.19 asks the BMC for its list first, and hangs with those
that ignore the question. The password goes in a file (``-f``), so that no process list shows it.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from farside.errors import PeerError
from farside.scheduler.power.driver.run_program import Finished, run_program
from farside.scheduler.power.driver.secret import check_secret
from farside.scheduler.power.state import Power

_READING = re.compile(r"Instantaneous power reading\s*:\s*(\d+(?:\.\d+)?)\s*Watts", re.IGNORECASE)
_STATUS = re.compile(r"Chassis Power is (on|off)", re.IGNORECASE)
SENDS = 4
"""Of each message to a BMC: UDP loses some."""
LIMIT_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class IpmiDriver:
    """Driver for a BMC with IPMI.

    Attributes:
        node: As messages name it.
        host: Of the BMC, with its UDP ``port``.
        user: Its login there.
        password_file: Holds the password in its first line; readable by its owner alone.
        cipher: Suite number; 3 is what every IPMI 2.0 BMC has, 17 is stronger.
        limit_s: For one call, retries included.
    """

    node: str
    host: str
    user: str
    password_file: Path
    port: int = 623
    cipher: int = 3
    limit_s: float = 20.0

    async def on(self) -> None:
        """Orders power on."""
        await self._chassis("on")

    async def soft_off(self) -> None:
        """Asks for a shutdown by ACPI."""
        await self._chassis("soft")

    async def off(self) -> None:
        """Cuts the power."""
        await self._chassis("off")

    async def status(self) -> Power:
        """What the BMC says of the power."""
        said = (await self._chassis("status")).stdout
        found = _STATUS.search(said)
        if found is None:
            raise PeerError(f"{self.node}: its BMC says {said.strip()[:80]!r} of its power", hint=f"ask {self.host}")
        return Power(found.group(1).lower())

    async def reading_w(self) -> float | None:
        """By DCMI; None where the BMC has none."""
        check_secret(self.password_file)
        done = await run_program(self._argv("dcmi", "power", "reading"), limit_s=self.limit_s)
        found = _READING.search(done.stdout)
        return float(found.group(1)) if done.status == 0 and found else None

    async def _chassis(self, action: str) -> Finished:
        check_secret(self.password_file)
        try:
            done = await run_program(self._argv("chassis", "power", action), limit_s=self.limit_s)
        except PeerError as error:
            raise PeerError(f"{self.node}: no answer from {self.host} to power {action}: {error}") from error
        if done.status:
            hint = f"try ipmitool -I lanplus -C {self.cipher} -H {self.host} -p {self.port} by hand"
            raise PeerError(f"{self.node}: power {action} by {self.host} failed: {done.complaint()}", hint=hint)
        return done

    def _argv(self, *command: str) -> list[str]:
        return [
            "ipmitool", "-I", "lanplus", "-C", str(self.cipher), "-H", self.host, "-p", str(self.port),
            "-U", self.user, "-f", str(self.password_file), "-N", str(first_wait_s(self.limit_s)), "-R", str(SENDS),
            *command,
        ]  # fmt: skip


def first_wait_s(limit_s: float) -> int:
    """How long ipmitool waits for a reply before it asks again, and each time a second longer.

    `SENDS` of these are nearly the limit: a BMC that takes ten seconds to come to itself is not one that failed, and of
    one that says nothing ipmitool should tell by itself before it is ended.
    """
    return max(1, math.floor(limit_s * LIMIT_SHARE / SENDS - (SENDS - 1) / 2))

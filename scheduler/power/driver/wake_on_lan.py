"""Wake-on-LAN power driver, for nodes without a BMC.

The node's card must be told to listen (`ethtool -s eth0 wol g`, and the firmware's setting), and the packet must reach
its network: a broadcast goes no further than that. It is softly off by its agent, or by a program of the site's own
that is called as ``PROGRAM... soft-off NODE``. Nothing can cut its power, and nothing measures it.

Nobody tells whether such a node is on. What answers at ``address``, even with a refusal, is; what does not is called
off, and the manager believes that only of a node whose agent has fallen silent too. So a node that hangs looks like one
that is off, and fails once it is to be woken.
"""

import asyncio
import errno
import re
import socket
from dataclasses import dataclass

from farside.endpoint import parse_address
from farside.errors import PeerError
from farside.scheduler.power.driver.command import CommandDriver
from farside.scheduler.power.state import Power

COPIES = 3
"""Of the packet: nobody acknowledges one, and one may be lost."""
PROBE_SHARE = 0.8
_MAC = re.compile(r"(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeOnLanDriver:
    """Driver for a node that wakes on magic packets.

    Attributes:
        node: As messages name it.
        mac: Of its card.
        address: HOST:PORT of something that answers while it is on; its sshd will do.
        broadcast: Where the packet goes; better the broadcast address of the card's network.
        port: UDP; 9 (discard) and 7 are usual, and the card does not look at it.
        program: Shuts it down, called with ``soft-off NODE``; empty: its agent does.
        limit_s: For one call; a node that does not answer within most of it is off.
    """

    node: str
    mac: str
    address: str
    broadcast: str = "255.255.255.255"
    port: int = 9
    program: tuple[str, ...] = ()
    limit_s: float = 5.0

    def __post_init__(self) -> None:
        if _MAC.fullmatch(self.mac) is None:
            raise ValueError(f"mac is {self.mac!r:.40}, and not like 52:54:00:12:34:56")
        parse_address(self.address)

    async def on(self) -> None:
        """Send the packet; a node that is on ignores it."""
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                for _ in range(COPIES):
                    sock.sendto(magic_packet(self.mac), (self.broadcast, self.port))
        except OSError as error:
            said = error.strerror or str(error)
            raise PeerError(f"{self.node}: no packet goes to {self.broadcast}: {said}", hint="set broadcast") from error

    async def soft_off(self) -> None:
        """Call the program for a soft power-off, if one is set; the manager asks the agent itself."""
        if not self.program:
            hint = "a manager shuts it down by its agent; or set program"
            raise PeerError(f"{self.node}: it cannot be shut down", hint=hint)
        await CommandDriver(node=self.node, program=self.program, limit_s=self.limit_s).soft_off()

    async def off(self) -> None:
        """Nothing can.

        Raises:
            PeerError: always.
        """
        raise PeerError(f"{self.node}: Wake-on-LAN can't cut its power", hint="look at the node")

    async def status(self) -> Power:
        """On while it answers, off while it does not."""
        host, port = parse_address(self.address)
        try:
            async with asyncio.timeout(self.limit_s * PROBE_SHARE):
                _, writer = await asyncio.open_connection(host, port)
        except (ConnectionRefusedError, ConnectionResetError):
            return Power.ON
        except socket.gaierror as error:
            raise PeerError(f"{self.node}: {host} is no known name", hint="write its address as a number") from error
        except (TimeoutError, OSError) as error:
            if isinstance(error, TimeoutError) or error.errno in (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT):
                return Power.OFF
            raise PeerError(f"{self.node}: {self.address}: {error.strerror or error}") from error
        writer.close()
        return Power.ON

    async def reading_w(self) -> float | None:
        """None: nothing measures it."""
        return None


def magic_packet(mac: str) -> bytes:
    """What wakes the card of this address: six times 0xff, and sixteen times itself."""
    return b"\xff" * 6 + bytes.fromhex(re.sub("[:-]", "", mac)) * 16

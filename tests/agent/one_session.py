"""One connection of an agent in the test's own process, with a node that does nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

from farside.agent import messages as m
from farside.agent.run.ledger import Command
from farside.agent.session import ManagerAddress, Node, Session
from farside.clock import RealClock
from farside.tls import TlsFiles
from tests.agent.fake_manager import TOKEN
from tests.agent.frames import HELLO


class Hurried(RealClock):
    """Short waits are a turn of the loop, so that a test can count the turns up to any moment in them."""

    async def sleep_until_s(self, when_s: float) -> None:
        if when_s - self.now_s() < 0.05:
            await asyncio.sleep(0)
        else:
            await super().sleep_until_s(when_s)


async def no_problem(probe: m.Probe) -> m.Probed:
    return m.Probed(probe_id=probe.probe_id)


def nothing(*_: object) -> None:
    pass


def session(
    folder: Path,
    url: str,
    *,
    take: Callable[[Command, bool], None] = nothing,
    probe: Callable[[m.Probe], Awaitable[m.Probed]] = no_problem,
    takes_unproved: bool = False,
    hurries: bool = False,
) -> Session:
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)

    async def read() -> m.Reading:
        return m.Reading(at_s=1.0, headroom_bytes=0, psi=m.Psi(), gpus=())

    async def no_power_off(order: m.PowerOff) -> None:
        raise AssertionError(order)

    return Session(
        ManagerAddress(url=url, token_file=token, state_dir=folder, tls=TlsFiles(), takes_unproved=takes_unproved),
        Node(
            hello=lambda: HELLO,
            read=read,
            take=take,
            probe=probe,
            donors=nothing,
            lending=nothing,
            service=nothing,
            power_off=no_power_off,
            seen_generation=lambda _: 0,
            welcomed=nothing,
            hurries=lambda: hurries,
        ),
        clock=Hurried(),
        rng=Random(1),
        period_s=60.0,
        reconnect_s=0.1,
    )


async def until_connected(made: Session) -> None:
    async with asyncio.timeout(60):
        while not made.is_connected:
            await asyncio.sleep(0.005)

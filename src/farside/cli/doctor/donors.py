"""Checks of `farside doctor` on donors: reachable, same key, same slab size."""

import asyncio
from collections.abc import Iterator, Sequence

from farside.blockdev.donor.dial import open_control
from farside.blockdev.peers_file import DonorAddress, read_peers
from farside.config import BlockdevConfig
from farside.daemon.control.keys import read_keys
from farside.daemon.control.messages import Feature
from farside.errors import ConfigError, FarsideError, PeerError
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.rdma.devices import devices
from farside.units import format_bytes

LIMIT_S = 3.0  # for each donor, all asked at once


def donor_checks(config: BlockdevConfig) -> Iterator[Check]:
    """One line for each donor, none where key or donors can't be read: other checks say so."""
    try:
        keys, addresses = read_keys(config.key_file), read_peers(config.peers_file)
    except ConfigError:
        return
    yield from asyncio.run(_ask_all(config, keys, addresses))


def transport_check(config: BlockdevConfig) -> Iterator[Check]:
    """Settings that want RDMA or nothing, on a machine without a device."""
    if config.transport == "rdma" and not devices():
        yield Check(
            name="transport",
            outcome=Outcome.FAILED,
            found="transport = 'rdma', and this machine has no RDMA device: every page would go to the second copy",
            advice="transport = 'auto'; or a card's driver, or rdma link add rxe0 type rxe netdev eth0",
        )


async def _ask_all(config: BlockdevConfig, keys: tuple[bytes, ...], addresses: Sequence[DonorAddress]) -> list[Check]:
    # `_ask` makes a check of each failure, so that one donor does not end the questions to the others.
    return list(await asyncio.gather(*(_ask(config, keys, address) for address in addresses)))


async def _ask(config: BlockdevConfig, keys: tuple[bytes, ...], address: DonorAddress) -> Check:
    where = f"{address.node} at {address.control}"
    try:
        async with asyncio.timeout(LIMIT_S):
            channel, welcome = await open_control(
                address.control, keys=keys, node="doctor", session=0, features=Feature.NONE
            )
        channel.close()
    except PeerError as error:
        if "key" in str(error):
            advice = f"copy {config.key_file} of one machine to the other"
            return _wrong(f"{where} knows none of our keys", advice)
        return _lack(f"{where}: {error}", "look at its log")
    except (OSError, TimeoutError) as error:
        reason = getattr(error, "strerror", None) or f"no answer within {LIMIT_S:g} s"
        return _lack(f"{where}: {reason}", "is `farside daemon` running there, and the way open (port 7677)?")
    except FarsideError as error:
        return _lack(f"{where}: {error}", "is it a Farside donor of a version that fits?")
    if welcome.slab_bytes != config.slab_bytes:
        sizes = f"{format_bytes(welcome.slab_bytes)}, ours have {format_bytes(config.slab_bytes)}"
        return _wrong(f"{where} has slabs of {sizes}", "set slab_bytes to the same on all machines")
    return Check(name="donor", outcome=Outcome.OK, found=f"{where} answers, and knows our key")


def _wrong(found: str, advice: str) -> Check:
    # Settings that do not fit: it is there, and will never lend us anything as it is.
    return Check(name="donor", outcome=Outcome.FAILED, found=found, advice=advice)


def _lack(found: str, advice: str) -> Check:
    # It may come back, and a borrower does without.
    return Check(name="donor", outcome=Outcome.WARNING, found=found, advice=advice)

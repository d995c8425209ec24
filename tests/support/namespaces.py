"""Two machines in two network namespaces, with one cable between them that a test cuts and mends."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import pytest
from pyroute2 import IPRoute, NetNS, netns
from pyroute2.netlink.exceptions import NetlinkError

PREFIX_BITS = 30
FIRST, SECOND = "10.77.0.1", "10.77.0.2"
MANY = "10.77.1"  # the network of the second machine's further addresses


class Cable:
    """What is between the two; ``first`` and ``second`` are the prefixes of commands that run on either."""

    def __init__(self, names: tuple[str, str], sides: tuple[NetNS, NetNS]) -> None:
        self.first, self.second = (("nsenter", f"--net=/run/netns/{name}") for name in names)
        self._names, self._sides = names, sides

    def cut(self) -> None:
        """Neither hears of it: a packet is lost, and no connection is closed."""
        self._set("down")

    def many_addresses(self, count: int) -> list[str]:
        """Gives the second machine so many addresses more, by which the first one is reached; returns them."""
        first, second = self._sides
        addresses = [f"{MANY}.{number}" for number in range(1, count + 1)]
        for address in addresses:
            second.addr("add", index=_index(second, "cable"), address=address, prefixlen=32)
        first.route("add", dst=f"{MANY}.0/24", oif=_index(first, "cable"))
        return addresses

    @contextmanager
    def on_first(self) -> Iterator[None]:
        """For the body this thread, and what it starts, is on the first machine."""
        netns.pushns(self._names[0])
        try:
            yield
        finally:
            netns.popns()

    def heal(self) -> None:
        """Packets pass again."""
        self._set("up")

    def _set(self, state: str) -> None:
        # The end of a veth that is taken down loses nothing but its carrier: addresses and routes of the other stay.
        side = self._sides[0]
        side.link("set", index=_index(side, "cable"), state=state)


@contextmanager
def two_machines() -> Iterator[Cable]:
    """Both, with loopback and an address each, ``FIRST`` and ``SECOND``. Skips where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    names = (f"farside-{uuid4().hex[:6]}", f"farside-{uuid4().hex[:6]}")
    with ExitStack() as stack:
        try:
            for name in names:
                netns.create(name)
                stack.callback(netns.remove, name)
            sides = tuple(stack.enter_context(NetNS(name)) for name in names)
            _connect(names, sides)
        except (NetlinkError, OSError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        yield Cable(names, (sides[0], sides[1]))


def _connect(names: tuple[str, str], sides: tuple[NetNS, ...]) -> None:
    with IPRoute() as here:
        here.link(
            "add", ifname=f"c{names[0][-6:]}", kind="veth", net_ns_fd=names[0],
            peer={"ifname": "cable", "net_ns_fd": names[1]},
        )  # fmt: skip
    first = sides[0]
    first.link("set", index=_index(first, f"c{names[0][-6:]}"), ifname="cable")
    for side, address in zip(sides, (FIRST, SECOND), strict=True):
        at = _index(side, "cable")
        side.addr("add", index=at, address=address, prefixlen=PREFIX_BITS)
        for index in (at, _index(side, "lo")):
            side.link("set", index=index, state="up")


def _index(side: NetNS, name: str) -> int:
    found = list(side.link_lookup(ifname=name))
    return int(found[0])

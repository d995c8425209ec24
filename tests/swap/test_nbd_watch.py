"""Sockets that died are dialled again, one for each, until the server is there."""

import errno
import socket
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.errors import FarsideError, PeerError
from farside.kmod_shim.nbd.dial import Dialled, Offer
from farside.kmod_shim.nbd.message import Connection
from farside.kmod_shim.nbd.netlink import NbdNetlink
from farside.kmod_shim.swap.record import Attached, save_record
from farside.kmod_shim.swap.watch import watch
from tests.swap import tree
from tests.swap.kernel import FakeKernel

ATTACHED = Attached(
    index=1,
    export="swap0",
    endpoint="unix:/run/s",
    admin_socket="/run/a",
    connections=2,
    size_bytes=1 << 30,
    server_flags=0x16D,
    backend="farside:swap0",
    is_swap=True,
    priority=100,
)


class World:
    """A machine with /dev/nbd1 attached by two sockets. ``down``: so many dials more find nobody."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = tree.write(tree.machine(root), {"sys/block/nbd1/pid": "9\n"})
        self.kernel = FakeKernel()
        self.said: list[str] = []
        self.down = 0
        self.clients = 2
        save_record(root, ATTACHED)
        NbdNetlink(self.kernel).connect(
            Connection(index=1, sockets=(101, 102), size_bytes=1 << 30, server_flags=1, backend="farside:swap0")
        )
        patch.setattr("farside.kmod_shim.swap.watch.dial", self._dial)
        patch.setattr(admin, "call_process_of", lambda *_, **__: (self._told(), 1))
        patch.setattr("farside.kmod_shim.swap.watch.RETRY_S", 0.0)

    def watch(self) -> Any:
        other = FakeKernel()  # the same kernel at another socket, which the group's messages don't reach
        other.devices = self.kernel.devices
        return watch(self.root, self.said.append, listener=NbdNetlink(self.kernel), netlink=NbdNetlink(other))

    def _dial(self, endpoint: str, export: str, *, count: int) -> Dialled:
        if self.down:
            self.down -= 1
            raise PeerError("nobody there")
        offer = Offer(size_bytes=1 << 30, flags=0x16D, block_bytes=4096)
        return Dialled(offer=offer, sockets=(socket.socket(socket.AF_UNIX),))

    def _told(self) -> Any:
        told = {"name": "swap0", "size_bytes": 1, "slab_bytes": 1, "workers": 4, "connections": self.clients}
        return told | {"offered": True, "server_pid": 1, "supervisor_pid": 1, "listen": [], "disk_path": ""}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


class Silence(Exception):
    """Nothing more is said."""


def quiet_after(world: World, times: int) -> None:
    """Ends the watch, which never ends by itself, after so many looks that hear nothing."""
    hear = world.kernel.recv

    def recv(size: int) -> bytes:
        nonlocal times
        try:
            return hear(size)
        except TimeoutError:
            times -= 1
            if times < 0:
                raise Silence from None
            raise

    world.kernel.recv = recv  # type: ignore[method-assign]


def test_every_socket_that_dies_is_replaced(world: World) -> None:
    watching = world.watch()
    quiet_after(world, 1)
    world.kernel.kill_socket(1)
    world.kernel.kill_socket(1)

    assert (next(watching), next(watching)) == (1, 1)
    with pytest.raises(Silence):
        next(watching)
    assert len(world.kernel.devices[1].sockets) == 2


def test_a_server_that_is_down_is_tried_again(world: World) -> None:
    watching = world.watch()
    quiet_after(world, 9)
    world.kernel.kill_socket(1)
    world.down = 3

    assert next(watching) == 1
    assert sum("nobody there" in line for line in world.said) == 3


def test_what_died_before_the_watch_is_seen_by_the_server(world: World) -> None:
    world.kernel.devices[1].sockets.pop()
    world.clients = 1

    assert next(world.watch()) == 1
    assert len(world.kernel.devices[1].sockets) == 2


def test_what_died_unheard_is_seen_by_the_server(world: World) -> None:
    watching = world.watch()
    quiet_after(world, 1)
    world.kernel.kill_socket(1)
    assert next(watching) == 1
    hear, lost = world.kernel.recv, [OSError(errno.ENOBUFS, "No buffer space available")]

    def recv(size: int) -> bytes:
        if lost:
            world.kernel.devices[1].sockets.pop()
            world.clients = 1
            raise lost.pop()
        return hear(size)

    world.kernel.recv = recv  # type: ignore[method-assign]

    assert next(watching) == 1
    assert len(world.kernel.devices[1].sockets) == 2


def test_a_device_that_is_not_ours_is_left_alone(world: World) -> None:
    quiet_after(world, 1)
    world.kernel.devices[0].sockets = [7]
    world.kernel.kill_socket(0)

    with pytest.raises(Silence):
        next(world.watch())
    assert world.kernel.devices[0].sockets == []


def test_a_device_that_was_detached_needs_nothing_more(world: World) -> None:
    watching = world.watch()
    quiet_after(world, 3)
    world.kernel.kill_socket(1)
    world.down = 1
    tree_gone = world.root / "sys/block/nbd1/pid"

    def gone(*_: Any, **__: Any) -> Any:
        tree_gone.unlink(missing_ok=True)
        raise FarsideError("down")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("farside.kmod_shim.swap.watch.dial", gone)
        with pytest.raises(Silence):
            next(watching)

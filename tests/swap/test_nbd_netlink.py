"""The nbd netlink family, against a fake kernel that reads the bytes by itself."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import ConfigError, FarsideError, Unavailable
from farside.kmod_shim.nbd import message as nbd_message
from farside.kmod_shim.nbd.genetlink import GenericNetlink
from farside.kmod_shim.nbd.message import Connection, DeviceState
from farside.kmod_shim.nbd.netlink import NbdNetlink
from tests.swap import kernel
from tests.swap.kernel import FakeKernel


def connection(
    index: int | None = None, *, sockets: tuple[int, ...] = (10, 11), backend: str = "farside:swap0"
) -> Connection:
    return Connection(index=index, sockets=sockets, size_bytes=1 << 40, server_flags=0x16D, backend=backend)


def test_connect_tells_everything_and_learns_the_index() -> None:
    fake = FakeKernel()

    index = NbdNetlink(fake).connect(connection())

    device = fake.devices[index]
    assert (index, device.sockets, device.backend) == (0, [10, 11], "farside:swap0")
    assert device.told == {
        kernel.SIZE: 1 << 40,
        kernel.BLOCK: 4096,
        kernel.TIMEOUT: nbd_message.TIMEOUT_S,
        kernel.FLAGS: 0x16D,
        kernel.CLIENT_FLAGS: 0,
        kernel.DEAD: nbd_message.DEAD_CONNECTION_TIMEOUT_S,
    }


def test_a_device_beyond_those_of_the_module_is_made() -> None:
    assert NbdNetlink(FakeKernel(devices=2)).connect(connection(5)) == 5


def test_a_busy_device_is_told_with_the_way_out() -> None:
    netlink = NbdNetlink(FakeKernel())
    netlink.connect(connection(1))

    with pytest.raises(ConfigError, match=r"connect /dev/nbd1: .*EBUSY.*name another with --device"):
        netlink.connect(connection(1))


def test_without_the_right_the_kernel_refuses() -> None:
    with pytest.raises(ConfigError, match="CAP_SYS_ADMIN"):
        NbdNetlink(FakeKernel(may=False)).devices()


def test_a_kernel_without_the_family_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="--nbd-client"):
        NbdNetlink(FakeKernel(has_nbd=False))


def test_status_lists_devices_by_index() -> None:
    netlink = NbdNetlink(FakeKernel(devices=3))
    netlink.connect(connection(2))

    assert netlink.devices() == (
        DeviceState(index=0, is_connected=False),
        DeviceState(index=1, is_connected=False),
        DeviceState(index=2, is_connected=True),
    )
    assert (netlink.is_connected(2), netlink.is_connected(0), netlink.is_connected(9)) == (True, False, False)


def test_disconnect_ends_it_and_a_second_one_is_harmless() -> None:
    netlink = NbdNetlink(FakeKernel())
    netlink.connect(connection(0))

    netlink.disconnect(0)
    netlink.disconnect(0)

    assert not netlink.is_connected(0)


def test_reconfigure_must_repeat_the_backend() -> None:
    fake = FakeKernel()
    netlink = NbdNetlink(fake)
    netlink.connect(connection(0))
    fake.kill_socket(0)
    fake.recv(1)

    with pytest.raises(ConfigError, match="EINVAL"):
        netlink.reconfigure(connection(0, sockets=(12,), backend="another"))
    netlink.reconfigure(connection(0, sockets=(12,)))

    assert fake.devices[0].sockets == [10, 12]


def test_a_socket_that_died_is_heard_of() -> None:
    fake = FakeKernel()
    netlink = NbdNetlink(fake)
    netlink.connect(connection(1))
    netlink.watch()
    fake.kill_socket(1)

    assert fake.joined == [kernel.GROUP]
    assert list(netlink.dead_links(0.0)) == [1]


def test_the_answer_to_an_earlier_request_is_not_taken_for_this_one() -> None:
    fake = FakeKernel()
    netlink = NbdNetlink(fake)
    fake.late_answer(sequence=1)

    assert netlink.connect(connection(1)) == 1


def test_a_kernel_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    class Silent(FakeKernel):
        def send(self, data: bytes, /) -> int:
            return len(data)

    with pytest.raises(FarsideError, match="has not answered"):
        GenericNetlink(Silent()).family("nbd")


@given(
    index=st.none() | st.integers(0, 2**32 - 1),
    sockets=st.lists(st.integers(0, 2**31), min_size=1, max_size=16),
    size_bytes=st.integers(1, 2**63),
    flags=st.integers(0, 2**16 - 1),
)
def test_any_connection_reaches_the_kernel_as_it_is(
    index: int | None, sockets: list[int], size_bytes: int, flags: int
) -> None:
    fake = FakeKernel()
    wanted = Connection(index=index, sockets=tuple(sockets), size_bytes=size_bytes, server_flags=flags)

    made = NbdNetlink(fake).connect(wanted)

    device = fake.devices[made]
    assert made == (0 if index is None else index)
    assert (device.sockets, device.told[kernel.SIZE], device.told[kernel.FLAGS]) == (sockets, size_bytes, flags)
    assert device.backend == ""


def test_what_the_group_is_told_besides_dead_links_is_passed_over() -> None:
    body = kernel.attribute(kernel.INDEX, struct.pack("=I", 3))
    data = struct.pack("=IHHIIBBH", 20 + len(body), kernel.NBD, 0, 0, 0, 5, 1, 0) + body

    assert nbd_message.read_dead_link(data) is None

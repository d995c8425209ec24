"""Messages of the kernel's RDMA netlink, against bytes that a Debian kernel and its `rdma` program exchanged."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import RemoteProtocolError
from farside.kmod_shim import rdma_netlink
from farside.kmod_shim.rdma_netlink import Acknowledged, Listed


def message(kind: int, body: bytes, *, sequence: int = 7) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, sequence, 0) + body


def attribute(kind: int, body: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(body), kind) + body + b"\0" * (-len(body) % 4)


def device(index: int, name: str) -> bytes:
    return message(5 << 10 | 1, attribute(1, struct.pack("=I", index)) + attribute(2, name.encode() + b"\0"))


def test_a_new_link_is_named_typed_and_placed() -> None:
    request = rdma_netlink.new_link(9, name="rxe0", kind="rxe", netdev="eth1")

    wanted = attribute(2, b"rxe0\0") + attribute(65, b"rxe\0") + attribute(51, b"eth1\0")
    # RDMA_NL_NLDEV << 10 | RDMA_NLDEV_CMD_NEWLINK, NLM_F_REQUEST | NLM_F_ACK
    assert request == struct.pack("=IHHII", 16 + len(wanted), 0x1403, 5, 9, 0) + wanted


def test_a_link_is_removed_by_its_number() -> None:
    request = rdma_netlink.delete_link(9, index=3)

    assert request == struct.pack("=IHHII", 24, 0x1404, 5, 9, 0) + attribute(1, struct.pack("=I", 3))


def test_a_listing_is_devices_and_an_end() -> None:
    received = device(0, "mlx5_0") + device(4, "rxe0") + message(3, struct.pack("=i", 0))

    answers = list(rdma_netlink.parse_answers(received))

    assert answers == [
        Listed(sequence=7, index=0, name="mlx5_0"),
        Listed(sequence=7, index=4, name="rxe0"),
        Acknowledged(sequence=7, errno=0),
    ]


def test_a_refusal_carries_its_errno() -> None:
    refused = message(2, struct.pack("=i", -errno.EEXIST) + b"\0" * 16)

    assert list(rdma_netlink.parse_answers(refused)) == [Acknowledged(sequence=7, errno=errno.EEXIST)]


@given(st.binary(max_size=200))
def test_any_bytes_are_answers_or_a_protocol_error(received: bytes) -> None:
    try:
        list(rdma_netlink.parse_answers(received))
    except RemoteProtocolError:
        pass


def test_a_cut_message_is_a_protocol_error() -> None:
    whole = device(4, "rxe0")

    for end in range(1, len(whole)):
        with pytest.raises(RemoteProtocolError):
            list(rdma_netlink.parse_answers(whole[:end]))

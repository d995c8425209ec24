"""Attributes of netlink messages: what pyroute2 reads of ours, what ours reads of pyroute2's, and what is cut."""

import struct
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import ctrlmsg, genlmsg, nla

from farside.errors import RemoteProtocolError
from farside.kmod_shim.nbd.attribute import HEADER, attribute, attributes, read_message, read_number
from farside.kmod_shim.nbd.message import Connection, connect_message, read_index, read_status
from tests.swap.kernel import DEVICES


class Connect(genlmsg):  # type: ignore[misc]  # pyroute2 has no types
    """CONNECT, as pyroute2 reads it: the place of a name is its number."""

    nla_map = (
        ("unspec", "none"), ("index", "uint32"), ("size", "uint64"), ("block", "uint64"), ("timeout", "uint64"),
        ("flags", "uint64"), ("client_flags", "uint64"), ("sockets", "sockets"), ("dead", "uint64"),
        ("devices", "none"), ("backend", "asciiz"),
    )  # fmt: skip

    class sockets(nla):  # type: ignore[misc]  # noqa: N801 (pyroute2 finds it by this name)
        """A list of items."""

        nla_map = (("unspec", "none"), ("item", "item"))

        class item(nla):  # type: ignore[misc]  # noqa: N801
            """One file descriptor."""

            nla_map = (("unspec", "none"), ("fd", "uint32"))


def test_pyroute2_reads_what_is_written() -> None:
    told = Connection(index=3, sockets=(10, 11), size_bytes=1 << 40, server_flags=0x16D, backend="farside:swap0")
    message = connect_message(told)
    body = struct.pack("=BBH", message.command, message.version, 0) + message.attributes

    read: Any = Connect(HEADER.pack(HEADER.size + len(body), 0x1C, 1, 1, 0) + body)
    read.decode()

    assert (read["cmd"], read["version"]) == (1, 1)
    assert {name: read.get_attr(name) for name in ("index", "size", "block", "flags", "client_flags", "backend")} == {
        "index": 3, "size": 1 << 40, "block": 4096, "flags": 0x16D, "client_flags": 0, "backend": "farside:swap0",
    }  # fmt: skip
    assert [item.get_attr("fd") for item in read.get_attr("sockets").get_attrs("item")] == [10, 11]


def test_what_pyroute2_writes_is_read() -> None:
    written: Any = ctrlmsg()
    written["cmd"], written["version"] = 1, 2
    written["attrs"] = [("CTRL_ATTR_FAMILY_ID", 28), ("CTRL_ATTR_FAMILY_NAME", "nbd")]
    written.encode()

    message = read_message(bytes(written.data))

    assert (message.command, message.version) == (1, 2)
    assert list(attributes(message.attributes)) == [(1, struct.pack("=H", 28)), (2, b"nbd\0")]


@given(st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=64))))
def test_attributes_come_back_as_they_went(told: list[tuple[int, bytes]]) -> None:
    assert list(attributes(b"".join(attribute(kind, value) for kind, value in told))) == told


@given(st.binary(max_size=256))
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    for read in (lambda: list(attributes(data)), lambda: read_status(data), lambda: read_number(data)):
        try:
            read()
        except RemoteProtocolError:
            pass  # anything else fails the test


@pytest.mark.parametrize("length", [0, 3, 9])
def test_an_attribute_that_is_shorter_than_its_header_or_longer_than_the_message_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"an attribute of {length} bytes, where 8 are left"):
        list(attributes(struct.pack("=HHI", length, 1, 7)))


def test_an_answer_without_the_device_is_refused() -> None:
    answer = HEADER.pack(20, 0x1C, 0, 1, 0) + struct.pack("=BBH", 1, 1, 0)

    with pytest.raises(RemoteProtocolError, match="no attribute 1"):
        read_index(answer)


def test_a_listed_device_without_its_index_is_refused() -> None:
    body = struct.pack("=BBH", 5, 1, 0) + attribute(DEVICES, attribute(1, attribute(2, b"\1")))

    with pytest.raises(RemoteProtocolError, match="no attribute 1"):
        read_status(HEADER.pack(HEADER.size + len(body), 0x1C, 0, 1, 0) + body)


@pytest.mark.parametrize("program", ["farside.agent.main", "farside.kmod_shim.swap.watch"])
def test_no_program_loads_pyroute2(program: str) -> None:
    code = f"import sys, {program}; print('pyroute2' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"

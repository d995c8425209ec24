"""Shares of GPUs: a device has one holder, and a GPU is held whole or in parts."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent import messages as m
from farside.agent.gpu_share import Device, Share, clash, devices_of, free_devices, is_twice, parts_of, shares_of
from farside.agent.protocol import decode_from_manager, encode
from farside.errors import LocalProtocolError
from tests.agent.frames import SPEC, start

devices = st.builds(Device, st.integers(0, 3), st.sampled_from(["", "a", "b"]))
NODE = (Device(0), Device(1, "a"), Device(1, "b"), Device(2))


@given(st.lists(devices, max_size=6), st.lists(devices, max_size=6))
def test_two_sets_of_devices_clash_where_some_of_a_gpu_is_in_both(some: list[Device], held: list[Device]) -> None:
    overlap = {(one, other) for one in some for other in held if one.gpu == other.gpu and overlaps(one, other)}

    assert (clash(some, shares_of(held, ("1", 1))) is not None) is bool(overlap)


def overlaps(one: Device, other: Device) -> bool:
    return one.part == other.part or "" in (one.part, other.part)


@given(st.lists(devices, max_size=6))
def test_what_is_free_clashes_with_nothing_that_is_held_and_nothing_free_is_left_out(held: list[Device]) -> None:
    shares = shares_of(held, ("1", 1))

    free = tuple(free_devices(NODE, shares))

    assert all(clash([device], shares) is None for device in free)
    assert all(clash([device], shares) is not None for device in NODE if device not in free)


@given(st.lists(devices, max_size=6))
def test_devices_are_the_same_as_two_lists_and_back(held: list[Device]) -> None:
    assert devices_of([device.gpu for device in held], parts_of(held)) == tuple(held)


@pytest.mark.parametrize(
    ("named", "is_wrong"),
    [
        ([Device(0), Device(1)], False),
        ([Device(0, "a"), Device(0, "b")], False),
        ([Device(0), Device(0)], True),
        ([Device(0, "a"), Device(0, "a")], True),
        ([Device(0), Device(0, "a")], True),
    ],
)
def test_a_device_that_is_named_twice_is_noticed(named: list[Device], is_wrong: bool) -> None:
    assert is_twice(named) is is_wrong


def test_a_share_says_of_which_node_and_whose_it_is() -> None:
    share = Share(node="n1", gpu=3, part="MIG-7", holder=("12", 2))

    assert msgspec.to_builtins(share) == {"node": "n1", "gpu": 3, "part": "MIG-7", "holder": ("12", 2)}
    assert msgspec.json.decode(msgspec.json.encode(share), type=Share) == share


def test_a_start_names_parts_of_gpus_and_one_without_is_as_the_version_before_reads_it() -> None:
    cut = start(spec=msgspec.structs.replace(SPEC, gpus=(0, 0), parts=("MIG-a", "MIG-b")))

    told = decode_from_manager(encode(cut))

    assert isinstance(told, m.Start)
    assert told.spec.devices == (Device(0, "MIG-a"), Device(0, "MIG-b"))
    assert SPEC.devices == (Device(0),)


def test_a_start_whose_parts_are_not_one_for_each_gpu_is_not_sent() -> None:
    with pytest.raises(LocalProtocolError, match="of each GPU one"):
        encode(m.Start(task_id="1.0", start=1, generation=1, spec=wrong()))


@pytest.mark.parametrize("parts", ['["a","a"]', '[""]', str(["x"] * 17).replace("'", '"')])
def test_parts_without_a_name_named_twice_or_too_many_are_refused(parts: str) -> None:
    gpu = f'{{"index":0,"model":"h","healthy":true,"parts":{parts}}}'

    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(gpu, type=m.Gpu)


def wrong() -> m.TaskSpec:
    spec = msgspec.structs.replace(SPEC, gpus=(0,))
    msgspec.structs.force_setattr(spec, "parts", ("a", "b"))
    return spec

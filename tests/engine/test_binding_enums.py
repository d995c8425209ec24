"""The engine's enumerations are whole in Python: a member that engine.h has and its modules lack would go unnoticed."""

import re
from enum import IntEnum
from pathlib import Path

import pytest

from farside.kmod_shim.engine import binding
from farside.kmod_shim.engine.aggregation import AggregatorEventKind, DType, Rule
from farside.kmod_shim.engine.binding import DonorState, EventKind, Fault, Protection, SlabState

HEADER = Path(binding.__file__).with_name("engine.h").read_text()
# Members that no caller in Python gives or gets.
C_ONLY = {"ne_event_kind": {"NONE"}, "ne_aggregator_event_kind": {"NONE"}, "ne_fault": {"KINDS"}}
PYTHON: dict[str, type[IntEnum]] = {
    "ne_protection": Protection,
    "ne_donor_state": DonorState,
    "ne_slab_state": SlabState,
    "ne_fault": Fault,
    "ne_event_kind": EventKind,
    "ne_dtype": DType,
    "ne_rule": Rule,
    "ne_aggregator_event_kind": AggregatorEventKind,
}


def enums() -> dict[str, dict[str, int]]:
    """Every named enum of engine.h: its members without what all of them begin with."""
    found = {}
    for name, body in re.findall(r"^enum (\w+) \{(.*?)\};", HEADER, re.DOTALL | re.MULTILINE):
        members = dict(re.findall(r"\b(NE_\w+) = (\d+)", re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)))
        prefix = re.match(r"NE_[A-Z]+_", next(iter(members)))
        assert prefix is not None
        found[name] = {member.removeprefix(prefix[0]): int(value) for member, value in members.items()}
    return found


def test_every_enum_of_the_engine_has_its_like_in_python() -> None:
    assert set(enums()) == set(PYTHON)


@pytest.mark.parametrize("name", PYTHON)
def test_an_enum_has_the_same_members_in_c_and_in_python(name: str) -> None:
    in_c = {member: value for member, value in enums()[name].items() if member not in C_ONLY.get(name, ())}

    assert {member.name: member.value for member in PYTHON[name]} == in_c

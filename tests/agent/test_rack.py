"""The rack of a node, as its settings say or as lldpd knows it, and the LIDs of its InfiniBand ports."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.agent.sense.rack import CHARS_MAX, PERIOD_S, RackSense, rack_of
from farside.agent.sense.rdma_subnet import read_lids
from farside.config import AgentConfig
from farside.config.check import LABEL_CHARS_MAX, NODE, agent_problems
from tests.kmod_shim.test_rdma_devices import add_port

BRIDGE = [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": False}]
HOST = [{"type": "Bridge", "enabled": False}, {"type": "Station", "enabled": True}]


def neighbour(interface: str, name: str, can: Any = BRIDGE) -> dict[str, Any]:
    """One interface, as `lldpctl -f json` of lldpd 1.0.16 prints it."""
    facts = {"id": {"type": "mac", "value": "02:00:00:00:00:01"}, "descr": "a switch", "capability": can}
    return {interface: {"via": "LLDP", "rid": "1", "chassis": {name: facts} if name else facts, "port": {}}}


def printed(*interfaces: dict[str, Any]) -> str:
    told = interfaces[0] if len(interfaces) == 1 else list(interfaces)
    return json.dumps({"lldp": {"interface": told}} if interfaces else {"lldp": {}})


@pytest.mark.parametrize(
    ("text", "rack"),
    [
        (printed(neighbour("eth0", "leaf-7")), "leaf-7"),
        (printed(neighbour("eth0", "leaf-7"), neighbour("eth1", "leaf-6")), "leaf-6.leaf-7"),
        (printed(neighbour("eth0", "leaf-7"), neighbour("eth1", "leaf-7")), "leaf-7"),
        (printed(neighbour("eth0", "leaf-7"), neighbour("eth1", "gpu3", HOST)), "leaf-7"),
        (printed(neighbour("eth0", "leaf-7", BRIDGE[0])), "leaf-7"),
        (printed(neighbour("eth0", "")), "02:00:00:00:00:01"),
        (printed(neighbour("eth0", "leaf 7/a")), "leaf-7-a"),
        (printed(neighbour("eth0", "x" * 99)), "x" * CHARS_MAX),
        (printed(), ""),
        ("", ""),
        ("[1]", ""),
    ],
)
def test_the_switches_that_lldp_names_are_the_rack(text: str, rack: str) -> None:
    assert rack_of(text) == rack


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["lldp", "interface", "chassis", "id", "capability", "type"]), inner)
        ),
        max_leaves=20,
    )
)
def test_whatever_a_program_prints_is_a_name_or_nothing(value: object) -> None:
    for told in (value, {"lldp": {"interface": value}}, {"lldp": {"interface": {"eth0": {"chassis": value}}}}):
        found = rack_of(json.dumps(told))
        assert not found or NODE.fullmatch(found)


def test_lldpd_is_asked_once_a_minute_and_what_it_said_stays_while_it_is_away() -> None:
    said, asked, now_s = [printed(neighbour("eth0", "a")), "", printed(neighbour("eth0", "b"))], [0], [0.0]

    def ask() -> str:
        asked[0] += 1
        return said.pop(0)

    sense = RackSense("lldp", now_s=lambda: now_s[0], ask=ask)
    found = []
    for at_s in (0, 1, PERIOD_S, 2 * PERIOD_S):
        now_s[0] = at_s
        found.append(sense.read())

    assert (found, asked) == (["a", "a", "a", "b"], [3])


def test_a_setting_names_the_rack_and_nobody_is_asked() -> None:
    def ask() -> str:
        raise AssertionError("asked")

    assert [RackSense(told, now_s=lambda: 0.0, ask=ask).read() for told in ("r7", "")] == ["r7", ""]


def test_without_lldpd_nobody_knows_and_a_program_that_fails_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "lldpctl"
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [RackSense("lldp", now_s=lambda: 0.0).read()]
    for script in ("exit 1", f"echo '{printed(neighbour('eth0', 'leaf-7'))}'"):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        found.append(RackSense("lldp", now_s=lambda: 0.0).read())

    assert found == ["", "", "leaf-7"]


def test_lids_of_infiniband_ports_are_told_and_roce_has_none(tmp_path: Path) -> None:
    for device, lid in (("mlx5_1", "0x1a"), ("mlx5_0", "0x7"), ("rxe0", "0x0"), ("gone", "")):
        add_port(tmp_path, device)
        (tmp_path / f"sys/class/infiniband/{device}/ports/1/lid").write_text(lid + "\n")

    assert read_lids(tmp_path) == (7, 26)
    assert read_lids(tmp_path / "none") == ()


def test_a_name_that_could_be_no_feature_is_refused() -> None:
    problems = [*agent_problems(AgentConfig(node="n", rack="row 7", rdma_domain="x" * 59))]

    assert CHARS_MAX == LABEL_CHARS_MAX
    assert problems == [
        ("rack", "'row 7' is no name; up to 58 letters, digits and any of . _ : - make one"),
        ("rdma_domain", f"'{'x' * 59}' is no name; up to 58 letters, digits and any of . _ : - make one"),
    ]

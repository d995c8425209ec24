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
        (printed(neighbour("eth0", "x" * CHARS_MAX)), "x" * CHARS_MAX),
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


def test_switches_with_long_names_are_told_apart_by_their_ends() -> None:
    names = [f"{'x' * 70}-{at}" for at in range(20)]
    racks = {rack_of(printed(neighbour("eth0", name))) for name in names}
    both = rack_of(printed(neighbour("eth0", names[0]), neighbour("eth1", names[1])))

    assert len({*racks, both}) == len(names) + 1
    assert all(len(rack) == CHARS_MAX and NODE.fullmatch(rack) for rack in (*racks, both))


class Lldp:
    """What lldpd answers, look by look; and the rack that the agent has after each."""

    def __init__(self, kept: Path, *names: str) -> None:
        """``names``: of the switches, with blanks between; empty: lldpd does not answer."""
        self.said = [printed(*(neighbour(name, name) for name in told.split())) if told else "" for told in names]
        self.now_s = 0.0
        self.sense = RackSense("lldp", kept, now_s=lambda: self.now_s, ask=lambda: self.said.pop(0))

    def racks(self) -> list[str]:
        found = []
        while self.said:
            found.append(self.sense.read())
            self.now_s += PERIOD_S
        return found


def test_lldpd_is_asked_once_a_minute(tmp_path: Path) -> None:
    lldp = Lldp(tmp_path / "rack", "a", "a", "b")

    for _ in range(3):
        assert lldp.sense.read() == ""
    assert len(lldp.said) == 2


def test_what_lldpd_said_counts_once_it_was_said_twice_and_stays_while_it_is_away(tmp_path: Path) -> None:
    found = Lldp(tmp_path / "rack", "a", "a", "", "a", "", "b", "b").racks()

    assert found == ["", "a", "a", "a", "a", "a", "b"]


def test_a_cable_that_is_out_for_a_moment_and_an_lldpd_that_is_late_move_no_node(tmp_path: Path) -> None:
    late = Lldp(tmp_path / "late", "a", "a b", "a b").racks()
    unplugged = Lldp(tmp_path / "late", "a b", "a", "a b", "b", "a b").racks()

    assert late == ["", "", "a.b"]
    assert unplugged == ["a.b"] * 5


def test_a_node_keeps_its_rack_when_the_agent_starts_anew(tmp_path: Path) -> None:
    kept = tmp_path / "rack"
    Lldp(kept, "a", "a").racks()

    assert Lldp(kept, "", "a", "b").racks() == ["a", "a", "a"]
    assert Lldp(kept, "b", "b").racks() == ["a", "b"]
    assert RackSense("r7", kept, now_s=lambda: 0.0).read() == "r7"


@pytest.mark.parametrize("damaged", [b"", b"\xff\n", b"a b\n", b"x" * 99])
def test_a_damaged_file_is_no_rack_and_a_folder_that_cannot_be_written_ends_nothing(
    damaged: bytes, tmp_path: Path
) -> None:
    (tmp_path / "rack").write_bytes(damaged)

    assert Lldp(tmp_path / "rack", "").racks() == [""]
    assert Lldp(tmp_path / "gone" / "rack", "a", "a").racks() == ["", "a"]


def test_a_setting_names_the_rack_and_nobody_is_asked(tmp_path: Path) -> None:
    def ask() -> str:
        raise AssertionError("asked")

    racks = [RackSense(told, tmp_path / "rack", now_s=lambda: 0.0, ask=ask).read() for told in ("r7", "")]
    assert racks == ["r7", ""]


def test_unless_it_is_set_nobody_asks_lldpd_so_an_upgrade_moves_no_job() -> None:
    assert AgentConfig(node="n").rack == ""


def test_without_lldpd_nobody_knows_and_a_program_that_fails_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, found, now_s = tmp_path / "lldpctl", [], [0.0]
    monkeypatch.setenv("PATH", str(tmp_path))
    sense = RackSense("lldp", tmp_path / "rack", now_s=lambda: now_s[0])
    for script in ("", "exit 1", *[f"echo '{printed(neighbour('eth0', 'leaf-7'))}'"] * 2):
        if script:
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
        found.append(sense.read())
        now_s[0] += PERIOD_S

    assert found == ["", "", "", "leaf-7"]


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

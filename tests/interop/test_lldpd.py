"""The rack by LLDP: the real lldpd on a node, another one on the switch at the other end of its cable."""

import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from farside.agent.sense.rack import PERIOD_S, RackSense
from tests.support.namespaces import Cable, two_machines
from tests.support.programs import need, outcome, run
from tests.support.waiting import until

SWITCH, HOST = "leaf-7", "gpu3"


@pytest.fixture
def cable() -> Iterator[Cable]:
    need("lldpd", "lldpctl", "lldpcli")
    with two_machines() as cable:
        yield cable


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder that lldpd may use also once it has another user, which those of tests are not."""
    with tempfile.TemporaryDirectory(prefix="lldpd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def lldpd(on: Sequence[str], socket: Path, name: str) -> Iterator[None]:
    """The daemon on a machine, which tells the others ``name`` each second."""
    process = subprocess.Popen([*on, "lldpd", "-d", "-u", str(socket)], stderr=subprocess.DEVNULL)
    try:
        until(lambda: outcome(["lldpctl", "-u", str(socket)]).status == 0, what="lldpd answers")
        for told in (("system", "hostname", name), ("lldp", "tx-interval", "1")):
            run(["lldpcli", "-u", str(socket), "configure", *told])
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(("routes", "rack"), [("1", SWITCH), ("0", "")], ids=["a switch", "another host"])
def test_the_switch_at_the_other_end_of_the_cable_is_the_rack(
    cable: Cable, sockets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, routes: str, rack: str
) -> None:
    run([*cable.second, "sh", "-c", f"echo {routes} > /proc/sys/net/ipv4/ip_forward"])
    node = sockets / "node"
    asks = tmp_path / "lldpctl"
    asks.write_text(f'#!/bin/sh\nexec {shlex.quote(run(["which", "lldpctl"]).strip())} -u {node} "$@"\n')
    asks.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    now_s = [0.0]
    sense = RackSense("lldp", tmp_path / "rack", now_s=lambda: now_s[0])
    with ExitStack() as stack:
        for on, socket, name in ((cable.first, node, HOST), (cable.second, sockets / "other", SWITCH)):
            stack.enter_context(lldpd(on, socket, name))
        until(lambda: SWITCH in outcome(["lldpctl", "-u", str(node)]).stdout, what="the node has heard its neighbour")
        found = []
        for _ in range(2):
            found.append(sense.read())
            now_s[0] += PERIOD_S

    assert found == ["", rack]

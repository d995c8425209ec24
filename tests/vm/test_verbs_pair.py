"""Borrower and donor on two machines, pages by RDMA between them: verified, cut, healed, killed, and fallen back."""

import json
import shlex
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.soft_rdma import ADD_RXE0
from tests.support.waiting import until
from tests.vm.harness.guest import Guest
from tests.vm.harness.network import Network

pytestmark = pytest.mark.vm

KEY = "5a" * 32
BORROWER, DONOR = 1, 2
# So long that what a dead network does to a queue pair is seen before our own deadline.
DEADLINE_S = 30
WRITE = "--rw=randwrite --bssplit=4k/50:128k/50 --size=16M"
ETIMEDOUT = 110


def toml(settings: Mapping[str, object]) -> str:
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def prepare(guest: Guest, files: Mapping[str, str]) -> None:
    guest.run(ADD_RXE0)
    guest.run("mkdir -p /root/fs && install -m 600 /dev/stdin /root/fs/key", stdin=f"{KEY}\n".encode())
    for name, text in files.items():
        guest.run(f"cat > /root/fs/{name}", stdin=text.encode())


def start(guest: Guest, role: str) -> None:
    # Its own session and no terminal: it lives on when this command's connection has ended.
    command = f"farside {role} --config /root/fs/{role}.toml"
    guest.run(f"setsid {command} > /root/fs/log 2>&1 < /dev/null &")


def begin(pair: Network, *, transport: str = "rdma", rdma_address: str = "") -> None:
    """Starts donor and borrower, and returns when the donor is up."""
    donor = {
        "node": "d1", "listen": ["tcp:10.77.0.2:7677"], "key_file": "/root/fs/key", "slab_bytes": "8MiB",
        "headroom_bytes": "16MiB", "rdma_address": rdma_address, "admin_socket": "/root/fs/admin.sock",
        "lease_expiry_s": 60,
    }  # fmt: skip
    borrower = {
        "node": "b1", "size_bytes": "32MiB", "slab_bytes": "8MiB", "listen": ["unix:/root/fs/nbd.sock"],
        "key_file": "/root/fs/key", "peers_file": "/root/fs/peers.toml", "transport": transport,
        "disk_path": "/root/fs/disk", "workers": 1, "deadline_s": DEADLINE_S, "grace_s": DEADLINE_S,
        "state_dir": "/root/fs", "admin_socket": "/root/fs/admin.sock",
    }  # fmt: skip
    peers = "[[donor]]\n" + toml({"node": "d1", "control": "tcp:10.77.0.2:7677"})
    prepare(pair[DONOR], {"daemon.toml": toml(donor)})
    prepare(pair[BORROWER], {"blockdev.toml": toml(borrower), "peers.toml": peers})
    pair[BORROWER].run("fallocate -l 32M /root/fs/disk")
    start(pair[DONOR], "daemon")
    start(pair[BORROWER], "blockdev")
    until(lambda: is_up(pair), what="the donor to be up", deadline_s=240, every_s=1.0)


def status(guest: Guest) -> Mapping[str, Any]:
    ask = "from farside.admin import ask; import asyncio, json, pathlib"
    ask += "; print(json.dumps(asyncio.run(ask(pathlib.Path('/root/fs/admin.sock'), 'status'))))"
    done = guest.outcome(f"python3 -c {shlex.quote(ask)}", limit_s=120)
    found: Mapping[str, Any] = json.loads(done.stdout) if done.status == 0 else {}
    return found


def donor_of(pair: Network) -> Mapping[str, Any]:
    donors = status(pair[BORROWER]).get("donors") or [{}]
    found: Mapping[str, Any] = donors[0]
    return found


def is_up(pair: Network) -> bool:
    return donor_of(pair).get("state") == "up"


def fio(guest: Guest, options: str, *, limit_s: float = 600) -> str:
    target = "--ioengine=nbd --uri='nbd+unix:///?socket=/root/fs/nbd.sock' --thread --iodepth=8"
    verify = "--verify=crc32c --verify_fatal=1 --verify_state_save=0"
    return guest.run(f"fio --name=v {target} {options} {verify}", limit_s=limit_s)


def no_page_was_wrong(pair: Network) -> Mapping[str, Any]:
    told = status(pair[BORROWER])
    assert told["errors"]["requests"] == told["errors"]["pages_lost"] == told["errors"]["checksum"] == 0
    return told


def test_pages_between_two_machines_are_verified(pair: Network) -> None:
    begin(pair)

    said = fio(pair[BORROWER], f"{WRITE} --do_verify=1")

    assert "err= 0" in said
    told = no_page_was_wrong(pair)
    assert told["donors"][0]["transport"] == "rdma"
    assert told["pages_out"]["remote"] > 0
    assert told["pages_in"]["remote"] > 0
    traffic = status(pair[DONOR])["traffic"]
    assert traffic["rdma_connections"] == 2
    assert traffic["reads"] == traffic["writes"] == 0


def test_a_dead_network_is_an_error_completion_within_a_second(pair: Network) -> None:
    prepare(pair[DONOR], {})
    prepare(pair[BORROWER], {})
    module = "cd /farside/tree && python3 -m tests.support"
    # Its standard input must stay open as long as it is to serve.
    with pair[DONOR].spawn(f"sleep 600 | ({module}.rdma_donor 10.77.0.2 2)") as donor:
        assert donor.stdout is not None
        port = int(donor.stdout.readline())
        with pair[BORROWER].spawn(f"{module}.rdma_reader 10.77.0.2 {port}") as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline().strip() == "reading"
            pair.cut(DONOR)
            told = json.loads(reader.stdout.readline())
        donor.kill()

    print(f"after a cut: {told}")
    assert told["errno"] == ETIMEDOUT
    assert told["seconds"] < 5  # 0.5 s by the adapter's timers; our own deadline is 30


def test_a_cut_network_is_noticed_and_healed(pair: Network) -> None:
    begin(pair)
    fio(pair[BORROWER], f"{WRITE} --do_verify=0")

    reading = pair[BORROWER].spawn(
        "fio --name=r --ioengine=nbd --uri='nbd+unix:///?socket=/root/fs/nbd.sock' --thread --rw=randread --bs=4k"
        " --size=16M --iodepth=4 --time_based --runtime=40"
    )
    until(lambda: status(pair[BORROWER])["pages_in"]["remote"] > 100, what="pages to come in", deadline_s=120)
    pair.cut(DONOR)
    began_s = time.monotonic()
    until(lambda: not is_up(pair), what="the cut to be noticed", deadline_s=DEADLINE_S, every_s=0.1)
    noticed_s = time.monotonic() - began_s
    said, _ = reading.communicate(timeout=300)
    pair.heal(DONOR)
    until(lambda: is_up(pair), what="the donor to be up again", deadline_s=240, every_s=1.0)

    print(f"the cut was noticed after {noticed_s:.1f} s, asking by a new Python each time")
    assert "err= 0" in said
    assert noticed_s < DEADLINE_S / 2
    assert "err= 0" in fio(pair[BORROWER], f"{WRITE} --verify_only")
    assert no_page_was_wrong(pair)["donors"][0]["transport"] == "rdma"


def test_a_donor_without_power_costs_no_page(pair: Network) -> None:
    begin(pair)
    fio(pair[BORROWER], f"{WRITE} --do_verify=0")

    pair[DONOR].power_off()
    said = fio(pair[BORROWER], f"{WRITE} --verify_only")

    assert "err= 0" in said
    no_page_was_wrong(pair)


def test_what_rdma_cannot_reach_goes_by_tcp_and_is_counted(pair: Network) -> None:
    begin(pair, transport="auto", rdma_address="10.0.2.15")  # a network without an RDMA device

    said = fio(pair[BORROWER], f"{WRITE} --do_verify=1")

    assert "err= 0" in said
    told = no_page_was_wrong(pair)
    assert told["donors"][0]["transport"] == "tcp"
    assert told["counters"]["rdma_fallbacks"] >= 1
    assert status(pair[DONOR])["traffic"]["reads"] > 0

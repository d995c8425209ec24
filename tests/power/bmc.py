"""BMCs to test against: OpenIPMI's simulator, sushy-tools' emulator, and a small Redfish that measures power."""

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.support.ports import free_port
from tests.support.programs import need
from tests.support.waiting import until

USER, PASSWORD = "operator", "s3cret-word"

_LAN = """name "node"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{hook} 0x20"
  user 1 true "" "{password}" user 10 none md2 md5 straight
  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""
_MC = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""
# The node itself, as far as its BMC is concerned: a file with 1 or 0.
_HOOK = """#!/bin/sh
state={state}
shift; op=$1; shift
while [ $# -gt 0 ]; do
  case $op:$1 in
    get:power) echo "power:$(cat $state)" ;;
    get:*) echo "$1:0" ;;
    set:power) echo "$2" >$state.new && mv $state.new $state; shift ;;
    set:shutdown) echo 0 >$state.new && mv $state.new $state; shift ;;
    set:*) shift ;;
  esac
  shift
done
"""


def password_file(folder: Path, password: str = PASSWORD) -> Path:
    path = folder / "bmc.password"
    path.write_text(password + "\n")
    path.chmod(0o600)
    return path


@contextlib.contextmanager
def _running(argv: list[str], log: Path, cwd: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=cwd)
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)


@contextlib.contextmanager
def ipmi_sim(folder: Path, *, is_on: bool = True) -> Iterator[tuple[int, Path]]:
    """The simulator's UDP port, and the file that says whether its node is on."""
    need("ipmi_sim", "ipmitool")
    port, state, hook = free_port(socket.SOCK_DGRAM), folder / "power", folder / "chassis.sh"
    state.write_text(f"{int(is_on)}\n")
    hook.write_text(_HOOK.format(state=state))
    hook.chmod(0o755)
    (folder / "lan.conf").write_text(_LAN.format(port=port, hook=hook, user=USER, password=PASSWORD))
    (folder / "sim.emu").write_text(_MC)
    (folder / "state").mkdir()
    argv = ["ipmi_sim", "-c", "lan.conf", "-f", "sim.emu", "-s", "state", "-n"]
    with _running(argv, folder / "sim.log", folder):
        until(lambda: _is_bound(port), what="ipmi_sim listens")
        yield port, state


def _is_bound(port: int) -> bool:
    return any(line.split()[1].endswith(f":{port:04X}") for line in Path("/proc/net/udp").read_text().splitlines()[1:])


@contextlib.contextmanager
def slow_relay(port: int, *, wakes_in_s: float) -> Iterator[int]:
    """A UDP port before another one whose first answers come late: a BMC that comes to itself."""
    near, far = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    near.bind(("127.0.0.1", 0))
    far.connect(("127.0.0.1", port))
    ended = Event()

    def relay() -> None:
        client, is_awake = None, False
        while not ended.is_set():
            for one in select.select((near, far), (), (), 0.05)[0]:
                data, sender = one.recvfrom(4096)
                if one is near:
                    client = sender
                    far.send(data)
                elif client is not None:
                    is_awake = is_awake or ended.wait(wakes_in_s) or True
                    near.sendto(data, client)

    thread = Thread(target=relay)
    thread.start()
    try:
        yield int(near.getsockname()[1])
    finally:
        ended.set()
        thread.join()
        near.close()
        far.close()


@contextlib.contextmanager
def redfish_emulator(folder: Path, *, is_on: bool = True) -> Iterator[str]:
    """The emulator's address; its only system is a fake one that changes state within a second."""
    program = Path(sys.executable).with_name("sushy-emulator")
    if not program.exists():
        pytest.skip("not installed: sushy-tools")
    port, config = free_port(), folder / "emulator.conf"
    system = {"name": "node1", "uuid": "11111111-1111-1111-1111-111111111111", "power_state": "On" if is_on else "Off",
              "nics": [{"mac": "52:54:00:77:00:01", "ip": "127.0.0.1"}]}  # fmt: skip
    # The emulator runs this file as Python. It draws how long a switch takes from 1 to 11 s: always the least here.
    config.write_text(
        "import random\nrandom.randint = lambda least, most: least\n"
        f"SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n"
        f"SUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\nSUSHY_EMULATOR_FAKE_DRIVER = True\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = [{system!r}]\n"
    )
    with _running([str(program), "--config", str(config), "--fake"], folder / "emulator.log", folder):
        until(lambda: _connects(port), what="sushy-emulator listens", deadline_s=60.0)
        yield f"http://127.0.0.1:{port}"


def _connects(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


_TREE: dict[str, object] = {
    "/redfish/v1/": {"Systems": {"@odata.id": "/redfish/v1/Systems"}, "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
                     "Id": "RootService", "Name": "root", "RedfishVersion": "1.6.0",
                     "Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}}},
    "/redfish/v1/Systems": {"Name": "systems", "Members": [{"@odata.id": "/redfish/v1/Systems/1"}]},
    "/redfish/v1/Systems/1": {"Id": "1", "Name": "node", "PowerState": "PoweringOn",
                              "Links": {"Chassis": [{"@odata.id": "/redfish/v1/Chassis/1"}]},
                              "Actions": {"#ComputerSystem.Reset": {
                                  "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
                                  "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "PushPowerButton"]}}},
    "/redfish/v1/Chassis/1": {"Id": "1", "Name": "chassis", "ChassisType": "RackMount", "PowerState": "On",
                              "Power": {"@odata.id": "/redfish/v1/Chassis/1/Power"}},
    "/redfish/v1/Chassis/1/Power": {"Id": "Power", "Name": "power", "PowerSupplies": [],
                                    "PowerControl": [{"PowerConsumedWatts": 812.5}]},
}  # fmt: skip


@contextlib.contextmanager
def small_redfish(orders: list[str], *, wakes_in_s: float = 0.0) -> Iterator[str]:
    """A BMC that measures power, is powering on, knows no graceful shutdown, and notes what it is told.

    Its first answer takes ``wakes_in_s``.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not asked:
                asked.append(self.path)
                Event().wait(wakes_in_s)
            found = _TREE.get(self.path) or _TREE.get(self.path + "/")
            self._send(200 if found else 404, found or {"error": {"message": "no such resource"}})

        def do_POST(self) -> None:
            orders.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ResetType"])
            self._send(204, None)

        def _send(self, status: int, body: object) -> None:
            text = json.dumps(body).encode() if body is not None else b""
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's own name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

"""Attaching and detaching as a whole, on a machine of files and a kernel of bytes: order, refusals, and taking back."""

import os
import shutil
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from farside import admin
from farside.errors import ConfigError, FarsideError, PeerError
from farside.kmod_shim.nbd import sysfs as nbd_sysfs
from farside.kmod_shim.nbd.dial import Dialled, Offer
from farside.kmod_shim.nbd.netlink import NbdNetlink
from farside.kmod_shim.swap.attach import Refused, attach
from farside.kmod_shim.swap.detach import choose, detach
from farside.kmod_shim.swap.facts import Wish
from farside.kmod_shim.swap.hibernation import SLEEP_CONF
from farside.kmod_shim.swap.record import read_records
from farside.kmod_shim.swap.refusal import MAY_HANG, MEMORY_OUT, OVERWRITE
from farside.kmod_shim.swap.status import device_infos
from farside.units import GIB, MIB
from tests.swap import tree
from tests.swap.kernel import FakeKernel

ADMIN = Path("/run/farside/blockdev.sock")
SUPERVISOR, SERVER, SUCCESSOR = 70, 71, 72


class World:
    """A machine with a blockdev on it that is not guarded yet. ``log`` has what was done, in order."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = tree.machine(root)
        self.kernel = FakeKernel()
        self.log: list[str] = []
        self.content: dict[str, str] = {}
        self.fails_at = ""
        self.answering_pid = 0  # another process than the one that status names
        self.status: dict[str, Any] = {
            "name": "swap0",
            "size_bytes": GIB,
            "slab_bytes": 64 * MIB,
            "workers": 4,
            "connections": 0,
            "offered": True,
            "server_pid": SERVER,
            "supervisor_pid": SUPERVISOR,
            "listen": ["tcp:127.0.0.1:10809", "unix:/run/farside/nbd.sock"],
            "disk_path": "",
        }
        for pid in (SUPERVISOR, SERVER):
            tree.process(self.root, pid, flags=0, score=0)
        patch.setattr(admin, "call", self._call)
        patch.setattr(admin, "call_process_of", self._call_process_of)
        patch.setattr("farside.kmod_shim.swap.attach.NbdNetlink", lambda: Wired(self))
        patch.setattr("farside.kmod_shim.swap.attach.dial", self._dial)
        patch.setattr("farside.kmod_shim.swap.attach.swap_on", self._swap_on)
        patch.setattr("farside.kmod_shim.swap.detach.swap_off", self._swap_off)
        patch.setattr(nbd_sysfs, "signature", lambda device: self.content)
        patch.setattr(nbd_sysfs, "write_swap_signature", lambda device, label, size_bytes: self.do("mkswap"))
        patch.setattr(nbd_sysfs, "wait_for_udev", lambda: self.do("let udev look"))
        patch.setattr(nbd_sysfs, "hold_exclusively", lambda device: self.do("look for users"))

    def attach(self, **wish: Any) -> Any:
        return attach(Wish(admin_socket=ADMIN, connections=2, **wish), self.root, lambda text: None)

    def detach(self, device: str | None = None, *forced: str) -> Any:
        return detach(choose(self.root, device), self.root, lambda text: None, forced=forced)

    def do(self, what: str) -> None:
        self.log.append(what)
        if what == self.fails_at:
            raise FarsideError(f"{what} failed")

    def settings(self) -> tuple[str, ...]:
        vm = self.root / "proc/sys/vm"
        return tuple((vm / name).read_text().strip() for name in ("page-cluster", "min_free_kbytes"))

    def out(self, used_bytes: int) -> None:
        line = f"/dev/nbd0 partition {GIB // 1024} {used_bytes // 1024} 100\n"
        (self.root / "proc/swaps").write_text(tree.SWAPS + line)

    def _call(self, path: Path, command: str, *, timeout_s: float = 0) -> Any:
        if command == "guard":
            self.do("guard")
            self.status["server_pid"] = SUCCESSOR
            for pid in (SUPERVISOR, SUCCESSOR):
                tree.process(self.root, pid)
        return self.status

    def _call_process_of(
        self, owners: Collection[int], path: Path, command: str, *, absent_hint: str = ""
    ) -> tuple[Any, int]:
        assert owners == {0, os.geteuid()}
        return self._call(path, command), self.answering_pid or self.status["server_pid"]

    def _dial(self, endpoint: str, export: str, *, count: int) -> Dialled:
        self.do(f"dial {endpoint} {count}")
        sockets = tuple(socket.socket(socket.AF_UNIX) for _ in range(count))
        return Dialled(offer=Offer(size_bytes=GIB, flags=0x16D, block_bytes=4096), sockets=sockets)

    def _swap_on(self, device: str, *, priority: int, discard: bool) -> None:
        assert discard
        self.do(f"swapon {device} {priority}")
        self.out(0)

    def _swap_off(self, device: str, *, used_bytes: Any, tell: Any) -> None:
        self.do(f"swapoff {device}")
        (self.root / "proc/swaps").write_text(tree.SWAPS)


class Wired(NbdNetlink):
    """The netlink of that kernel, whose devices show in sysfs."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kernel)
        self._world = world

    def connect(self, connection: Any) -> int:
        self._world.do("connect")
        index = super().connect(connection)
        tree.write(
            self._world.root,
            {
                f"sys/block/nbd{index}/pid": "9\n",
                f"sys/block/nbd{index}/size": f"{GIB // 512}\n",
                f"sys/block/nbd{index}/queue/scheduler": "none [mq-deadline]\n",
                f"sys/block/nbd{index}/queue/nr_requests": "256\n",
            },
        )
        return index

    def disconnect(self, index: int) -> None:
        self._world.do("disconnect")
        super().disconnect(index)
        shutil.rmtree(self._world.root / f"sys/block/nbd{index}")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_a_process_that_names_another_as_the_server_gets_no_swap(world: World) -> None:
    """A user that may write in /run/farside put its own socket there, and named a process whose guard is well."""
    world.answering_pid = 99

    with pytest.raises(PeerError, match="process 99 answers and says that process 71 does"):
        world.attach()

    assert world.log == []


def test_everything_is_done_in_its_order(world: World) -> None:
    result = world.attach()

    assert world.log == ["guard", "dial unix:/run/farside/nbd.sock 2", "connect", "mkswap", "swapon /dev/nbd0 100"]
    assert (result.attached.device, result.overruled) == ("/dev/nbd0", ())
    assert world.settings() == ("5", "131072")
    assert (world.root / "sys/block/nbd0/queue/scheduler").read_text() == "none"
    assert world.kernel.devices[0].backend == "farside:swap0"


def test_detaching_switches_swap_off_before_it_disconnects(world: World) -> None:
    world.attach()
    world.out(5 * MIB)
    world.log.clear()

    done = world.detach()

    assert world.log == ["swapoff /dev/nbd0", "let udev look", "look for users", "disconnect"]
    assert done.bytes_back == 5 * MIB
    assert read_records(world.root) == ()
    assert world.settings() == ("3", "67584")


def test_a_guarded_blockdev_is_not_replaced_again(world: World) -> None:
    for pid in (SUPERVISOR, SERVER):
        tree.process(world.root, pid)

    world.attach()

    assert "guard" not in world.log


def test_an_old_server_that_is_ended_before_it_answers_costs_no_attach(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def call(path: Path, command: str, *, timeout_s: float = 0) -> Any:
        asked.append(command)
        if asked == ["guard"]:
            world._call(path, command)
            raise admin.AnswerLost(f"{path}: the process there ended, or is no Farside process")
        return world.status

    monkeypatch.setattr(admin, "call", call)

    world.attach()

    assert asked.count("guard") == 2
    assert world.log[-1] == "swapon /dev/nbd0 100"


def test_a_block_device_touches_nothing_else(world: World) -> None:
    world.attach(is_swap=False)

    assert world.log == ["dial unix:/run/farside/nbd.sock 2", "connect"]
    assert world.settings() == ("3", "67584")
    world.detach("/dev/nbd0")
    assert world.log[-2:] == ["look for users", "disconnect"]


def test_a_refusal_comes_before_anything_is_done(world: World) -> None:
    world.status["offered"] = False

    with pytest.raises(Refused, match="waits for its donors"):
        world.attach()

    assert world.log == []
    assert world.settings() == ("3", "67584")


def test_a_guard_that_could_not_be_had_is_told_and_nothing_is_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "call", lambda *_, **__: world.status)

    with pytest.raises(Refused) as refused:
        world.attach()

    lines = str(refused.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "not safe to swap to, io flusher",
        "not safe to swap to, oom score",
    ]
    assert all(line.endswith(f"({MAY_HANG})") for line in lines)
    assert (world.log, world.settings(), read_records(world.root)) == ([], ("3", "67584"), ())


def test_it_can_be_forced_and_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "call", lambda *_, **__: world.status)

    result = world.attach(forced=(MAY_HANG,))

    assert len(result.overruled) == 2
    assert world.log[-1] == "swapon /dev/nbd0 100"


@pytest.mark.parametrize("step", ["dial unix:/run/farside/nbd.sock 2", "connect", "mkswap", "swapon /dev/nbd0 100"])
def test_a_step_that_fails_takes_back_those_before(world: World, step: str) -> None:
    world.fails_at = step

    with pytest.raises(FarsideError, match="failed"):
        world.attach()

    assert not world.kernel.devices[0].connected
    assert read_records(world.root) == ()
    assert world.settings() == ("3", "67584")


def test_a_second_attachment_is_refused(world: World) -> None:
    world.attach()

    with pytest.raises(Refused, match="attached already, as /dev/nbd0"):
        world.attach()


def test_hibernation_stays_forbidden_when_a_second_device_can_not_be_attached(world: World) -> None:
    (world.root / "run/systemd/system").mkdir(parents=True)
    world.attach()
    world.status["name"] = "other"
    world.fails_at = "swapon /dev/nbd1 100"

    with pytest.raises(FarsideError, match="swapon /dev/nbd1 100 failed"):
        world.attach()

    assert [record.device for record in read_records(world.root)] == ["/dev/nbd0"]
    assert (world.root / SLEEP_CONF).exists()
    world.detach("/dev/nbd0")
    assert not (world.root / SLEEP_CONF).exists()


def test_a_busy_device_is_refused(world: World) -> None:
    world.attach()
    world.status["name"] = "other"

    with pytest.raises(Refused, match="/dev/nbd0 is busy"):
        world.attach(index=0)


def test_a_file_system_is_not_overwritten_unasked(world: World) -> None:
    world.content = {"TYPE": "ext4"}

    with pytest.raises(Refused, match="no swap area: ext4"):
        world.attach()
    assert not world.kernel.devices[0].connected
    world.attach(forced=(OVERWRITE,))

    assert "mkswap" in world.log


def test_a_device_that_may_be_swap_is_not_taken_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farside.kmod_shim.swap.attach.read_swaps", lambda root: ())  # it can't be read
    world.fails_at = "look for users"

    with pytest.raises(FarsideError, match="not in /proc/swaps after swapon"):
        world.attach()

    assert "disconnect" not in world.log
    assert [record.device for record in read_records(world.root)] == ["/dev/nbd0"]


def test_swap_stays_on_where_memory_would_not_hold_it(world: World) -> None:
    world.attach()
    world.out(GIB)
    tree.write(world.root, {"proc/meminfo": tree.MEMINFO.format(total=8 << 20, available=512 << 10)})

    with pytest.raises(Refused, match="1 GiB are out"):
        world.detach()
    assert world.kernel.devices[0].connected
    world.detach(None, MEMORY_OUT)

    assert not world.kernel.devices[0].connected


def test_a_swapoff_that_fails_leaves_the_device_attached(world: World) -> None:
    world.attach()
    world.fails_at = "swapoff /dev/nbd0"

    with pytest.raises(FarsideError):
        world.detach()

    assert world.kernel.devices[0].connected
    assert len(read_records(world.root)) == 1


def test_a_device_that_somebody_uses_stays(world: World) -> None:
    world.attach(is_swap=False)
    world.fails_at = "look for users"

    with pytest.raises(FarsideError):
        world.detach()

    assert world.kernel.devices[0].connected


def test_the_record_of_a_device_that_is_gone_is_forgotten(world: World) -> None:
    world.attach(is_swap=False)
    shutil.rmtree(world.root / "sys/block/nbd0")

    with pytest.raises(ConfigError, match="no device is attached"):
        choose(world.root, None)

    assert read_records(world.root) == ()


def test_a_device_without_a_record_can_be_let_go(world: World) -> None:
    world.attach()
    for path in (world.root / "run/farside").iterdir():
        path.unlink()

    world.detach("/dev/nbd0")

    assert world.log[-4:] == ["swapoff /dev/nbd0", "let udev look", "look for users", "disconnect"]


def test_of_several_devices_one_must_be_named(world: World) -> None:
    world.attach(is_swap=False)
    world.status |= {"name": "swap1"}
    world.attach(is_swap=False)

    with pytest.raises(ConfigError, match="/dev/nbd0, /dev/nbd1"):
        choose(world.root, None)
    assert choose(world.root, "nbd1").export == "swap1"


def test_status_tells_what_the_kernel_and_the_server_say(world: World) -> None:
    world.attach()
    world.status["connections"] = 1

    (info,) = device_infos(world.root)

    assert info.swap is not None
    assert (info.swap.priority, info.block.scheduler, info.server_clients) == (100, "none", 1)
    assert info.served
    assert info.is_guarded


def test_status_goes_without_a_server_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.attach()

    def silent(*_: Any, **__: Any) -> Any:
        raise FarsideError("no answer")

    monkeypatch.setattr(admin, "call_process_of", silent)
    (info,) = device_infos(world.root)

    assert not info.served
    assert not info.is_guarded

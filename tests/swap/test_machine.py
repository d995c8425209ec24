"""What is read of the machine, and what is written to it: swap areas, disks, queues, settings, hibernation."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from farside.errors import ConfigError, Unavailable
from farside.kmod_shim.disk_backing import Backing, filesystem_of, find_backing, shares_disk
from farside.kmod_shim.nbd import client as nbd_client
from farside.kmod_shim.nbd import sysfs as nbd_sysfs
from farside.kmod_shim.preflight import Outcome, min_free_check
from farside.kmod_shim.swap.hibernation import (
    SLEEP_CONF,
    Hibernation,
    allow_sleep,
    forbid_sleep,
    hibernation_check,
    names_device,
    read_hibernation,
)
from farside.kmod_shim.swap.record import Attached, forget_record, live_records, read_records, save_record
from farside.kmod_shim.swap.sysctl import Before, leave_machine, restore_machine, tune_machine
from farside.kmod_shim.swap.table import SwapArea, find_area, parse_swaps, read_room, read_swaps
from farside.units import GIB, MIB
from tests.support.programs import need
from tests.swap import tree

SWAPS = tree.SWAPS + "/dev/nbd0\tpartition\t1048572\t2048\t100\n/var/my\\040swap file\t4\t0\t-2\n"


def record(index: int = 0, **changes: object) -> Attached:
    told: dict[str, object] = {
        "index": index,
        "export": f"swap{index}",
        "endpoint": "unix:/s",
        "admin_socket": "/a",
        "connections": 2,
        "size_bytes": GIB,
        "server_flags": 1,
        "backend": "farside:swap0",
        "is_swap": True,
        "priority": 100,
    }
    return Attached(**(told | changes))  # type: ignore[arg-type]


def test_a_path_with_a_space_is_read_as_it_is() -> None:
    text = tree.SWAPS + "/var/my\\040swäp\tfile\t8\t4\t-2\n"

    assert parse_swaps(text) == (
        SwapArea(path="/var/my swäp", kind="file", size_bytes=8192, used_bytes=4096, priority=-2),
    )


def test_areas_are_found_by_their_device(tmp_path: Path) -> None:
    root = tree.write(tmp_path, {"proc/swaps": SWAPS})

    area = find_area(read_swaps(root), "/dev/nbd0")

    assert area is not None
    assert (area.used_bytes, area.priority) == (2 * MIB, 100)
    assert find_area(read_swaps(root), "/dev/nbd1") is None
    assert read_swaps(tmp_path / "none") == ()


def test_room_is_what_memory_and_other_areas_have_left(tmp_path: Path) -> None:
    swaps = tree.SWAPS + "/dev/nbd0 partition 1048576 2048 100\n/dev/sda2 partition 4096 1024 -2\n"
    root = tree.write(tree.machine(tmp_path), {"proc/swaps": swaps})
    area = find_area(read_swaps(root), "/dev/nbd0")
    assert area is not None

    room = read_room(root, area)

    assert room.memory_bytes == 6 * GIB - 8 * GIB // 64
    assert room.other_swap_bytes == 3 * MIB


def test_groups_with_a_limit_and_pages_out_are_found_at_every_level(tmp_path: Path) -> None:
    root = tree.write(
        tree.machine(tmp_path),
        {
            "sys/fs/cgroup/a/memory.swap.current": "4096\n",
            "sys/fs/cgroup/a/memory.max": "max\n",
            "sys/fs/cgroup/a/b/memory.swap.current": "4096\n",
            "sys/fs/cgroup/a/b/memory.max": "65536\n",
            "sys/fs/cgroup/a/b/memory.current": "8192\n",
            "sys/fs/cgroup/a/b/memory.stat": "anon 4096\nactive_file 1024\ninactive_file 3072\n",
            "sys/fs/cgroup/c/memory.swap.current": "0\n",
            "sys/fs/cgroup/c/memory.max": "65536\n",
        },
    )
    area = SwapArea(path="/dev/nbd0", kind="partition", size_bytes=GIB, used_bytes=4096, priority=1)

    (group,) = read_room(root, area).groups

    assert (group.name, group.limit_bytes, group.swapped_bytes) == ("/a/b", 65536, 4096)
    assert group.used_bytes == 4096  # what it has cached goes first


# --- disks


MOUNTS = (
    "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "30 22 0:25 / /var/tmp rw - tmpfs tmpfs rw\n"
    "31 22 8:17 / /var/my\\040dïsk rw - xfs /dev/sdb1 rw\n"
)


def test_the_longest_mount_point_above_a_file_is_its_file_system() -> None:
    found = [
        filesystem_of(Path(path), MOUNTS) for path in ("/var/lib/x", "/var/tmp/x", "/var/tmpfile", "/var/my dïsk/x")
    ]

    assert found == ["ext4", "tmpfs", "ext4", "xfs"]


def test_a_file_lies_on_its_partition_its_disk_and_what_is_below(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.touch()
    number = f"{os.major(file.stat().st_dev)}:{os.minor(file.stat().st_dev)}"
    root = tree.write(
        tmp_path / "root",
        {
            "proc/self/mountinfo": f"22 1 {number} / / rw - ext4 /dev/dm-0 rw\n",
            "sys/devices/virtual/block/dm-0/size": "8\n",
            "sys/devices/pci/block/sda/size": "8\n",
            "sys/devices/pci/block/sda/sda1/partition": "1\n",
        },
    )
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block" / number).symlink_to(root / "sys/devices/virtual/block/dm-0")
    (root / "sys/devices/virtual/block/dm-0/slaves").mkdir()
    (root / "sys/devices/virtual/block/dm-0/slaves/sda1").symlink_to(root / "sys/devices/pci/block/sda/sda1")

    backing = find_backing(file, root)

    assert backing == Backing(filesystem="ext4", devices=("dm-0", "sda1", "sda"))
    assert find_backing(tmp_path / "not/there/yet", root) == backing


def test_a_loop_devices_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "disk"
    file.touch()
    number = f"{os.major(file.stat().st_dev)}:{os.minor(file.stat().st_dev)}"
    root = tree.write(
        tmp_path / "root",
        {
            "proc/self/mountinfo": f"22 1 {number} / / rw - ext4 /dev/loop3 rw\n",
            "sys/block/loop3/loop/backing_file": "/dev/shm/image\n",
        },
    )
    (root / "sys/dev/block").mkdir(parents=True)
    (root / "sys/dev/block" / number).symlink_to(root / "sys/block/loop3")

    assert find_backing(file, root).files == ("/dev/shm/image",)


def test_memory_is_no_disk() -> None:
    assert Backing(filesystem="tmpfs", devices=()).is_memory
    assert Backing(filesystem="ext4", devices=("zram0",)).is_memory
    assert Backing(filesystem="", devices=("ram0",)).is_memory
    assert not Backing(filesystem="ext4", devices=("sda1", "sda")).is_memory


def test_two_partitions_of_one_disk_share_it() -> None:
    one = Backing(filesystem="", devices=("sda1", "sda"))

    assert shares_disk(one, Backing(filesystem="ext4", devices=("dm-0", "sda2", "sda"))) == "sda"
    assert shares_disk(one, Backing(filesystem="ext4", devices=("sdb",))) == ""


# --- the device's queue


def device(root: Path, *, scheduler: str = "none [mq-deadline]", requests: str = "256") -> Path:
    return tree.write(
        root,
        {
            "sys/block/nbd0/size": "2048\n",
            "sys/block/nbd0/pid": "77\n",
            "sys/block/nbd0/backend": "farside:swap0\n",
            "sys/block/nbd0/queue/scheduler": f"{scheduler}\n",
            "sys/block/nbd0/queue/nr_requests": f"{requests}\n",
        },
    )


def test_a_device_is_read_as_sysfs_tells_it(tmp_path: Path) -> None:
    block = nbd_sysfs.read_block(device(tmp_path), 0)

    assert block is not None
    assert (block.size_bytes, block.pid, block.backend) == (MIB, 77, "farside:swap0")
    assert (block.scheduler, block.queue_depth) == ("mq-deadline", 256)
    assert nbd_sysfs.read_block(tmp_path, 1) is None


def test_the_queue_gets_no_scheduler_and_no_more_than_its_tags(tmp_path: Path) -> None:
    root = device(tmp_path)

    nbd_sysfs.tune_queue(root, 0)

    assert (root / "sys/block/nbd0/queue/scheduler").read_text() == "none"
    assert (root / "sys/block/nbd0/queue/nr_requests").read_text() == "128"


def test_a_queue_that_can_not_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="scheduler"):
        nbd_sysfs.tune_queue(tmp_path, 0)


@pytest.mark.parametrize(("name", "index"), [("/dev/nbd0", 0), ("nbd12", 12), ("7", 7)])
def test_a_device_may_be_named_in_short(name: str, index: int) -> None:
    assert nbd_sysfs.device_index(name) == index


def test_what_is_no_nbd_device_is_told() -> None:
    with pytest.raises(ConfigError, match="'/dev/sda' is not an nbd device"):
        nbd_sysfs.device_index("/dev/sda")


def test_a_module_that_is_loaded_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("modprobe was called"))

    nbd_sysfs.load_module(tree.machine(tmp_path))


def test_a_kernel_without_nbd_says_what_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess(["modprobe"], 1, "", "modprobe: FATAL: Module nbd not found\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    with pytest.raises(Unavailable, match=r"has no nbd module.*linux-image-amd64"):
        nbd_sysfs.load_module(tmp_path)


def test_a_swap_signature_is_written_and_found(tmp_path: Path) -> None:
    need("mkswap", "blkid")
    file = tmp_path / "area"
    file.touch()
    os.truncate(file, 4 * MIB)

    assert nbd_sysfs.signature(str(file)) == {}
    uuid = nbd_sysfs.write_swap_signature(str(file), "farside-a-name-that-is-long")

    assert nbd_sysfs.signature(str(file)) == {"TYPE": "swap", "UUID": uuid, "LABEL": "farside-a-name-"}


def test_swap_may_be_smaller_than_its_device(tmp_path: Path) -> None:
    need("mkswap", "blkid")
    file = tmp_path / "area"
    file.touch()
    os.truncate(file, 4 * MIB)

    nbd_sysfs.write_swap_signature(str(file), "farside-a", 2 * MIB)

    # `last_page` of the header (include/linux/swap.h), which the kernel goes by.
    assert int.from_bytes(file.read_bytes()[1028:1032], sys.byteorder) == 2 * MIB // 4096 - 1


def test_what_else_stands_there_is_found(tmp_path: Path) -> None:
    need("mke2fs", "blkid")
    file = tmp_path / "area"
    file.touch()
    os.truncate(file, 4 * MIB)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", str(file)], check=True)

    assert nbd_sysfs.signature(str(file))["TYPE"] == "ext4"


def test_a_machine_without_udev_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")

    nbd_sysfs.wait_for_udev()


# --- the machine's settings, and the record that puts them back


def settings(root: Path) -> tuple[str, ...]:
    names = ("page-cluster", "min_free_kbytes", "watermark_boost_factor")
    return tuple((root / "proc/sys/vm" / name).read_text().strip() for name in names)


def test_the_machine_is_tuned_and_put_back(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)

    before = tune_machine(root)

    assert settings(root) == ("5", str(8 * GIB // 64 // 1024), "0")
    restore_machine(root, before)
    assert settings(root) == ("3", "67584", "15000")


@pytest.mark.parametrize("total_kib", [271_848, 271_849, 271_871, 16_384_001])
def test_a_reserve_that_was_just_set_is_large_enough(tmp_path: Path, total_kib: int) -> None:
    root = tree.machine(tmp_path)
    (root / "proc/meminfo").write_text(f"MemTotal: {total_kib} kB\nMemAvailable: 1024 kB\n")
    (root / "proc/sys/vm/min_free_kbytes").write_text("1024\n")

    tune_machine(root)

    assert min_free_check(root).outcome is Outcome.OK


def test_what_is_well_already_is_not_touched(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tune_machine(root)

    assert tune_machine(root) == Before()


def test_the_last_device_puts_back_what_the_first_one_found(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    before = tune_machine(root)
    first = record(
        0,
        page_cluster_before=before.page_cluster,
        min_free_kbytes_before=before.min_free_kbytes,
        watermark_boost_before=before.watermark_boost,
    )
    second = record(1)
    save_record(root, second)

    leave_machine(root, first, (second,))
    assert settings(root)[0] == "5"
    (heir,) = (kept for kept in read_records(root) if kept.index == 1)
    leave_machine(root, heir, ())

    assert settings(root) == ("3", "67584", "15000")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_record(tmp_path, record(3))
    save_record(tmp_path, record(1, is_swap=False))
    tree.write(tmp_path, {"run/farside/attached-nbd2.json": "{", "run/farside/blockdev.json": "{}"})
    (tmp_path / "run/farside/attached-nbd4.json").write_bytes(b'{"export": "\xff\xfe"}')

    assert read_records(tmp_path) == (record(1, is_swap=False), record(3))
    forget_record(tmp_path, 3)
    forget_record(tmp_path, 3)
    assert [kept.index for kept in read_records(tmp_path)] == [1]


@pytest.mark.parametrize("how", ["another user's", "a link", "a pipe"])
def test_a_record_that_root_did_not_write_counts_for_nothing(tmp_path: Path, how: str) -> None:
    """[M10] The services' users may write in the folder: what root does is not to follow from what they put there."""
    save_record(tmp_path, record(3))
    save_record(tmp_path, record(5))
    path = tmp_path / "run/farside/attached-nbd3.json"
    if how == "a link":
        path.unlink()
        path.symlink_to("attached-nbd5.json")
    elif how == "a pipe":
        path.unlink()
        os.mkfifo(path)
    elif os.geteuid() == 0:
        os.chown(path, 12345, 12345)
    else:
        pytest.skip("only root can give a file to another user")

    assert read_records(tmp_path) == (record(5),)


def test_a_stale_record_that_this_user_may_not_remove_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    save_record(tmp_path, record(3))
    monkeypatch.setattr(Path, "unlink", refuse)

    assert live_records(tmp_path) == ()
    assert read_records(tmp_path) == (record(3),)


# --- hibernation


def test_where_an_image_would_go_is_read(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.write(root, {"sys/power/resume": "43:0\n", "proc/cmdline": "ro resume=/dev/nbd0 quiet\n"})

    found = read_hibernation(root)

    assert found.is_possible
    assert names_device(found, "/dev/nbd0", "")
    assert names_device(found, "/dev/nbd7", "43:0")
    assert not names_device(found, "/dev/nbd1", "43:16")


def test_a_machine_that_names_no_area_hibernates_to_no_device_also_before_nbd_is_loaded() -> None:
    found = Hibernation(is_possible=True, resume_device="", resume_argument="")

    assert not names_device(found, "/dev/nbd0", "")


def test_a_kernel_that_refuses_hibernation_can_not(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    tree.write(root, {"sys/power/disk": "[disabled]\n"})

    assert not read_hibernation(root).is_possible
    assert not read_hibernation(tmp_path / "none").is_possible


def test_systemd_is_told_while_a_device_is_attached(tmp_path: Path) -> None:
    forbid_sleep(tmp_path)
    assert not (tmp_path / SLEEP_CONF).exists()  # no systemd here

    (tmp_path / "run/systemd/system").mkdir(parents=True)
    forbid_sleep(tmp_path)
    assert "AllowHibernation=no" in (tmp_path / SLEEP_CONF).read_text()

    allow_sleep(tmp_path)
    assert not (tmp_path / SLEEP_CONF).exists()


# --- nbd-client, for old kernels


def test_nbd_client_is_told_everything_in_its_words() -> None:
    assert nbd_client.connect_command("unix:/run/s", "swap0", 2, connections=4, is_swap=True) == [
        *("nbd-client", "-unix", "/run/s", "/dev/nbd2", "-name", "swap0", "-block-size", "4096"),
        *("-timeout", "30", "-connections", "4", "-swap", "-nonetlink"),
    ]
    assert nbd_client.connect_command("tcp:10.0.0.1:10809", "x", 0, connections=1, is_swap=False, netlink=True)[:4] == [
        *("nbd-client", "10.0.0.1", "10809", "/dev/nbd0"),
    ]


@pytest.mark.parametrize("name", ["", "nbd", "/dev/sda", "/dev/nbd\u00b2"])
def test_what_is_no_nbd_device_is_quoted(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^'{name}' is not an nbd device"):
        nbd_sysfs.device_index(name)


def test_hibernation_is_noted_only_where_swap_is_served(tmp_path: Path) -> None:
    root = tree.machine(tmp_path)
    assert hibernation_check(root).outcome is Outcome.OK

    tree.write(root, {"proc/swaps": SWAPS})
    check = hibernation_check(root)
    assert check.outcome is Outcome.WARNING
    assert "nohibernate" in check.advice

    tree.write(root, {"sys/power/disk": "[disabled]\n"})
    assert hibernation_check(root).outcome is Outcome.OK

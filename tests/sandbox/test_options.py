"""The sandbox's options: what they become, and what is refused before anything starts."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from farside.config import BlockdevConfig, DaemonConfig, load_config
from farside.config.peers_text import peers_text
from farside.errors import ConfigError
from farside.sandbox import settings
from farside.sandbox.files import backup_disk, free_port, uri
from farside.sandbox.layout import Plan
from farside.sandbox.main import checked, run

MIB = 1 << 20


def plan(**changes: Any) -> Plan:
    """A good plan with changes."""
    values: dict[str, Any] = {
        "donors": 3,
        "donor_memory_bytes": 256 * MIB,
        "transport": "tcp",
        "size_bytes": 256 * MIB,
        "listen": ("unix:/tmp/s", "tcp:127.0.0.1:10809"),
        "protection": "disk",
        "disk": Path("/tmp/d"),
        "slab_bytes": 16 * MIB,
        "workers": 8,
        "restart_donors": False,
    }
    return checked(Plan(**(values | changes)))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"donors": 0}, "--donors"),
        ({"transport": "pigeon"}, "--transport"),
        ({"size_bytes": MIB}, "--size"),
        ({"slab_bytes": 3 * MIB}, "--slab"),
        ({"donor_memory_bytes": 16 * MIB}, "--donor-memory"),
        ({"protection": "replica", "donors": 1}, "--replicas"),
        ({"protection": "replica", "size_bytes": 512 * MIB}, "--size"),
        ({"protection": "none", "size_bytes": 1024 * MIB}, "--size"),
        ({"listen": ("carrier-pigeon",)}, "--listen"),
        ({"listen": ("unix:",)}, "--listen"),
        ({"listen": ("tcp:127.0.0.1",)}, "--listen"),
        ({"listen": (f"unix:/{'s' * 107}",)}, "--listen .* longer than the 107 bytes"),
    ],
)
def test_an_option_that_cannot_work_is_refused_by_name(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        plan(**changes)


def test_two_ways_of_protection_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--no-protection and --replicas 2"):
        run(replicas=2, no_protection=True, state=tmp_path)


@pytest.mark.parametrize("option", ["aggregators", "executors", "later"])
def test_more_of_what_a_node_has_than_there_are_nodes_is_refused_by_name(option: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--{option} 3: there are only 2 nodes"):
        run(cluster="2x1", state=tmp_path, **{option: 3})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=f"--{option}: there are no nodes for them"):
        run(state=tmp_path, **{option: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize(("cluster", "there_are"), [("2x1", "there are only 2 nodes"), ("1x1", "there is only 1 node")])
def test_a_sandbox_that_would_start_without_a_node_is_refused(cluster: str, there_are: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{there_are}, and one at least must start with the sandbox"):
        run(cluster=cluster, state=tmp_path, later=int(cluster[0]))


def test_a_refused_sandbox_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run(donors=0, state=tmp_path / "state")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("protection", ["disk", "replica", "none"])
def test_the_written_settings_are_ones_that_farside_reads(tmp_path: Path, protection: str) -> None:
    made = plan(protection=protection)
    donor, borrower = tmp_path / "donor.toml", tmp_path / "borrower.toml"

    donor.write_text(settings.toml_text(settings.donor_settings(made, tmp_path, name="d1", listen="tcp:127.0.0.1:1")))
    borrower.write_text(settings.toml_text(settings.blockdev_settings(made, tmp_path)))

    assert load_config(DaemonConfig, (donor,)).node == "d1"
    assert load_config(BlockdevConfig, (borrower,)).protection == protection


def test_the_peers_file_names_every_donor() -> None:
    text = peers_text({"d1": "tcp:127.0.0.1:1", "d2": "unix:/x"})

    assert [donor["node"] for donor in tomllib.loads(text)["donor"]] == ["d1", "d2"]


def test_a_listener_becomes_a_uri() -> None:
    assert uri("unix:/run/x") == "nbd+unix:///?socket=/run/x"
    assert uri("tcp:127.0.0.1:10809") == "nbd://127.0.0.1:10809"


def test_a_port_is_outside_the_range_of_outgoing_connections() -> None:
    assert 20000 <= free_port() < 32768


def test_a_backup_disk_that_is_not_there_is_made_and_goes_again(tmp_path: Path) -> None:
    with backup_disk(tmp_path / "disk", MIB):
        assert (tmp_path / "disk").stat().st_size == MIB

    assert not (tmp_path / "disk").exists()


def test_a_backup_disk_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "disk").write_bytes(bytes(MIB))

    with backup_disk(tmp_path / "disk", MIB):
        pass

    assert (tmp_path / "disk").stat().st_size == MIB


def test_a_file_that_is_too_small_for_a_backup_disk_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "disk").write_text("precious")

    with pytest.raises(ConfigError, match="has 8 B where 1 MiB are needed"), backup_disk(tmp_path / "disk", MIB):
        pass

    assert (tmp_path / "disk").read_text() == "precious"


@pytest.mark.parametrize(("name", "size_bytes"), [("disk", 1 << 60), ("none/disk", MIB)])
def test_a_backup_disk_without_room_is_one_line(tmp_path: Path, name: str, size_bytes: int) -> None:
    with pytest.raises(ConfigError, match="backup disk"), backup_disk(tmp_path / name, size_bytes):
        pass

    assert list(tmp_path.iterdir()) == []

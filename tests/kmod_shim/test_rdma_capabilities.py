"""What RDMA devices can do, and what is said of what they lack."""

import importlib.util
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from farside.errors import Unavailable
from farside.kmod_shim.preflight import Outcome
from farside.kmod_shim.rdma.capabilities import (
    Capabilities,
    _capabilities,
    capability_checks,
    device_checks,
    read_capabilities,
)
from farside.kmod_shim.rdma.devices import devices as find_devices
from farside.units import MIB

SLAB = 64 * MIB
GOOD = Capabilities(
    name="mlx5_0", is_active=True, mtu_bytes=4096, reads_outstanding=16, region_bytes=1 << 40, has_windows=True
)


def test_a_device_that_can_everything_is_told_in_one_line() -> None:
    (check,) = capability_checks([GOOD], SLAB)

    assert check.outcome is Outcome.OK
    assert check.found == "mlx5_0: packets of 4096 bytes, 16 reads in flight, windows"


@pytest.mark.parametrize(
    ("lack", "said", "way_out"),
    [
        ({"is_active": False, "mtu_bytes": 0}, "its port is down", "ip link set"),
        ({"region_bytes": MIB}, "registers 1 MiB at most", "slab_bytes"),
        ({"reads_outstanding": 4}, "4 reads in flight", "firmware"),
        ({"mtu_bytes": 1024}, "packets of 1024 bytes", "mtu 4200"),
    ],
)
def test_a_lack_is_noted_with_the_way_out(lack: dict[str, int], said: str, way_out: str) -> None:
    (check,) = capability_checks([replace(GOOD, **lack)], SLAB)  # type: ignore[arg-type]  # one field at a time

    assert check.outcome is Outcome.WARNING
    assert said in check.found
    assert way_out in check.advice


def test_without_windows_it_works_all_the_same() -> None:
    (check,) = capability_checks([replace(GOOD, has_windows=False)], SLAB)

    assert check.outcome is Outcome.OK
    assert "no windows" in check.found


def test_the_numbers_of_verbs_are_read_as_verbs_means_them() -> None:
    device = SimpleNamespace(max_qp_rd_atom=16, max_mr_size=1 << 40, device_cap_flags=1 << 24)
    up, down = SimpleNamespace(state=4, active_mtu=5), SimpleNamespace(state=1, active_mtu=3)

    assert _capabilities("mlx5_0", device, up) == GOOD
    assert _capabilities("mlx5_0", device, down).mtu_bytes == 0


def test_a_device_that_is_not_there_is_one_line() -> None:
    with pytest.raises(Unavailable, match=r"can't be opened|not installed"):
        read_capabilities("none0")


def test_a_library_that_sets_the_log_up_changes_nothing_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "pyverbs"
    package.mkdir()
    package.joinpath("__init__.py").touch()
    package.joinpath("device.py").write_text("import logging\nlogging.basicConfig(level=logging.INFO)\n")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    for name in ("pyverbs", "pyverbs.device"):
        monkeypatch.setitem(sys.modules, name, logging)  # so that what is imported here is gone again afterwards
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Unavailable, match="not installed"):  # it has no Context
        read_capabilities("none0")

    assert "pyverbs.device" in sys.modules, "it was imported"
    assert (root.handlers, root.level) == ([], logging.WARNING)


@pytest.mark.rdma
def test_this_machines_devices_can_be_asked() -> None:
    devices = find_devices()
    if not devices or importlib.util.find_spec("pyverbs") is None:
        pytest.skip("no RDMA device here, or no pyverbs")

    assert [check.name for check in device_checks(devices, SLAB)] == ["rdma device"] * len(devices)

"""Soft RDMA links: what is asked of the kernel, and what each of its refusals becomes."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from farside.errors import ConfigError, EngineError, Unavailable
from farside.kmod_shim import rdma_netlink, rxe
from farside.kmod_shim.rdma_netlink import Acknowledged, Answer, Listed


class Kernel:
    """Answers every change with one errno, and lists the devices it is told of; remembers what it was asked."""

    def __init__(self, code: int = 0, **devices: int) -> None:
        self.code = code
        self.devices = devices
        self.asked: list[bytes] = []

    def __call__(self, request: bytes) -> list[Answer]:
        self.asked.append(request)
        if request == rdma_netlink.list_devices(1):
            listed = [Listed(sequence=1, index=index, name=name) for name, index in self.devices.items()]
            return [*listed, Acknowledged(sequence=1, errno=0)]
        return [Acknowledged(sequence=1, errno=self.code)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with eth1, and the driver loaded."""
    for name in ("sys/class/net/eth1", "sys/class/net/lo", "sys/module/rdma_rxe"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_a_link_is_asked_for_by_name_kind_and_network_device(root: Path) -> None:
    kernel = Kernel()

    rxe.create_link("rxe0", "eth1", root=root, ask=kernel)

    assert kernel.asked == [rdma_netlink.new_link(1, name="rxe0", kind="rxe", netdev="eth1")]


def test_a_network_device_that_is_not_there_is_said_with_those_that_are(root: Path) -> None:
    with pytest.raises(ConfigError, match="rxe0: no network device eth7; there are: eth1, lo"):
        rxe.create_link("rxe0", "eth7", root=root, ask=Kernel())


def test_a_name_that_is_taken_is_not_asked_for(root: Path) -> None:
    (root / "sys/class/infiniband/rxe0").mkdir(parents=True)
    kernel = Kernel()

    with pytest.raises(ConfigError, match="there is an RDMA device rxe0 already"):
        rxe.create_link("rxe0", "eth1", root=root, ask=kernel)

    assert kernel.asked == []


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (errno.EPERM, Unavailable, "only root"),
        (errno.EEXIST, ConfigError, "eth1 has an RDMA device, or the name is taken"),
        (errno.EINVAL, ConfigError, "the kernel makes no RDMA device of eth1"),
        (errno.ENOMEM, EngineError, "ENOMEM"),
    ],
)
def test_each_refusal_has_its_words(root: Path, code: int, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        rxe.create_link("rxe0", "eth1", root=root, ask=Kernel(code))


def test_a_kernel_without_the_driver_is_said(root: Path, program: Callable[[str, str], None]) -> None:
    (root / "sys/module/rdma_rxe").rmdir()
    program("modprobe", "echo 'FATAL: Module rdma_rxe not found' >&2; exit 1")

    with pytest.raises(Unavailable, match=r"rdma_rxe can't be loaded .*: FATAL: Module rdma_rxe not found; linux"):
        rxe.create_link("rxe0", "eth1", root=root, ask=Kernel())


def test_the_driver_is_loaded_first(root: Path, program: Callable[[str, str], None], tmp_path: Path) -> None:
    (root / "sys/module/rdma_rxe").rmdir()
    program("modprobe", f'echo "$@" >{tmp_path}/loaded')

    rxe.create_link("rxe0", "eth1", root=root, ask=Kernel())

    assert (tmp_path / "loaded").read_text() == "rdma_rxe\n"


def test_a_link_is_removed_by_the_number_that_the_kernel_lists() -> None:
    kernel = Kernel(mlx5_0=0, rxe0=4)

    rxe.remove_link("rxe0", ask=kernel)

    assert kernel.asked[-1] == rdma_netlink.delete_link(2, index=4)


def test_only_what_is_there_and_soft_can_be_removed() -> None:
    with pytest.raises(ConfigError, match="no RDMA device rxe0; there are: mlx5_0"):
        rxe.remove_link("rxe0", ask=Kernel(mlx5_0=0))
    with pytest.raises(ConfigError, match="mlx5_0 is no soft RDMA device"):
        rxe.remove_link("mlx5_0", ask=Kernel(errno.EOPNOTSUPP, mlx5_0=0))


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Puts a shell script of that name before all other programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(name: str, body: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)

    return put

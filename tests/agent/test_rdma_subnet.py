"""A node's InfiniBand subnets, read from fake trees of sysfs."""

from pathlib import Path

from farside.agent.sense.rdma_subnet import read_rdma_subnet
from tests.kmod_shim.test_rdma_devices import LINK_LOCAL, add_port

OTHER = "fec0:0000:0000:0007:5054:00ff:fe77:0002"


def test_a_node_without_rdma_has_no_subnet(tmp_path: Path) -> None:
    assert read_rdma_subnet(tmp_path) == ""


def test_ports_of_two_fabrics_are_told_in_order(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", netdev="", gids=((OTHER, "IB/RoCE v1"),))
    add_port(tmp_path, "mlx5_1", netdev="", gids=((LINK_LOCAL, "IB/RoCE v1"),))

    assert read_rdma_subnet(tmp_path) == "fe80:0000:0000:0000,fec0:0000:0000:0007"


def test_a_port_that_is_down_keeps_its_subnet(tmp_path: Path) -> None:
    add_port(tmp_path, "mlx5_0", state="1: DOWN", netdev="", gids=((OTHER, "IB/RoCE v1"),))

    assert read_rdma_subnet(tmp_path) == "fec0:0000:0000:0007"


def test_roce_has_no_subnet_of_its_own(tmp_path: Path) -> None:
    add_port(tmp_path, "rxe0", gids=((LINK_LOCAL, "RoCE v2"),))

    assert read_rdma_subnet(tmp_path) == ""


def test_a_device_that_leaves_while_it_is_read_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)

    assert read_rdma_subnet(tmp_path) == ""

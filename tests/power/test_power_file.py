"""The file that names each node's BMC."""

from pathlib import Path

import pytest

from farside.errors import ConfigError
from farside.scheduler.power.driver.catalog import read_drivers
from farside.scheduler.power.driver.command import CommandDriver
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.ipmi import IpmiDriver
from farside.scheduler.power.driver.redfish import RedfishDriver

_FILE = """
[node.gpu1]
driver = "ipmi"
host = "10.1.0.1"
user = "farside"
password_file = "/etc/farside/bmc.password"
[node.gpu2]
driver = "redfish"
url = "https://10.1.0.2"
user = "farside"
password_file = "/etc/farside/bmc.password"
verify = false
[node.gpu3]
driver = "command"
program = ["/usr/local/sbin/strip", "--rack=3"]
[node.gpu4]
driver = "dry-run"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "power.toml"
    path.write_text(text)
    return path


def test_every_node_gets_its_driver(tmp_path: Path) -> None:
    found = read_drivers(written(tmp_path, _FILE))

    password_file = Path("/etc/farside/bmc.password")
    assert found["gpu1"] == IpmiDriver(node="gpu1", host="10.1.0.1", user="farside", password_file=password_file)
    assert found["gpu2"] == RedfishDriver(
        node="gpu2", url="https://10.1.0.2", user="farside", password_file=password_file, verify=False
    )
    assert found["gpu3"] == CommandDriver(node="gpu3", program=("/usr/local/sbin/strip", "--rack=3"))
    assert isinstance(found["gpu4"], DryRunDriver)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"has other tables than \[node.NAME\], or none"),
        ("[nodes.a]\n", r"has other tables than \[node.NAME\]"),
        ("[node.a]\nhost = 'x'\n", "node a: lacks driver; one of ipmi"),
        ("[node.a]\ndriver = 'impi'\n", "node a: no power driver 'impi'; did you mean 'ipmi'?"),
        ("[node.a]\ndriver = 'ipmi'\nhots = 'x'\n", "node a: no setting 'hots'; it takes host"),
        ("[node.a]\ndriver = 'ipmi'\nhost = 'x'\n", "node a: .*user"),
        ("[node.a]\ndriver = 'command'\nprogram = 'strip'\n", "node a: .*program"),
        ("[node.a]\ndriver = 'wake-on-lan'\nmac = '52:54'\naddress = 'a:22'\n", "node a: .*not like 52:54:00:12:34:56"),
        ("[node.a]\ndriver = 'wake-on-lan'\nmac = '52:54:00:12:34:56'\naddress = 'a'\n", "node a: .*not HOST:PORT"),
        ("[node.a]\ndriver = 'dry-run'\nlimit_s = 3\n", "node a: no setting 'limit_s'; it takes nothing"),
        ("[node.a\n", "is not TOML"),
    ],
)
def test_a_mistake_is_told_with_its_node_and_field(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_drivers(written(tmp_path, text))


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_drivers(tmp_path / "none.toml")

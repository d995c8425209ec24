"""Power drivers of a cluster's nodes, read from a TOML file: a table ``[node.NAME]`` for each node.

    [node.gpu7]
    driver = "ipmi"            # ipmi, redfish, command, wake-on-lan, dry-run
    host = "10.1.0.7"
    user = "farside"
    password_file = "/etc/farside/bmc.password"

What a driver takes is what its class has as fields, by the same names.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from farside.errors import ConfigError
from farside.scheduler.power.driver.command import CommandDriver
from farside.scheduler.power.driver.driver import PowerDriver
from farside.scheduler.power.driver.dry_run import DryRunDriver
from farside.scheduler.power.driver.ipmi import IpmiDriver
from farside.scheduler.power.driver.redfish import RedfishDriver
from farside.scheduler.power.driver.wake_on_lan import WakeOnLanDriver
from farside.scheduler.settings import chosen

DRIVERS: Mapping[str, type[Any]] = {
    "ipmi": IpmiDriver,
    "redfish": RedfishDriver,
    "command": CommandDriver,
    "wake-on-lan": WakeOnLanDriver,
    "dry-run": DryRunDriver,
}


def read_drivers(path: Path) -> Mapping[str, PowerDriver]:
    """Read the driver of each node from a file.

    Raises:
        ConfigError: The file cannot be read, or a table is wrong; the message names the node and the field.
    """
    try:
        told = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror}", hint="name a file with a table [node.NAME] for each node"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}", hint="fix it") from error
    tables = told.get("node")
    if not isinstance(tables, dict) or not tables or set(told) != {"node"}:
        raise ConfigError(f"{path}: has other tables than [node.NAME], or none", hint="one for each node")
    return {
        name: _driver(f"{path}, node {name}", name, table) for name, table in cast("dict[str, Any]", tables).items()
    }


def _driver(where: str, name: str, table: object) -> PowerDriver:
    if not isinstance(table, dict) or not isinstance(table.get("driver"), str):
        raise ConfigError(f"{where}: lacks driver", hint=f"one of {', '.join(DRIVERS)}")
    fields: dict[str, Any] = {key: value for key, value in table.items() if key != "driver"}
    try:
        kind = chosen(table["driver"], DRIVERS, "power driver")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if kind is DryRunDriver:
        _refuse_unknown(where, fields, ())
        return DryRunDriver(name)
    _refuse_unknown(where, fields, [one for one in kind.__dataclass_fields__ if one != "node"])
    try:
        driver = msgspec.convert({**fields, "node": name}, kind, dec_hook=_path)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", hint="see docs/power.md") from error
    return cast("PowerDriver", driver)


def _refuse_unknown(where: str, fields: Mapping[str, Any], known: Any) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        hint = f"it takes {', '.join(known)}" if known else "it takes nothing"
        raise ConfigError(f"{where}: no setting {unknown[0]!r}", hint=hint)


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise msgspec.ValidationError(f"expected {kind.__name__}, got {type(value).__name__}")

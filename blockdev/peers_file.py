"""The peers file: the donors and the addresses of their control listeners.

[[donor]]
node = "d1"
control = "tcp:10.0.0.1:7001"        # or "unix:/run/farside/donor.sock"
owner = "n1"                         # the manager's name of its node, where that is another
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farside.config.convert import nearest
from farside.endpoint import parse_endpoint
from farside.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DonorAddress:
    """One donor: its node name, and its control listener, ``tcp:HOST:PORT`` or ``unix:PATH``.

    ``owner`` is the node that it belongs to, as the manager knows it by its token; empty: of the donor's name.
    """

    node: str
    control: str
    owner: str = ""

    @property
    def trusted_as(self) -> str:
        """The name that its damage counts for. A donor chooses its own, and could take another one each time."""
        return self.owner or self.node


class _File(msgspec.Struct):
    donor: list[DonorAddress] = []


# First the shape alone, so that names can be checked before msgspec reads the values.
_TABLES = dict[str, list[dict[str, str]]]


def parse_peers(text: str, name: str) -> tuple[DonorAddress, ...]:
    """Donors in the text of a peers file; ``name`` is for error messages.

    Raises:
        ConfigError: it is no TOML, has unknown keys, names a node twice, or an address of another kind.
    """
    try:
        tables = msgspec.convert(tomllib.loads(text), type=_TABLES)
        _check_names(tables, ("donor",), f"peers file {name}")
        for number, table in enumerate(tables.get("donor", ()), 1):
            _check_names(table, ("node", "control", "owner"), f"peers file {name}: [[donor]] number {number}")
        donors = msgspec.convert(tables, type=_File).donor
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ConfigError(f"peers file {name}: {error}") from error
    nodes = [donor.node for donor in donors]
    for donor in donors:
        if nodes.count(donor.node) > 1:
            raise ConfigError(f"peers file {name}: node {donor.node!r} is named twice")
        try:
            parse_endpoint(donor.control)
        except ValueError as error:
            raise ConfigError(f"peers file {name}: node {donor.node!r}: control: {error}") from error
    return tuple(donors)


def _check_names(table: Iterable[str], names: tuple[str, ...], where: str) -> None:
    # msgspec takes unknown names in a dataclass, and where it refuses them it suggests none.
    for name in table:
        if name not in names:
            meant = nearest(name, names)
            hint = f"did you mean {meant!r}?" if meant else f"there is only {_listed(names)}"
            raise ConfigError(f"{where}: no such name: {name!r}", hint=hint)


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def read_peers(path: Path) -> tuple[DonorAddress, ...]:
    """The donors of a peers file. Raises ConfigError as ``parse_peers``, and when it can't be read."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"peers file {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"peers file {path}: not UTF-8") from error
    return parse_peers(text, str(path))

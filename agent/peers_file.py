"""The peers file of this node's borrower, written from the manager's list of donors.

It outlives the agent and the machine: with no manager there, its last list counts. The borrower reads it again when
it changes (`peers_file` of `farside blockdev` names it), and finds it whole at any moment.
"""

import tomllib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from farside.agent.messages import DonorAddress
from farside.agent.peering import Known, merged
from farside.config.peers_text import peers_text
from farside.endpoint import is_on_network
from farside.log import get_log
from farside.whole_file import write_whole

HEAD = "# Donors as the manager knows them, written by farside agent: what is changed here does not last.\n\n"

_log = get_log("agent.peers")


class _File(msgspec.Struct):
    donor: list[DonorAddress] = []


class PeersFile:
    """The peers file, written when the list of donors changes.

    Attributes:
        problem: Why it could not be written; empty: it could.
    """

    def __init__(self, path: Path) -> None:
        """Start from the donors in the file, and make an empty file if there is none."""
        self.problem = ""
        self._path = path
        self._known: tuple[Known, ...] = tuple(Known(address=address) for address in self._read())
        if not path.exists():
            self._write(())

    @property
    def donors(self) -> int:
        """Number of donors in the file."""
        return len(self._known)

    def take(self, told: Iterable[DonorAddress], now_s: float) -> None:
        """Take the manager's newest list, also when it is repeated."""
        after = merged(self._known, told, now_s)
        before = [one.address for one in self._known]
        addresses = [one.address for one in after]
        # Written only when it changes, as the borrower reads it again each time; after a failure it is tried again.
        if addresses != before or self.problem:
            self._write(addresses)
        if addresses != before:
            joined = [one.node for one in addresses if one not in before]
            left = [one.node for one in before if one.node not in {other.node for other in addresses}]
            _log.info("peers file changed", donors=len(addresses), new=" ".join(joined), gone=" ".join(left))
        self._known = after

    def _write(self, addresses: Iterable[DonorAddress]) -> None:
        told = tuple(addresses)
        text = HEAD + peers_text(
            {address.node: address.control for address in told}, {address.node: address.owner for address in told}
        )
        try:
            # 0644: the borrower may run as another user, and there is no secret in it.
            write_whole(self._path, text.encode(), mode=0o644)
        except OSError as error:
            # Logged once for a row of failures.
            if not self.problem:
                _log.warning("the peers file can't be written", file=self._path, why=error.strerror)
            self.problem = f"{self._path}: {error.strerror}"
        else:
            self.problem = ""

    def _read(self) -> list[DonorAddress]:
        try:
            found = msgspec.convert(tomllib.loads(self._path.read_text()), type=_File).donor
        except FileNotFoundError:
            return []
        except (OSError, ValueError, msgspec.ValidationError) as error:
            _log.warning("the existing peers file is not usable", file=self._path, why=error)
            return []
        return [address for address in found if is_on_network(address.control)]

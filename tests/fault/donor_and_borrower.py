"""A donor and a borrower as processes, pages by TCP between them, with settings for attacks on what is between."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from farside import admin
from farside.errors import FarsideError
from tests.blockdev.test_process import Process
from tests.daemon import test_process as donor_process
from tests.daemon.plane import MIB, write_meminfo
from tests.support.waiting import until

DONOR = "d1"


class Pair:
    """Both, running. ``uri`` is for NBD clients."""

    def __init__(self, folder: Path, borrower: Process) -> None:
        self.borrower = borrower
        self.uri = f"nbd+unix:///?socket={borrower.nbd}"
        self._folder = folder

    def donor_status(self) -> Mapping[str, Any]:
        """What the donor tells; empty while nobody answers."""
        return donor_process.status(self._folder / "donor")

    def of_donor(self) -> Mapping[str, Any]:
        """What the borrower thinks of its donor."""
        (told,) = self.borrower.status()["donors"]
        found: Mapping[str, Any] = told
        return found

    def is_up(self) -> bool:
        """Whether pages can travel."""
        return bool(self.of_donor()["state"] == "up")

    def until_up(self) -> None:
        """Returns when pages can travel."""
        until(self.is_up, what="the donor to be up")

    def pages_read(self) -> int:
        """Pages that came from the donor so far."""
        return int(self.borrower.status()["pages_in"]["remote"])

    def break_links(self) -> None:
        """As if a switch had lost the borrower's data connections; returns when others are there."""
        for every in (1, 0):
            admin.call(self.borrower.admin, "fault", donor=DONOR, kind="disconnect", every=every)
            if every:
                hits = self.of_donor()["faults_hit"]
                until(lambda: self.of_donor()["faults_hit"] > hits, what="a connection that breaks")  # noqa: B023
        self.until_up()

    def trust_again(self) -> bool:
        """Has the borrower use its donor again where it is left out for damaged pages; whether it was."""
        try:
            admin.call(self.borrower.admin, "trust", donor=DONOR)
        except FarsideError:
            return False
        return True


@contextmanager
def donor_and_borrower(folder: Path, *, listen: str, control: str = "") -> Iterator[Pair]:
    """Both; ``listen``: endpoint of the donor; ``control``: where the borrower looks for it, if that is another."""
    at_donor, at_borrower = folder / "donor", folder / "borrower"
    for made in (at_donor, at_borrower):
        made.mkdir()
    write_meminfo(at_donor, available_bytes=256 * MIB)
    config = donor_process.write_config(
        at_donor, slab_bytes="8MiB", headroom_bytes="16MiB", hugepages="off", proc_root=str(at_donor)
    )
    config.write_text(config.read_text().replace("listen = [", f"listen = ['{listen}', "))
    # Patient: what is late for want of a processor is no donor that fails.
    borrower = Process(
        at_borrower, key_file=str(at_donor / "key"), transport="tcp", hedge_s=0, deadline_s=5, grace_s=60
    )
    (at_borrower / "peers.toml").write_text(f'[[donor]]\nnode = "{DONOR}"\ncontrol = "{control or listen}"\n')
    with ExitStack() as stack:
        stack.enter_context(donor_process.daemon(config, log=at_donor / "log"))
        stack.callback(borrower.close)
        until(lambda: donor_process.status(at_donor), what="the donor's status")
        borrower.start()
        pair = Pair(folder, borrower)
        pair.until_up()
        yield pair

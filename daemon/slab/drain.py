"""Drain of a donor for maintenance: it stops lending, borrowers move their pages, and it reports when it is empty.

Sessions and connections stay, so that a borrower reads its pages until they are elsewhere. A donor that is drained goes
on running, empty, until it is stopped or told to lend again; a restart lends again too.

It may be asked by several, each for a reason of his own: an operator who takes the machine out, the manager that lets
the node sleep. It lends again when the last of them has taken it back.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from farside import admin
from farside.daemon.slab.lender import Lender
from farside.daemon.slab.recall import Recaller
from farside.daemon.slab.sessions import LoanState
from farside.daemon.tasks import Tasks
from farside.errors import ConfigError
from farside.log import get_log

_log = get_log("daemon.drain")

OPERATOR = "operator"
"""Who asks, where he does not say."""
ASKERS = (OPERATOR, "manager")
DEADLINE_MAX_S = 86400.0
"""A day to move pages: whoever wants longer wants a donor that lends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStatus:
    """State of the drain. ``slabs`` are still lent; 0 while ``is_draining``: the donor is empty and may be stopped.

    ``drained_by``: who asked for it.
    """

    is_draining: bool
    drained_by: tuple[str, ...]
    slabs: int
    slab_bytes: int


class Drain:
    """Admin commands ``drain`` and ``undrain`` of one donor."""

    def __init__(self, lender: Lender, recaller: Recaller, tasks: Tasks) -> None:
        """``tasks`` is where the recall runs its course."""
        self._lender = lender
        self._recaller = recaller
        self._tasks = tasks

    @property
    def handlers(self) -> Mapping[str, admin.Handler]:
        """Admin commands for `admin.serve`."""
        return {"drain": self._on_drain, "undrain": self._on_undrain}

    def status(self) -> DrainStatus:
        """State of the drain now."""
        return DrainStatus(
            is_draining=self._lender.is_draining,
            drained_by=self._lender.drained_by,
            slabs=len(self._lender.ledger.loans),
            slab_bytes=self._lender.pool.slab_bytes,
        )

    def begin(self, deadline_s: float, by: str = OPERATOR) -> None:
        """Stop lending and recall what is lent; each borrower gets ``deadline_s`` to move its pages.

        Asked again it recalls nothing twice.
        """
        lender = self._lender
        if not lender.is_draining:
            _log.info("donor drains", lent=len(lender.ledger.loans), deadline_s=deadline_s, by=by)
        lender.drained_by = tuple(dict.fromkeys((*lender.drained_by, by)))
        loans = [loan for loan in lender.ledger.loans if loan.state is LoanState.LENT]
        # Marked at once, in this turn of the loop: no other batch recalls them a second time.
        self._recaller.begin(loans, deadline_s)
        self._tasks.start(lender.pool.release_ready(lender.pool.ready), "freeing ready slabs")
        self._tasks.start(self._recaller.finish(loans), "draining")

    def end(self, by: str = OPERATOR) -> None:
        """Lend again, unless another asker still wants it drained; slabs that are recalled already still go."""
        lender = self._lender
        was_draining, lender.drained_by = lender.is_draining, tuple(one for one in lender.drained_by if one != by)
        if was_draining and not lender.is_draining:
            _log.info("donor lends again")

    async def _on_drain(self, arguments: Mapping[str, object]) -> object:
        deadline_s = arguments.get("deadline_s", 0.0)
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
            raise ConfigError("deadline_s is not a number of seconds")
        if not 0 <= deadline_s <= DEADLINE_MAX_S:
            raise ConfigError(f"deadline_s is {deadline_s:g}", hint=f"0 to {DEADLINE_MAX_S:g} s")
        self.begin(float(deadline_s), _asker(arguments))
        return self.status()

    async def _on_undrain(self, arguments: Mapping[str, object]) -> object:
        self.end(_asker(arguments))
        return self.status()


def _asker(arguments: Mapping[str, object]) -> str:
    by = arguments.get("by", OPERATOR)
    if by not in ASKERS:
        raise ConfigError(f"by is {by!r:.60}", hint=f"one of {', '.join(ASKERS)}")
    return str(by)

"""Limit of a donor: the most that it lends; what it lent beyond that is recalled, the least active first.

Asked by the admin command ``limit``, beside the donor's settings, which stay as they are: what these allow is lent, as
far as the limit goes, in whole slabs: less than one lends nothing. A restart forgets the limit; the node's agent, which
asks for it, sees that at its next look.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from farside import admin
from farside.daemon.slab.lender import Lender
from farside.errors import ConfigError
from farside.log import get_log
from farside.units import format_bytes

_log = get_log("daemon.limit")

BYTES_MAX = 2**63 - 1
DEADLINE_MAX_S = 86400.0
"""As of a drain: whoever gives borrowers longer than a day wants a donor that lends."""
_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """``limit_bytes``: the most that is lent; None: no limit. ``lent_bytes``: what is lent now, on its way back too."""

    limit_bytes: int | None
    lent_bytes: int


class Limit:
    """Admin command ``limit`` of one donor."""

    def __init__(self, lender: Lender) -> None:
        self._lender = lender

    @property
    def handlers(self) -> Mapping[str, admin.Handler]:
        """Admin commands for `admin.serve`."""
        return {"limit": self._on_limit}

    def set(self, limit_bytes: int | None, deadline_s: float) -> None:
        """Lend at most so much from now on; the cycle recalls what is beyond, with ``deadline_s`` to move its pages."""
        if limit_bytes != self._lender.limit_bytes:
            shown = "none" if limit_bytes is None else format_bytes(limit_bytes)
            _log.info("limit of what is lent", limit=shown, lent=len(self._lender.ledger.loans), deadline_s=deadline_s)
        self._lender.limit_bytes, self._lender.limit_deadline_s = limit_bytes, deadline_s
        self._lender.limit_set.set()

    async def _on_limit(self, arguments: Mapping[str, object]) -> object:
        limit_bytes, deadline_s = arguments.get("bytes"), arguments.get("deadline_s", _DEADLINE_S)
        if limit_bytes is not None and (isinstance(limit_bytes, bool) or not isinstance(limit_bytes, int)):
            raise ConfigError("bytes is not a whole number", hint="leave it out for no limit")
        if limit_bytes is not None and not 0 <= limit_bytes <= BYTES_MAX:
            raise ConfigError(f"bytes is {limit_bytes}", hint=f"0 to {BYTES_MAX}")
        if isinstance(deadline_s, bool) or not isinstance(deadline_s, int | float):
            raise ConfigError("deadline_s is not a number of seconds")
        if not 0 <= deadline_s <= DEADLINE_MAX_S:
            raise ConfigError(f"deadline_s is {deadline_s:g}", hint=f"0 to {DEADLINE_MAX_S:g} s")
        self.set(limit_bytes, float(deadline_s))
        slab_bytes = self._lender.pool.slab_bytes
        return LimitStatus(limit_bytes=limit_bytes, lent_bytes=len(self._lender.ledger.loans) * slab_bytes)

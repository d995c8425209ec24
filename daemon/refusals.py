"""Log lines about connections that a donor refuses or ends: few, whatever strangers send [L6].

One line a minute for each kind of refusal and each address. Each kind has a table of its own, so that whoever sends
noise from many addresses hides no borrower with a wrong key: to hide that, a stranger has to send whole first messages
under an unknown key from as many addresses, and then a line says that there are more than are told of.
"""

from collections.abc import Callable

from farside.daemon.control import messages as m
from farside.log import Rarely, get_log
from farside.proof import subnet

_log = get_log("daemon.refusals")

TOLD_S = 60.0
"""A refusal of each kind is logged once in this time for each address; the counters have them all."""
ADDRESSES_MAX = 256
"""Addresses that are told of in that time, for each kind: strangers may have many."""
_DATA = "data connections"
# By the reason of a refusal: what an operator can do.
_WAYS_OUT = {
    m.ErrorCode.VERSION: "update the older of the two",
    m.ErrorCode.AUTH: "the cluster has one key: copy its file to that machine, or keep it from this port",
    m.ErrorCode.MALFORMED: "is it a borrower of Farside? keep others from this port by a firewall",
}


class Refusals:
    """What one donor says of them."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._tables: dict[str, Rarely] = {}
        self._crowds = Rarely(TOLD_S, now_s=now_s)

    def refused(self, code: m.ErrorCode, text: str, address: str) -> None:
        """A connection from this address was refused; "" is a unix socket."""
        # Few reasons have this code: no common key, a wrong proof, a wrong message code.
        kind = f"{code.name}: {text}" if code is m.ErrorCode.AUTH else code.name
        left_out = self._may(kind, address)
        if left_out is not None:
            told = {"hint": _WAYS_OUT.get(code), "more_like_it": left_out}
            fields = {name: value for name, value in told.items() if value}
            _log.warning("connection refused", address=address or "unix", code=code.name, reason=text, **fields)

    def ended_data(self, session_of: str | None, borrower: str) -> None:
        """A data connection was ended for what came on it.

        ``session_of`` is where its session's control connection came from, which the data connection need not have;
        None: that session has expired, and its borrower with it.
        """
        left_out = self._may(_DATA, "expired" if session_of is None else session_of)
        if left_out is not None:
            whose = {"session": "expired"} if session_of is None else {"session_of": session_of or "unix"}
            _log.warning(
                "data connection ended",
                **whose,
                **({"borrower": borrower} if borrower else {}),
                reason="what came on it is no request, or has a wrong code",
                hint="does anything between the two machines change what they send?",
                more_like_it=left_out,
            )

    def _may(self, kind: str, address: str) -> int | None:
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = Rarely(TOLD_S, ADDRESSES_MAX, now_s=self._now_s)
        crowded_out = table.crowded_out
        left_out = table.may(subnet(address))
        if table.crowded_out > crowded_out and self._crowds.may(kind) is not None:
            _log.warning("more addresses than are told of", kind=kind, told=ADDRESSES_MAX, in_s=TOLD_S)
        return left_out

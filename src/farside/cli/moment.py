"""Points in time on a command line, such as `-7d` or `2026-12-01T08:00`."""

from datetime import UTC, datetime

from farside.units import parse_seconds


def parse_moment(text: str, now_s: float) -> float:
    """Seconds since 1970 of ``now``, ``+2h`` or ``-7d`` from now, or ``2026-11-22 08:00``: UTC unless it says where.

    Raises:
        ValueError: It is none of these.
    """
    told = text.strip()
    if told == "now":
        return now_s
    if told[:1] in ("+", "-"):
        ahead_s = parse_seconds(told[1:])
        return now_s + ahead_s if told[0] == "+" else now_s - ahead_s
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        raise ValueError(f"'{text}' is no time; write 'now', +2h, -7d or 2026-11-22T08:00 (UTC)") from None
    # Without a zone it is UTC, as in all that Farside prints.
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()

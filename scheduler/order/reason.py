"""Why one job goes before another, in words for an operator. PURE."""

from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.table import JobColumns
from farside.units import format_seconds


def why_first(order: OrderPolicy, first: JobColumns, second: JobColumns) -> str:
    """Why the first of two jobs goes before the second, both columns of one job at the same instant.

    What the policy says, if its keys tell the two apart; otherwise the tie-break: submit time, then sequence.
    """
    mine, other = ([key.item() for key in order.keys(jobs)] for jobs in (first, second))
    if mine != other:
        return order.why(first, second)
    earlier_s = second.submit_s.item() - first.submit_s.item()
    if earlier_s > 0:
        return f"equal by {order.name}; came {format_seconds(earlier_s)} earlier"
    return f"equal by {order.name}; came in the same second, and has the lower number"

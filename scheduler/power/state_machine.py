"""State machine of a node's power: one step, from an event to the new state and its orders. PURE.

How it works
  ON --wanted off--> DRAINING --emptied, told to stop--> DRAINING (is_stopping) --BMC says off, no beat--> OFF
  OFF --wanted on--> BOOTING --first beat of a new boot--> ON;  any --did not do as told--> FAILED

Two rules keep what stands on a node safe:
  * It is told to stop only in the step that sees it closed by the DRAIN in force and empty. Numbers fence what comes
    late: an owner that was closed by DRAIN 7 is not opened by OPEN 5.
  * A boot that was told to stop never serves again, however long it goes on beating: nobody knows whether it is going
    to shut down after all. Only a new boot, or an operator's pardon, brings such a node back.

BMCs are not believed alone. Off is what the BMC calls off *and* what has stopped beating; on is what beats. Answers to
any but the last order are late, and dropped. An order without an answer counts as one that failed: who carries orders
out gives them up before ``Patience.answer_s``, so that none of them acts later than that.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from farside.scheduler.power.state import (
    Answer,
    Beat,
    Command,
    Event,
    NodePower,
    Order,
    Pardon,
    Patience,
    Phase,
    Power,
    Seen,
    Tick,
    Wanted,
)

Step = tuple[NodePower, tuple[Order, ...]]

DAY_S = 86400.0
KEPT_BOOTS = 8  # beats are not late by more than a few
_STOPS = (Command.SOFT_OFF, Command.FORCE_OFF)


def adopt(name: str, now_s: float) -> NodePower:
    """State of a new node: on, until the node is silent and its BMC reports off."""
    return NodePower(name=name, since_s=now_s, last_beat_s=now_s, reason="adopted")


def step(node: NodePower, event: Event, patience: Patience) -> Step:
    """State of the node after an event, and the orders that follow."""
    assert event.node == node.name, "events are handed to their own node"
    if isinstance(event, Answer):
        return _answered(node, event, patience)
    if isinstance(event, Tick) and _is_overdue(node, event.now_s, patience):
        assert node.pending is not None
        lost = Answer(node=node.name, now_s=event.now_s, number=node.pending.number, error="no answer")
        node, orders = _answered(node, lost, patience)
        if orders:
            return node, orders
    if isinstance(event, Seen):
        node = _with_holdings(node, event)
    handler = _HANDLERS.get((node.phase, type(event)))
    return handler(node, event, patience) if handler else (node, ())


def _is_overdue(node: NodePower, now_s: float, patience: Patience) -> bool:
    return node.pending is not None and now_s - node.ordered_s >= patience.answer_s


def _answered(node: NodePower, answer: Answer, patience: Patience) -> Step:
    order = node.pending
    if order is None or answer.number != order.number:
        return node, ()
    node = replace(node, pending=None)
    handler = _ANSWERS.get((node.phase, order.command))
    return handler(node, answer, patience) if handler else (node, ())


def _with_holdings(node: NodePower, event: Seen) -> NodePower:
    since_s = min(node.empty_since_s, event.now_s) if event.holdings.is_empty else math.inf
    return replace(node, holdings=event.holdings, empty_since_s=since_s)


# ---------------------------------------------------------------- small moves


def _order(node: NodePower, command: Command, now_s: float, reason: str) -> Step:
    order = Order(node=node.name, number=node.number + 1, command=command, reason=reason)
    return replace(node, pending=order, ordered_s=now_s, number=order.number), (order,)


def _enter(node: NodePower, phase: Phase, now_s: float, reason: str) -> NodePower:
    return replace(
        node, phase=phase, since_s=now_s, reason=reason, pending=None, is_stopping=False, is_wanted=False,
        is_refused=False, stop_s=None, forced_s=None, doubted_s=math.inf, tries=0,
    )  # fmt: skip


def _serve(node: NodePower, now_s: float, reason: str) -> Step:
    """The node is on, and its owners may use it again."""
    on = replace(_enter(node, Phase.ON, now_s, reason), drain_number=0)
    return _order(on, Command.OPEN, now_s, reason)


def _fail(node: NodePower, now_s: float, reason: str, *, is_pinned: bool) -> Step:
    failed = _enter(node, Phase.FAILED, now_s, reason)
    return replace(failed, is_pinned=failed.is_pinned or is_pinned), ()


def _boot(node: NodePower, now_s: float, reason: str) -> Step:
    booting = _enter(node, Phase.BOOTING, now_s, reason)
    return _order(replace(booting, tries=1), Command.POWER_ON, now_s, reason)


def _is_ready(node: NodePower) -> bool:
    held = node.holdings
    return held is not None and held.is_empty and not held.is_donor_open and 0 < node.drain_number == held.closed_by


# ---------------------------------------------------------------- on


def _on_wanted(node: NodePower, event: Wanted, patience: Patience) -> Step:
    if event.is_on or node.is_pinned:
        return node, ()
    draining, orders = _order(
        _enter(node, Phase.DRAINING, event.now_s, event.reason), Command.DRAIN, event.now_s, event.reason
    )
    return replace(draining, drain_number=draining.number), orders


def _on_seen(node: NodePower, event: Seen, patience: Patience) -> Step:
    if event.holdings.closed_by and node.pending is None:
        return _order(node, Command.OPEN, event.now_s, "closed, and yet to serve")
    return node, ()


def _on_beat(node: NodePower, event: Beat, patience: Patience) -> Step:
    if event.boot_id in node.past_boots:
        return node, ()
    return replace(node, boot_id=event.boot_id, last_beat_s=event.now_s), ()


def _on_tick(node: NodePower, event: Tick, patience: Patience) -> Step:
    if event.now_s - node.last_beat_s >= patience.lost_s and node.pending is None:
        return _order(node, Command.ASK, event.now_s, f"sent no heartbeat for {event.now_s - node.last_beat_s:.0f} s")
    return node, ()


def _on_asked(node: NodePower, answer: Answer, patience: Patience) -> Step:
    if answer.now_s - node.last_beat_s < patience.lost_s:
        return node, ()
    if answer.power is Power.OFF:
        # Somebody else switched it off: what stood on it is lost already, and owners find that out by themselves.
        return _enter(node, Phase.OFF, answer.now_s, "found off"), ()
    said = answer.error or f"its BMC says {answer.power}"
    return _fail(node, answer.now_s, f"sends no heartbeat; {said}", is_pinned=False)


# ---------------------------------------------------------------- draining


def _draining_wanted(node: NodePower, event: Wanted, patience: Patience) -> Step:
    if node.is_stopping:
        return replace(node, is_wanted=event.is_on), ()
    return _serve(node, event.now_s, event.reason) if event.is_on else (node, ())


def _draining_seen(node: NodePower, event: Seen, patience: Patience) -> Step:
    if node.is_stopping or not _is_ready(node):
        return node, ()
    stopping = replace(
        node, is_stopping=True, stop_s=event.now_s, boot_id="",
        past_boots=(*node.past_boots, *filter(None, (node.boot_id,)))[-KEPT_BOOTS:],
        stops_s=(*(at for at in node.stops_s if event.now_s - at < DAY_S), event.now_s),
    )  # fmt: skip
    return _order(stopping, Command.SOFT_OFF, event.now_s, node.reason)


def _draining_beat(node: NodePower, event: Beat, patience: Patience) -> Step:
    if not node.is_stopping:
        return _on_beat(node, event, patience)
    if event.boot_id in node.past_boots[:-1]:
        return node, ()
    if event.boot_id in node.past_boots:
        return replace(node, last_beat_s=event.now_s), ()
    if node.pending is not None and node.pending.command in _STOPS:
        return node, ()  # it may yet reach this new boot; the next beat will do
    booted = replace(node, boot_id=event.boot_id, last_beat_s=event.now_s, is_pinned=True)
    return _serve(booted, event.now_s, "booted instead of going off")


def _draining_tick(node: NodePower, event: Tick, patience: Patience) -> Step:
    return _stopping_tick(node, event, patience) if node.is_stopping else _emptying_tick(node, event, patience)


def _emptying_tick(node: NodePower, event: Tick, patience: Patience) -> Step:
    now_s = event.now_s
    if now_s - node.last_beat_s >= patience.lost_s:
        return _fail(node, now_s, "stopped beating while it was emptied", is_pinned=False)
    if now_s - node.since_s >= patience.drain_s:
        held = node.holdings.told() if node.holdings else "nobody knows what"
        resting = replace(node, stay_until_s=now_s + patience.backoff_s)
        return _serve(resting, now_s, f"not empty after {patience.drain_s:.0f} s: {held}")
    is_closed = node.holdings is not None and node.holdings.closed_by == node.drain_number
    if node.pending is None and not is_closed and now_s - node.ordered_s >= patience.poll_s:
        again, orders = _order(node, Command.DRAIN, now_s, node.reason)
        return replace(again, drain_number=again.number), orders
    return node, ()


def _stopping_tick(node: NodePower, event: Tick, patience: Patience) -> Step:
    now_s = event.now_s
    if node.pending is not None:
        return node, ()
    if node.forced_s is not None and now_s - node.forced_s >= patience.force_off_s:
        return _fail(node, now_s, "does not go off, its power was to be cut", is_pinned=True)
    if node.forced_s is None and node.stop_s is not None and now_s - node.stop_s >= patience.soft_off_s:
        if patience.may_force and _is_ready(node):
            return _order(replace(node, forced_s=now_s), Command.FORCE_OFF, now_s, "did not shut down in time")
        return _fail(node, now_s, "did not shut down in time", is_pinned=True)
    if now_s - node.ordered_s < patience.poll_s:
        return node, ()
    if node.is_refused and node.tries < patience.tries and _is_ready(node):
        again = replace(node, is_refused=False, tries=node.tries + 1)
        return _order(again, Command.SOFT_OFF, now_s, "its BMC did not take the order")
    return _order(node, Command.ASK, now_s, "is it off?")


def _stop_answered(node: NodePower, answer: Answer, patience: Patience) -> Step:
    return replace(node, is_refused=bool(answer.error)), ()


def _stopping_asked(node: NodePower, answer: Answer, patience: Patience) -> Step:
    is_silent = answer.now_s - node.last_beat_s >= patience.silent_s
    if node.is_stopping and answer.power is Power.ON and answer.now_s - node.doubted_s >= patience.silent_s:
        # Who was told to shut down does not beat for so long any more: it never heard of it, and is told now.
        return replace(node, doubted_s=math.inf, is_refused=node.last_beat_s > node.doubted_s), ()
    if not node.is_stopping or answer.power is not Power.OFF or not is_silent:
        return node, ()
    if node.is_wanted:
        return _boot(node, answer.now_s, "wanted again while it went off")
    return _enter(node, Phase.OFF, answer.now_s, node.reason), ()


# ---------------------------------------------------------------- off, booting, failed


def _off_wanted(node: NodePower, event: Wanted, patience: Patience) -> Step:
    return _boot(node, event.now_s, event.reason) if event.is_on else (node, ())


def _off_beat(node: NodePower, event: Beat, patience: Patience) -> Step:
    if event.boot_id not in node.past_boots:
        return _up(node, event, "somebody switched it on")
    if event.boot_id == node.past_boots[-1] and event.now_s - node.since_s >= patience.lost_s:
        return _fail(node, event.now_s, "its BMC says off, and yet it beats", is_pinned=True)
    return node, ()


def _up(node: NodePower, event: Beat, reason: str) -> Step:
    return _serve(replace(node, boot_id=event.boot_id, last_beat_s=event.now_s), event.now_s, reason)


def _booting_beat(node: NodePower, event: Beat, patience: Patience) -> Step:
    return (node, ()) if event.boot_id in node.past_boots else _up(node, event, "booted")


def _booting_tick(node: NodePower, event: Tick, patience: Patience) -> Step:
    if event.now_s - node.since_s >= patience.boot_s:
        return _fail(node, event.now_s, f"has not booted in {patience.boot_s:.0f} s", is_pinned=False)
    if node.pending is None and event.now_s - node.ordered_s >= patience.poll_s:
        return _order(node, Command.ASK, event.now_s, "is it on?")
    return node, ()


def _booting_refused(node: NodePower, answer: Answer, patience: Patience) -> Step:
    if not answer.error or node.tries < patience.tries:
        return node, ()
    return _fail(node, answer.now_s, f"does not boot: {answer.error}", is_pinned=False)


def _booting_asked(node: NodePower, answer: Answer, patience: Patience) -> Step:
    if answer.power is Power.ON:
        return node, ()
    if node.tries >= patience.tries:
        said = answer.error or f"its BMC says {answer.power}"
        return _fail(node, answer.now_s, f"does not boot after {node.tries} orders; {said}", is_pinned=False)
    return _order(replace(node, tries=node.tries + 1), Command.POWER_ON, answer.now_s, "still off")


def _failed_beat(node: NodePower, event: Beat, patience: Patience) -> Step:
    return (node, ()) if event.boot_id in node.past_boots else _up(node, event, "beats again")


def _failed_pardon(node: NodePower, event: Pardon, patience: Patience) -> Step:
    repaired = replace(node, past_boots=(), is_pinned=False)
    return _boot(repaired, event.now_s, "pardoned by an operator")


def _any_pardon(node: NodePower, event: Pardon, patience: Patience) -> Step:
    return replace(node, is_pinned=False, stay_until_s=None), ()


# Each handler gets just the event that stands beside it.
_HANDLERS: Mapping[tuple[Phase, type], Callable[..., Step]] = MappingProxyType(
    {
        (Phase.ON, Wanted): _on_wanted,
        (Phase.ON, Seen): _on_seen,
        (Phase.ON, Beat): _on_beat,
        (Phase.ON, Tick): _on_tick,
        (Phase.ON, Pardon): _any_pardon,
        (Phase.DRAINING, Wanted): _draining_wanted,
        (Phase.DRAINING, Seen): _draining_seen,
        (Phase.DRAINING, Beat): _draining_beat,
        (Phase.DRAINING, Tick): _draining_tick,
        (Phase.OFF, Wanted): _off_wanted,
        (Phase.OFF, Beat): _off_beat,
        (Phase.OFF, Pardon): _any_pardon,
        (Phase.BOOTING, Beat): _booting_beat,
        (Phase.BOOTING, Tick): _booting_tick,
        (Phase.FAILED, Beat): _failed_beat,
        (Phase.FAILED, Pardon): _failed_pardon,
    }
)
# The rest are done, or tried again at a later tick.
_ANSWERS: Mapping[tuple[Phase, Command], Callable[[NodePower, Answer, Patience], Step]] = MappingProxyType(
    {
        (Phase.ON, Command.ASK): _on_asked,
        (Phase.DRAINING, Command.SOFT_OFF): _stop_answered,
        (Phase.DRAINING, Command.ASK): _stopping_asked,
        (Phase.BOOTING, Command.POWER_ON): _booting_refused,
        (Phase.BOOTING, Command.ASK): _booting_asked,
    }
)

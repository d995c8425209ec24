"""Node power as the API, ``farside power`` and the page show it; docs/manager.md documents the keys. PURE."""

from typing import Annotated

from msgspec import Meta, Struct

from farside.scheduler.manager.model.power_record import NodePowerRecord, note_of
from farside.scheduler.manager.model.record import LiveNode
from farside.scheduler.manager.model.sleep_time import saved_kwh
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.view.like import like
from farside.scheduler.power.state import NodePower


class Energy(Struct, frozen=True, kw_only=True):
    """Number of nodes that sleep, and the energy saved."""

    nodes_asleep: int = 0
    nodes_booting: int = 0
    nodes_closing: int = 0
    nodes_wanted: Annotated[int | None, Meta(description="How many nodes should be on; null: no policy decides")] = None
    wanted_reason: str = ""
    forecast: Annotated[
        str, Meta(description="Quality of the policy's forecast now; empty: there is none, or another process makes it")
    ] = ""
    saved_kwh: Annotated[
        float, Meta(description="Energy that sleeping nodes have saved since the first slept, without cooling")
    ] = 0.0


class PowerRow(Struct, frozen=True, kw_only=True):
    """A node's power."""

    name: str
    state: str
    driver: str
    power: str
    since_s: float | None
    reason: str
    stays_on: str
    order: str
    pinned: bool
    stops_today: int


class PowerReport(Energy, frozen=True, kw_only=True):
    """Which nodes sleep, and why."""

    policy: str
    dry_run: bool
    keeps: bool
    at_s: float
    idle_w: float
    nodes: list[PowerRow]


def energy_of(state: LiveState, now_s: float, idle_w: float, forecast: str = "") -> Energy:
    """The glance, by the log."""
    states = [node.state for node in state.nodes.values() if node.power is not None]
    return Energy(
        nodes_asleep=states.count("asleep"),
        nodes_booting=states.count("booting"),
        nodes_closing=states.count("closing"),
        nodes_wanted=None if state.wanted is None else state.wanted.nodes,
        wanted_reason="" if state.wanted is None else state.wanted.reason,
        saved_kwh=saved_kwh(state.slept.node_s(0.0, now_s), idle_w),
        forecast=forecast,
    )


def show_power(node: LiveNode, driver: str, power: NodePower | None, stays_on: str = "") -> PowerRow:
    """The power of one node. ``power``: what its controller knows, where that is here; None: as the log says.

    ``stays_on``: why it does, though it is not needed.
    """
    note = node.power if power is None else note_of(power)
    known = note or NodePowerRecord()
    return like(
        PowerRow,
        node,
        driver=driver,
        power=known.phase.value,
        since_s=None if note is None else note.since_s,
        reason=known.reason,
        stays_on=stays_on,
        order=known.command,
        pinned=known.is_pinned,
        stops_today=len(known.stops_s),
    )

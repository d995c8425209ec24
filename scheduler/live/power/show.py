"""The nodes' power as the API, ``farside power`` and the page show it: keys are documented in docs/manager.md. PURE."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farside.scheduler.live.live_state import LiveState
from farside.scheduler.live.power.note import note_of
from farside.scheduler.live.power.slept import saved_kwh
from farside.scheduler.live.record import LiveNode
from farside.scheduler.power.state import NodePower, Phase

Shown = Mapping[str, object]
_WORDS = {
    "IpmiDriver": "ipmi",
    "RedfishDriver": "redfish",
    "CommandDriver": "command",
    "WakeOnLanDriver": "wake-on-lan",
    "DryRunDriver": "dry-run",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """The cluster's sleep at a glance.

    Attributes:
        asleep, booting, closing: Nodes.
        wanted: How many nodes shall be on; None: nobody decides that.
        why: Why so many.
        saved_kwh: What sleeping nodes have not drawn since the first slept, against all nodes on, without cooling.
        forecast: What the policy's forecast is worth now; empty: none was asked for, or it is made elsewhere.
    """

    asleep: int
    booting: int
    closing: int
    wanted: int | None
    why: str
    saved_kwh: float
    forecast: str = ""


def energy_of(state: LiveState, now_s: float, idle_w: float, forecast: str = "") -> Energy:
    """The glance, by the log."""
    states = [node.state for node in state.nodes.values() if node.power is not None]
    return Energy(
        asleep=states.count("asleep"),
        booting=states.count("booting"),
        closing=states.count("closing"),
        wanted=None if state.wanted is None else state.wanted.nodes,
        why="" if state.wanted is None else state.wanted.reason,
        saved_kwh=saved_kwh(state.slept.node_s(0.0, now_s), idle_w),
        forecast=forecast,
    )


def show_energy(energy: Energy) -> Shown:
    """It as JSON."""
    return {
        "nodes_asleep": energy.asleep,
        "nodes_booting": energy.booting,
        "nodes_closing": energy.closing,
        "nodes_wanted": energy.wanted,
        "wanted_reason": energy.why,
        "forecast": energy.forecast,
        "saved_kwh": energy.saved_kwh,
    }


def show_power(node: LiveNode, driver: str, power: NodePower | None, stays_on: str = "") -> Shown:
    """One node. ``power``: as who keeps it knows it, where that is here; else what the log says.

    ``stays_on``: why it does, though it is not needed.
    """
    note = node.power if power is None else note_of(power)
    phase, reason = (Phase.ON, "") if note is None else (note.phase, note.reason)
    return {
        "name": node.name,
        "state": node.state,
        "driver": driver,
        "power": phase.value,
        "since_s": None if note is None else note.since_s,
        "reason": reason,
        "stays_on": stays_on,
        "order": "" if note is None else note.command,
        "pinned": note is not None and note.is_pinned,
        "stops_today": 0 if note is None else len(note.stops_s),
    }


def driver_names(drivers: Mapping[str, object], names: Iterable[str]) -> Mapping[str, str]:
    """What switches each of these nodes, by the name of its driver; empty: nothing, it is always on."""
    return {name: _WORDS.get(type(drivers[name]).__name__, "") if name in drivers else "" for name in names}

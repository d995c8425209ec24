"""Screen of `farside top`: figures, nodes, running jobs, waiting jobs and why they wait."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from farside.cli.cluster_table import holders, is_held, plain, since_s
from farside.cli.terminal import printable
from farside.units import format_bytes, format_seconds

Row = Mapping[str, Any]

HELD, FREE, BROKEN = "■", "□", "×"
# Lines that are no rows: figures, three heads of two lines, what was left out of each list, and room between.
FRAME_LINES = 13
# At most this share of the rows is for nodes; the other lists get what nodes do not need.
NODES_SHARE = 0.4
STYLES = {"running": "green", "busy": "green", "lost": "reverse", "failed": "reverse", "stopping": "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many rows of each list are drawn."""

    nodes: int
    active: int
    waiting: int


EVERYTHING = Room(nodes=1 << 30, active=1 << 30, waiting=1 << 30)


def room_for(told: Row, lines: int) -> Room:
    """Divides the lines of a screen: each list gets at least one row, and at most what it has to show."""
    left = max(3, lines - FRAME_LINES)
    nodes = max(1, min(len(told["node_names"]), int(left * NODES_SHARE)))
    left -= nodes
    # Running jobs get half of what is left, and more where fewer jobs wait than there are rows for them.
    active = max(1, min(len(told["active"]), max(left // 2, left - len(told["waiting"]))))
    return Room(nodes=nodes, active=active, waiting=max(1, left - active))


def top_view(told: Row, room: Room, problem: str = "") -> RenderableType:
    """The whole screen. ``told`` is an overview as the manager's API gives it."""
    jobs = {job["id"]: job for job in told["jobs"]}
    now_s = float(told["at_s"])
    active = [jobs[job_id] for job_id in told["active"]]
    waiting = [jobs[job_id] for job_id in told["waiting"]]
    parts: list[RenderableType] = [_figures(told, problem), "", _nodes(told, room.nodes)]
    parts += [*_left_out(len(told["nodes"]) - room.nodes, "node"), "", _active(active[: room.active], now_s)]
    parts += [*_left_out(_total(told, is_active=True) - min(room.active, len(active)), "job")]
    parts += ["", _waiting(waiting[: room.waiting], told["why"], now_s)]
    parts += [*_left_out(_total(told, is_active=False) - min(room.waiting, len(waiting)), "job")]
    return Group(*parts)


def _figures(told: Row, problem: str) -> Text:
    all_of_it = told["cluster"]
    words = [
        f"{all_of_it['gpus_held']} of {all_of_it['gpus']} GPUs in use",
        f"{_total(told, is_active=True)} running",
        f"{_total(told, is_active=False)} waiting",
        f"{all_of_it['nodes_up']} of {all_of_it['nodes']} nodes up",
        f"{format_bytes(all_of_it['headroom_bytes'])} for jobs",
    ]
    words += [f"{format_bytes(all_of_it['loan_bytes'])} lent"] if all_of_it["loan_bytes"] else []
    promised_bytes = all_of_it.get("promised_bytes", 0)  # a manager of the version before does not say
    words += [f"{format_bytes(promised_bytes)} promised to jobs"] if promised_bytes else []
    words += [f"{all_of_it['gpu_power_w'] / 1000:.1f} kW"] if all_of_it["gpu_power_w"] is not None else []
    moving = {what: all_of_it.get(f"nodes_{what}", 0) for what in ("asleep", "booting", "closing")}
    words += [f"{count} {what}" for what, count in moving.items() if count]
    words += [f"{all_of_it['saved_kwh']:.1f} kWh saved"] if all_of_it.get("saved_kwh") else []
    line = Text(" · ".join(words), style="bold")
    return line.append(f"   {printable(problem)}", style="reverse") if problem else line


def _total(told: Row, *, is_active: bool) -> int:
    idle = ("waiting", "held")
    return sum(count for state, count in told["counts"].items() if (state not in idle) == is_active)


def _left_out(count: int, what: str) -> Iterator[RenderableType]:
    if count > 0:
        yield Text(f"and {count} {what}{'s' if count > 1 else ''} more", style="dim")


def _nodes(told: Row, limit: int) -> Table:
    table = _table("node", "state", "GPUs", "memory for jobs", "lends", "jobs", "why")
    for node in told["nodes"][:limit]:
        sensed = told["sensed"].get(node["name"], {"loans": ()})
        lent = sum(loan["bytes"] for loan in sensed["loans"])
        table.add_row(
            plain(node["name"]),
            _state(node["state"]),
            "".join(HELD if is_held(gpu) else FREE if gpu["healthy"] else BROKEN for gpu in node["gpus"]),
            f"{format_bytes(node['headroom_bytes'])} of {format_bytes(node['memory_bytes'])}",
            format_bytes(lent) if lent else "",
            plain(holders(node)),
            plain(node["reason"]),
        )
    return table


def _active(jobs: Iterable[Row], now_s: float) -> Table:
    table = _table("job", "name", "user", "state", "GPUs", "runs for", "where")
    for job in jobs:
        _add(table, job, now_s - since_s(job), ", ".join(job["nodes"]))
    return table


def _waiting(jobs: Iterable[Row], why: Mapping[str, str], now_s: float) -> Table:
    table = _table("job", "name", "user", "state", "GPUs", "waits for", "why")
    for job in jobs:
        _add(table, job, now_s - job["submit_s"], why.get(job["id"], job["reason"]).removeprefix("waits: "))
    return table


def _add(table: Table, job: Row, spent_s: float, text: str) -> None:
    names = (plain(job[key]) for key in ("id", "name", "user"))
    spent = format_seconds(max(0.0, spent_s // 1))
    table.add_row(*names, _state(job["state"]), str(job["gpus"]), spent, plain(text))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, expand=True)
    for column in columns[:-1]:
        is_number = column in ("GPUs", "runs for", "waits for") and columns[0] == "job"
        table.add_column(column, no_wrap=True, justify="right" if is_number else "left")
    table.add_column(columns[-1], ratio=1, no_wrap=True, overflow="ellipsis")
    return table


def _state(state: str) -> Text:
    return Text(printable(state.replace("_", " ")), style=STYLES.get(state, "dim"))

"""Tables of `farside status`, from the processes' JSON. A missing value is a dash."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from farside.status.gather import ProcessStatus, statuses_of
from farside.units import format_bytes, format_moment, format_seconds

Row = Mapping[str, Any]
_HEDGES = {
    "asked": "late reads asked of a second copy",
    "won": "... that answered first",
    "refused_budget": "... not asked: too many were",
    "refused_overload": "... not asked: it is slow itself",
}


def tables(processes: Iterable[ProcessStatus]) -> Iterator[Table]:
    """A table of the processes, then per borrower its traffic, donors and slabs; all donors, agents, Aggregators."""
    known = tuple(processes)
    yield process_table(known)
    for device in statuses_of(known, "blockdev"):
        yield traffic_table(device)
        yield borrowed_table(device)
    if daemons := statuses_of(known, "daemon"):
        yield lent_table(daemons)
    if agents := statuses_of(known, "agent"):
        yield agent_table(agents)
    if aggregators := statuses_of(known, "aggregator"):
        yield aggregator_table(aggregators)


def process_table(processes: Iterable[ProcessStatus]) -> Table:
    """Which processes there are, and which of them do not answer."""
    table = _table("processes", "name", "role", "pid", "says")
    for process in processes:
        table.add_row(process.name, process.role, str(process.pid or "-"), process.error or _condition(process.status))
    return table


def _condition(status: Row) -> str:
    """``well``, and what went wrong before; or what does now."""
    failed_s = status.get("cycle_failed_s")
    if failed_s is None:
        return "well"
    when = f"a cycle failed at {format_moment(float(failed_s))}"
    in_a_row = int(_number(status, "cycle_failures_in_a_row"))
    return f"{when}, {in_a_row:,} in a row: see its log" if in_a_row else f"well; {when}: see its log"


def traffic_table(device: Row) -> Table:
    """A device's traffic: pages by where they came from and went to, rates, what waits, what happened."""
    table = _table(f"device {device.get('name', '')}", "what", "value")
    rates = device.get("rates", {})
    table.add_row("size", format_bytes(_number(device, "size_bytes")))
    table.add_row("protection", str(device.get("protection", "-")))
    table.add_row("mapped to donors", format_bytes(_number(device, "mapped_bytes")))
    table.add_row("pages that donors have", f"{_number(device, 'pages_remote'):.0f}")
    table.add_row("waiting for the disk", format_bytes(_number(device, "pending_bytes")))
    table.add_row("pages with one copy only", f"{_number(device, 'pages_exposed'):.0f}")
    if single := _number(device, "pages_single"):
        table.add_row("pages that one donor has, not two", f"{single:.0f}")
    if device.get("protection") == "disk":
        table.add_row("pages on the disk alone", f"{_number(device, 'pages_disk_alone'):.0f}")
        if device.get("disk_failed"):
            table.add_row("the backup disk", "fails")
    if clear := _number(device, "pages_clear"):
        table.add_row("pages that donors have in the clear", f"{clear:.0f}")
    if left_out := device.get("donors_left_out"):
        table.add_row("donors left out for damaged pages", ", ".join(left_out))
    for name, unit in (("reads_per_s", "reads"), ("writes_per_s", "writes")):
        table.add_row(f"{unit} a second", f"{_number(rates, name):.0f}")
    for direction, title in (("pages_in", "pages in from"), ("pages_out", "pages out to")):
        for place, count in device.get(direction, {}).items():
            table.add_row(f"{title} {place}", str(count))
    if late_s := [
        float(late) for donor in device.get("donors", ()) if (late := donor.get("hedge_after_s")) is not None
    ]:
        quickest, slowest = format_seconds(min(late_s)), format_seconds(max(late_s))
        table.add_row("a read is late after", quickest if quickest == slowest else f"{quickest} to {slowest}")
    for name, count in device.get("hedges", {}).items():
        table.add_row(_HEDGES.get(name, name), str(count))
    for name, count in device.get("counters", {}).items():
        table.add_row(name.replace("_", " "), str(count))
    table.add_row("longest request", format_seconds(_number(device, "longest_request_s")))
    return table


def borrowed_table(device: Row) -> Table:
    """What a device has borrowed from whom."""
    table = _table(
        "borrowed", "donor", "state", "by", "slabs", "live pages", "pages/s per GiB", "free there", "headroom there"
    )  # fmt: skip
    slabs = [slab for slab in device.get("slabs", ()) if slab.get("state") != "gone"]
    count = Counter(slab.get("donor") for slab in slabs)
    for donor in device.get("donors", ()):
        own = [slab for slab in slabs if slab.get("donor") == donor.get("node")]
        table.add_row(
            str(donor.get("node", "-")),
            str(donor.get("state", "-")),
            str(donor.get("transport") or "-"),
            str(count[donor.get("node")]),
            str(sum(int(slab.get("live_pages", 0)) for slab in own)),
            f"{sum(float(slab.get('activity', 0.0)) for slab in own) / max(1, len(own)):.0f}",
            str(donor.get("free_slabs", "-")) + " slabs",
            format_bytes(_number(donor, "headroom_bytes")),
        )
    return table


def _lent(daemon: Row) -> str:
    """Slabs that a donor has lent, and the limit of what it lends."""
    lent = f"{_number(daemon.get('slab_counts', {}), 'lent'):.0f}"
    limit_bytes = daemon.get("memory", {}).get("limit_bytes")
    return lent if limit_bytes is None else f"{lent}, at most {format_bytes(limit_bytes)}"


def lent_table(daemons: Iterable[Row]) -> Table:
    """What each donor lends, and what its own programs use."""
    columns = ("donor", "memory", "own programs", "free", "headroom", "slabs lent", "going back", "ready", "recalled")
    table = _table("lent", *columns)
    for daemon in daemons:
        memory = daemon.get("memory", {})
        states = daemon.get("slab_counts", {})
        counters = daemon.get("counters", {})
        table.add_row(
            str(daemon.get("node", "-")),
            *(format_bytes(_number(memory, f"{name}_bytes")) for name in ("total", "used", "free", "headroom")),
            _lent(daemon),
            f"{_number(states, 'migrating') + _number(states, 'evicting'):.0f}",
            f"{_number(states, 'ready'):.0f}",
            str(int(_number(counters, "migrations") + _number(counters, "evictions"))),
        )
    return table


def agent_table(agents: Iterable[Row]) -> Table:
    """What each node agent has, and what runs there."""
    columns = ("node", "manager", "GPUs in use", "not healthy", "memory", "headroom", "starting", "running", "ended")
    table = _table("agents", *columns)
    for agent in agents:
        gpus, tasks = agent.get("gpus", ()), agent.get("task_counts", {})
        broken = sum(not gpu.get("healthy", True) for gpu in gpus)
        table.add_row(
            str(agent.get("node", "-")),
            "connected" if agent.get("connected") else str(agent.get("problem") or "-"),
            f"{len(agent.get('gpus_in_use', ()))} of {len(gpus)}",
            str(broken or "-"),
            format_bytes(_number(agent, "memory_bytes")),
            format_bytes(_number(agent, "headroom_bytes")),
            f"{_number(tasks, 'starting'):.0f}",
            f"{_number(tasks, 'running') + _number(tasks, 'stopping'):.0f}",
            f"{_number(tasks, 'exited') + _number(tasks, 'lost'):.0f}",
        )
    return table


def aggregator_table(aggregators: Iterable[Row]) -> Table:
    """What each Aggregator does for which jobs."""
    table = _table(
        "Aggregators", "node", "cores", "memory used", "job", "start", "lanes", "updates", "busy", "waits for"
    )
    for one in aggregators:
        memory = f"{format_bytes(_number(one, 'used_bytes'))} of {format_bytes(_number(one, 'memory_bytes'))}"
        head = (str(one.get("node", "-")), f"{_number(one, 'cores'):.0f}", memory)
        jobs = one.get("jobs", ())
        for job in jobs:
            waits = "-" if job.get("waits_for") is None else f"rank {job['waits_for']}"
            start, lanes = f"{_number(job, 'start'):.0f}", _lanes_of(job)
            busy = format_seconds(_number(job, "busy_s"))
            table.add_row(*head, str(job.get("job", "-")), start, lanes, f"{_number(job, 'updates'):,.0f}", busy, waits)
        if not jobs:
            table.add_row(*head, *["-"] * 6)
    return table


def _lanes_of(job: Row) -> str:
    """How many members have a connection, and by which carriers: "2 rdma, 1 tcp"."""
    count, shm, rdma = (int(_number(job, name)) for name in ("lanes", "lanes_shm", "lanes_rdma"))
    # An Aggregator of the version before does not say carriers.
    if not count or "lanes_shm" not in job:
        return str(count)
    carriers = (("shm", shm), ("rdma", rdma), ("tcp", count - shm - rdma))
    return ", ".join(f"{number} {name}" for name, number in carriers if number)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _number(row: Row, name: str) -> float:
    value = row.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0

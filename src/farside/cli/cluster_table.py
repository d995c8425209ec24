"""Tables of `farside queue` and `farside nodes`, and lines of `farside show`, from the manager's JSON."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.markup import escape
from rich.table import Table

from farside.cli.terminal import printable
from farside.units import format_bytes, format_count, format_moment, format_off, format_seconds

if TYPE_CHECKING:
    from farside.scheduler.manager.auth.token_file import TokenRow

Row = Mapping[str, Any]


def job_table(jobs: Sequence[Row], why: Mapping[str, str], now_s: float) -> Table:
    """A line a job; ``why``: by the id of a waiting one, what it waits for."""
    table = _table("id", "name", "user", "state", "gpus", "time", "where or why")
    for job in jobs:
        where = why.get(job["id"], job["reason"]).removeprefix("waits: ")
        if job["nodes"] and job["state"] != "waiting":
            where = ", ".join(job["nodes"])
        spent = format_seconds(max(0.0, _spent_s(job, now_s)))
        _add(table, job["id"], job["name"], job["user"], job["state"], job["gpus"], spent, where)
    return table


def _spent_s(job: Row, now_s: float) -> float:
    # A job that was cancelled before its first start has no start: its wait is shown.
    if job["end_s"]:
        return float(job["end_s"] - (job["start_s"] or job["submit_s"]))
    return now_s - float(job["submit_s"] if job["state"] in ("waiting", "held") else since_s(job))


def since_s(job: Row) -> float:
    """When the latest start of a job was, or it was submitted."""
    return float(job.get("started_s") or job["start_s"] or job["submit_s"])


def node_table(nodes: Iterable[Row]) -> Table:
    """A line a node; with its partition and its rack where there are some."""
    rows = list(nodes)
    has_partitions = any(node.get("partition") or node.get("borrower") for node in rows)
    whose = ["partition"] if has_partitions else []
    has_racks = any((node.get("topology") or {}).get("rack") for node in rows)
    whose += ["rack"] if has_racks else []
    table = _table("node", *whose, "state", "GPUs free", "model", "headroom", "jobs", "why")
    for node in rows:
        models = ", ".join(dict.fromkeys(gpu["model"] for gpu in node["gpus"]))
        free = f"{node['free_gpus']} of {len(node['gpus'])}"
        headroom = format_bytes(node["headroom_bytes"])
        whose = [_whose(node)] if has_partitions else []
        whose += [(node.get("topology") or {}).get("rack") or ""] if has_racks else []
        grown = f"says that it has {node['excess']}: `farside node list`" if node.get("excess") else ""
        words = (node["reason"], grown, memory_words(node, "lend"), memory_words(node, "swap"))
        why = "; ".join(filter(None, words))
        _add(table, node["name"], *whose, node["state"], free, models, headroom, holders(node), why)
    return table


def holders(node: Row) -> str:
    """Numbers of the caller's jobs that have GPUs of a node, or of all jobs, and how many GPUs others' jobs have."""
    own = " ".join(dict.fromkeys(gpu["job"] for gpu in node["gpus"] if gpu["job"]))
    # Of a manager of the version before each has its number.
    others = sum(any(share["job"] is None for share in gpu.get("shares", ())) for gpu in node["gpus"])
    return ", ".join(filter(None, (own, f"others on {format_count(others, 'GPU')}" if others else "")))


def is_held(gpu: Row) -> bool:
    """Whether a job has a GPU, or a part of it, also one whose number the caller does not see."""
    return bool(gpu["job"] or gpu.get("shares"))


def memory_words(node: Row, key: str) -> str:
    """What an operator has ordered of a node's memory, ``lend`` or ``swap``, and why it is not so; empty: nothing.

    Without an order, why it is not as the node's own settings say.
    """
    memory = node.get("memory") or {}
    ordered = memory.get(f"{key}_ordered_bytes")
    problem = memory.get(f"{key}_problem")
    if ordered is None:
        return f"{key}: {problem}" if problem else ""
    size = format_bytes(ordered)
    words = {
        "lend": f"lends at most {size}" if ordered else "lends nothing",
        "swap": f"swap {size if ordered else 'off'}",
    }
    return f"{words[key]}, as ordered" + (f"; {problem}" if problem else "")


def _whose(node: Row) -> str:
    """The partition of a node, and another whose jobs run there."""
    owner, borrower = node.get("partition") or "none", node.get("borrower")
    return f"{owner}, jobs of {borrower}" if borrower else owner


def aggregator_table(rows: Iterable[Row]) -> Table:
    """A line an Aggregator."""
    table = _table("Aggregator on", "state", "cores", "planned", "memory used", "chunks", "jobs")
    for row in rows:
        planned = "" if row["planned_pct"] is None else f"{row['planned_pct']:.0f} %"
        used = "" if row["used_bytes"] is None else format_bytes(row["used_bytes"])
        memory = f"{used} of {format_bytes(row['memory_bytes'])}".strip()
        state = row.get("problem") or ("in the pool" if row["is_in_pool"] else "offered")
        _add(table, row["node"], state, row["cores"], planned, memory, row["chunks"], " ".join(row["jobs"]))
    return table


def aggregated_job_table(rows: Iterable[Row]) -> Table:
    """A line a job that aggregates."""
    table = _table("job", "state", "members", "on", "chunks", "size", "iteration", "alone", "lost", "waits for")
    for row in rows:
        state = f"{row['state']}, {row['moving_chunks']} chunks" if row["moving_chunks"] else row["state"]
        lost = "" if row["loss_pct"] is None else f"{row['loss_pct']:.0f} %"
        lost += " (accepted)" if row["is_loss_accepted"] else ""
        times = ("" if row[key] is None else f"{row[key]:.4g} s" for key in ("iteration_s", "alone_s"))
        waits = "" if row["waits_for"] is None else f"rank {row['waits_for']}"
        _add(
            table, row["job"], state, row["members"], ", ".join(row["nodes"]), row["chunks"],
            format_bytes(row["size_bytes"]), *times, lost, waits,
        )  # fmt: skip
    return table


def group_table(rows: Iterable[Row]) -> Table:
    """A line a node on which jobs take turns."""
    table = _table("turns on", "jobs", "others", "bound by", "iteration predicted", "measured")
    for row in rows:
        times = ("" if row[key] is None else f"{row[key]:.4g} s" for key in ("predicted_s", "measured_s"))
        _add(table, row["node"], " ".join(one["job"] for one in row["jobs"]), row["others"], row["bound"] or "", *times)
    return table


def group_job_table(rows: Iterable[Row]) -> Table:
    """A line a job on a node where it takes turns."""
    names = ("computes", "communicates", "CPU for updates", "iteration", "turns", "let through", "overdue")
    table = _table("job", "on", *names)
    for row in rows:
        for one in row["jobs"]:
            # A manager of the version before does not say it.
            updates_s = None if (used := one.get("processor")) is None else used["rest_s"]
            seconds = (one["comp_s"], one["net_s"], updates_s, one["iteration_s"])
            times = ("" if value is None else f"{value:.4g} s" for value in seconds)
            _add(table, one["job"], row["node"], *times, one["turns"], one["let_through"], one["overdue"])
    return table


def spill_table(rows: Iterable[Row]) -> Table:
    """A line a job whose input need not be in memory as a whole: how much of it is, and what was read back."""
    table = _table("job", "on", "input", "in memory", "from disk", "from peers", "waited", "each time")
    for row in rows:
        for one in row["jobs"]:
            # A manager of the version before does not say it.
            if (spill := one.get("spill")) is not None:
                sizes = (format_bytes(spill[key]) for key in ("disk_bytes", "peer_bytes"))
                waited = (format_seconds(spill[key]) for key in ("waited_s", "wait_s"))
                kept = f"{100 * (1 - spill['spilled']):.0f} %"
                _add(table, one["job"], row["node"], format_bytes(spill["input_bytes"]), kept, *sizes, *waited)
    return table


def plan_table(rows: Iterable[Row]) -> Table:
    """A line a group, on one node or several, that the manager has made."""
    table = _table("grouped on", "jobs", "others", "being measured", "bound by", "iteration as decided")
    for row in rows:
        # On each node of a group the plan is the same. A manager of the version before names no nodes.
        if (plan := row["plan"]) is None or (nodes := plan.get("nodes") or [row["node"]])[0] != row["node"]:
            continue
        decided = "" if plan["predicted_s"] is None else f"{plan['predicted_s']:.4g} s"
        jobs, measuring = " ".join(plan["jobs"]), plan["measuring"] or ""
        _add(table, " ".join(nodes), jobs, plan["others"], measuring, plan["bound"] or "", decided)
    return table


def admission_table(rows: Iterable[Row], now_s: float) -> Table:
    """A line a node's name."""
    table = _table("node", "state", "GPUs", "memory", "by", "since", "until", "more than known")
    for row in rows:
        gpus = "" if row["gpus"] is None else row["gpus"]
        memory = "" if row["memory_bytes"] is None else format_bytes(row["memory_bytes"])
        since = format_seconds(max(0.0, now_s - row["at_s"])) if row["at_s"] else ""
        until = "" if row["until_s"] is None else format_moment(row["until_s"])
        _add(table, row["name"], row["state"], gpus, memory, row["by"], since, until, row["excess"])
    return table


def token_table(rows: Iterable["TokenRow"], now_s: float) -> Table:
    """A line a token."""
    table = _table("owner", "role", "id", "counts until")
    for row in rows:
        until = "" if math.isinf(row.expires_s) else format_moment(row.expires_s)
        over = " (over)" if row.expires_s <= now_s else ""
        _add(table, row.name or "(any node: counts no more)", str(row.role), row.id, until + over)
    return table


def reservation_table(reservations: Iterable[Row]) -> Table:
    """A line a reservation."""
    table = _table("id", "state", "from", "to", "nodes", "may still run then", "by", "reason")
    for one in reservations:
        span = (format_moment(one[key]) for key in ("from_s", "to_s"))
        # A manager of the version before has all of them among the jobs.
        others = f"{format_count(count, 'job')} of others" if (count := one.get("others", 0)) else ""
        jobs = ", ".join(filter(None, (" ".join(one["jobs"]), others)))
        _add(table, one["id"], one["state"], *span, " ".join(one["nodes"]), jobs, one["by"], one["reason"])
    return table


def usage_table(rows: Iterable[Row], by: str) -> Table:
    """A line a user, account or deployment."""
    # A manager of the version before names no user.
    of_whom = ["user"] if by == "deployment" else []
    table = _table(by, *of_whom, "jobs", "ended", "GPU hours", "hours waited", "kWh")
    for row in rows:
        hours = (f"{row[key]:.1f}" for key in ("gpu_hours", "wait_hours", "kwh"))
        _add(table, row["name"], *(row.get("user", "") for _ in of_whom), row["jobs"], row["ended"], *hours)
    return table


def usage_lines(told: Row) -> Iterator[str]:
    """What sleeping nodes saved in that time, and where the log does not reach back so far."""
    if told["known_from_s"] and told["from_s"] < told["known_from_s"]:
        yield f"jobs that ended before {format_moment(told['known_from_s'])} are only in the log's archive"
    if told["asleep_node_hours"]:
        hours, kwh = told["asleep_node_hours"], told["saved_kwh"]
        yield f"nodes slept {hours:.1f} hours in all, which saved {kwh:.1f} kWh at {told['idle_w']:.0f} W each"


def power_lines(told: Row) -> Iterator[str]:
    """How many nodes sleep and why, in words."""
    how = " (a dry run: no node is switched)" if told["dry_run"] else ""
    yield f"policy {told['policy']}{how}"
    counts = {what: told[f"nodes_{what}"] for what in ("asleep", "booting", "closing")}
    yield ", ".join(f"{count} {what}" for what, count in counts.items()) + f"; {told['saved_kwh']:.1f} kWh saved"
    if told["nodes_wanted"] is not None:
        yield f"{told['nodes_wanted']} nodes to stay on: {printable(told['wanted_reason'])}"
    if told.get("forecast"):
        yield printable(told["forecast"])


def power_table(nodes: Iterable[Row], now_s: float) -> Table:
    """A line a node."""
    table = _table("node", "driver", "power", "for", "stops today", "why")
    for one in nodes:
        since = "" if one["since_s"] is None else format_seconds(max(0.0, now_s - one["since_s"]) // 1)
        pinned = " (does not sleep before `farside power pardon`)" if one["pinned"] else ""
        stays = f"stays on: {one['stays_on']}" if one.get("stays_on") else ""
        why = "; ".join(filter(None, (f"{one['reason']}{pinned}", stays)))
        _add(table, one["name"], one["driver"] or "none", one["power"], since, one["stops_today"], why)
    return table


def audit_table(entries: Iterable[Row]) -> Table:
    """A line an entry."""
    table = _table("entry", "when", "who", "proved by", "did", "what to", "result")
    for one in entries:
        words = (one[key] for key in ("actor", "proof", "action", "object", "result"))
        _add(table, one["seq"], format_moment(one["at_s"]), *words)
    return table


def job_lines(job: Row, entries: Iterable[Row]) -> Iterator[str]:
    """All about a job, for people."""
    spec = job["spec"]
    yield f"job {job['id']} ({printable(job['name'])}) of {printable(job['user'])}: {job['state']}"
    yield f"  {printable(job['reason'])}"
    if not spec.get("roles"):
        yield f"  command   {printable(' '.join(spec['argv']))}"
    for role in spec.get("roles", ()):
        yield f"  role      {printable(role['name'])}, {role['count']}: {printable(' '.join(role['argv']))}"
    yield f"  folder    {printable(spec['cwd'])}"
    yield f"  GPUs      {job['gpus']}, held for {format_seconds(job['held_s'])} in all"
    if (expected_s := job.get("expected_s")) is not None:
        yield f"  expected  {_expected_words(job, expected_s)}"
    elif problem := job.get("expected_problem"):
        yield f"  expected  nobody could be asked: {problem}"
    often = {"preempted": job["preemptions"], "failed": job["failures"]}
    counts = ", ".join(f"{what} {format_count(count, 'time')}" for what, count in often.items())
    yield f"  starts    {job['starts']}, {counts}"
    times = {"to stop": job.get("pause_s"), "to start": job.get("resume_s")}
    if took := ", ".join(f"{format_seconds(took_s)} {what}" for what, took_s in times.items() if took_s is not None):
        yield f"  took      {took}, the last time"
    if idle := job.get("idle_gpus"):
        yield f"  idle GPUs {_idle_words(idle)}"
    yield from _safeguard_lines(job)
    if job["exit_code"] is not None:
        yield f"  exit code {job['exit_code']}"
    if profile := job.get("profile"):
        yield f"  profile   {printable(_profile_words(profile))}"
    for start in job.get("ended_starts", ()):
        if start["iteration_s"] is not None:
            yield f"  start {start['start']:<4}{_start_words(start)}"
    for task in job["tasks"]:
        gpus = ",".join(map(str, task["gpus"]))
        output = printable(task["output"])
        which = f"{task['rank']} ({task['role']})" if task.get("role") else task["rank"]
        has = f"GPU {gpus}" if gpus else "no GPU"
        yield f"  rank {which} on {task['node']} ({has}): {task['state']}; output {output}"
    yield "  history"
    for entry in entries:
        told = {name: value for name, value in entry["event"].items() if name != "job_id" and value not in (None, "")}
        # Lists and tables are left out: the request is shown above, and the user's environment is for --json only.
        words = ", ".join(f"{name} {value}" for name, value in told.items() if not isinstance(value, list | dict))
        yield f"    {format_moment(entry['at_s'])}  {entry['type']}  {printable(words)}  [{printable(entry['cause'])}]"


def _safeguard_lines(job: Row) -> Iterator[str]:
    """Whether a fence ends its processes, and what limits their memory; nothing of a manager of the version before."""
    guards: list[Row] | None = job.get("safeguards")
    if guards is None:
        return
    has_none = job["state"] in ("waiting", "held", "placed")
    if has_none and not guards:
        yield "  fence     as its nodes have it where it starts: fence_s of `farside nodes --json`; 0: off"
    for fence_s, nodes in _nodes_by(guards, "fence_s").items():
        words = f"off on {nodes}: while the node is cut off its processes run on, also beside another start"
        if fence_s:
            words = f"{format_seconds(fence_s)} on {nodes}: processes end so long after their node is cut off, "
            words += "before another start begins"
        yield f"  fence     {words}"
    for one in guards:
        for start in one["starts"]:
            if start < job["starts"] or has_none:
                until = "its fence ends it" if one["fence_s"] else f"{one['node']} is back"
                yield f"  fence     start {start} may still run on {one['node']}, until {until}"
    for memory, nodes in _nodes_by(guards, "memory").items():
        if memory in _MEMORY_WORDS:
            yield f"  memory    {_MEMORY_WORDS[memory].format(nodes=nodes)}"


_MEMORY_WORDS = {
    "job": "limited on {nodes} to what it asked for",
    "share": "limited on {nodes} to its GPUs' share of the node's, as it asked for none",
    "warn": "no limit on {nodes}: above its GPUs' share the agent only warns, in its log; memory_per_gpu sets a limit",
    "none": "no limit on {nodes}",
}


def _nodes_by(guards: Iterable[Row], key: str) -> Mapping[Any, str]:
    found: dict[Any, list[str]] = {}
    for one in guards:
        found.setdefault(one[key], []).append(one["node"])
    return {value: ", ".join(nodes) for value, nodes in found.items()}


def _idle_words(idle: Row) -> str:
    words = f"all less than {idle['below_pct']} % busy since {format_moment(idle['since_s'])}"
    ends = "" if idle["ends_s"] is None else f"; the job ends at {format_moment(idle['ends_s'])} unless they are used"
    return words + ends


def _expected_words(job: Row, expected_s: float) -> str:
    jobs = format_count(job["expected_from_jobs"], "job")
    words = f"to run {format_seconds(expected_s)} in all (the median), from {jobs}"
    error = job.get("expected_error")
    return words if error is None else f"{words}; half of such estimates were {format_off(error)} lately"


def _start_words(start: Row) -> str:
    where = f"on {format_count(start['nodes'], 'node')}"
    if start["is_spread"] is not None:
        where += ", spread" if start["is_spread"] else ", consolidated"
    took = f"{format_seconds(start['iteration_s'])} an iteration, median of {start['iterations']}"
    return f"{where}: {took}"


def _profile_words(profile: Row) -> str:
    if profile["problem"]:
        return f"start {profile['start']}: {profile['problem']}"
    return (
        f"model {format_bytes(profile['model_bytes'])}, largest tensor {profile['skew']:.1%} of it, "
        f"{format_seconds(profile['iteration_s'])} an iteration; from {profile['iterations']} iterations "
        f"of start {profile['start']}"
    )


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)


def _add(table: Table, *values: object) -> None:
    table.add_row(*map(plain, values))


def plain(value: object) -> str:
    """Text of a cell, without markup and control characters."""
    return escape(printable(str(value)))

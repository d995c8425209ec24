"""Whether a manager's log promises more of donors' memory than these lend, by no code of Farside.

Read with SQLite and JSON. At each start of a job all that has been promised must have a place in donors' memory at that
moment: pages of a node not with its own donor, and the two copies of a page not with one donor. What a job is to have
of its node's own memory, the donor there lends no more, whether the job uses it by then or not. That is a flow from
nodes to donors, and the largest one is looked for, path by path, where the manager compares sums.
"""

import json
import math
import sqlite3
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Edge = tuple[str, str]
ALL = 1 << 62


@dataclass
class LoggedNode:
    lends: int = 0
    own: int = 0
    memory: int = 0  # 0: not known
    copies: int = 1
    most: int | None = None  # an operator's bound
    is_up: bool = True
    is_drained: bool = False
    is_on: bool = True


@dataclass
class Promises:
    """What the log says up to some entry."""

    nodes: dict[str, LoggedNode] = field(default_factory=dict)
    each: dict[str, float] = field(default_factory=dict)  # bytes for each GPU, by job
    memory_each: dict[str, float] = field(default_factory=dict)  # the same of the nodes' own memory
    taken: dict[str, dict[str, int]] = field(default_factory=dict)  # of that, by job that has begun, and node
    places: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    promised: dict[str, dict[str, int]] = field(default_factory=dict)  # by job that has begun, and node
    recalled: dict[tuple[str, str], int] = field(default_factory=dict)  # the most that a donor lends, by job and node
    submitted: int = 0

    def lends(self) -> dict[str, int]:
        found = {}
        for name, node in self.nodes.items():
            bounds = [most for (_, at), most in self.recalled.items() if at == name]
            is_lending = node.is_up and not node.is_drained and node.is_on
            taken = sum(of.get(name, 0) for of in self.taken.values())
            left = [max(0, node.memory - taken)] if node.memory and taken else []
            most = [] if node.most is None else [node.most]
            found[name] = min([node.lends, *bounds, *left, *most]) if is_lending else 0
        return found

    def pages(self) -> dict[str, int]:
        found = {name: node.own for name, node in self.nodes.items() if node.is_up}
        for of in self.promised.values():
            for name, size in of.items():
                found[name] = found.get(name, 0) + size
        return found

    def lacking(self) -> int:
        """Bytes that have no place."""
        return unplaced(self.lends(), self.pages(), {name: node.copies for name, node in self.nodes.items()})


def entries(database: Path) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Place, kind and event of all entries."""
    connection = sqlite3.connect(database)
    try:
        for seq, kind, body in connection.execute("SELECT seq, kind, body FROM log ORDER BY seq"):
            yield seq, kind, json.loads(body)
    finally:
        connection.close()


def check(log: Iterator[tuple[int, str, Mapping[str, Any]]]) -> tuple[list[str], int]:
    """Starts of jobs after which less than what all were promised has a place, and how many starts promised anything.

    One that was promised nothing is wrong where it takes memory that others lack then, not where they did before.
    """
    so_far, wrong, starts = Promises(), [], 0
    for seq, kind, event in log:
        before = so_far.lacking() if kind == "JobStarted" else 0
        follow(so_far, kind, event)
        if kind == "JobStarted":
            is_promised = bool(so_far.promised.get(event["job_id"]))
            starts += is_promised
            if (lacking := so_far.lacking()) > (0 if is_promised else before):
                lends, pages = so_far.lends(), so_far.pages()
                wrong.append(f"entry {seq}: job {event['job_id']}: {lacking} bytes have no place; {lends} lend {pages}")
    return wrong, starts


def follow(so_far: Promises, kind: str, event: Mapping[str, Any]) -> None:
    name, job = event.get("node", ""), event.get("job_id", "")
    node = so_far.nodes.get(name, LoggedNode())
    match kind:
        case "NodeJoined" | "NodeChanged":
            donor, swap = event.get("donor") or {}, event.get("swap") or {}
            node.lends, node.own = donor.get("capacity_bytes", 0), swap.get("own_bytes", 0)
            node.copies = max(1, swap.get("copies", 0))
            node.memory = event.get("memory_bytes", node.memory)
            node.is_up = node.is_up or kind == "NodeJoined"
            so_far.nodes[name] = node
        case "NodeLost":
            node.is_up = False
        case "DrainRequested" | "UndrainRequested":
            node.is_drained = kind == "DrainRequested"
        case "LendingOrdered":
            node.most = event["lend_bytes"]
        case "PowerChanged":
            node.is_on = event["note"]["phase"] == "on" and not event["note"].get("drain_number", 0)
        case "JobSubmitted":
            so_far.submitted += 1
            count = event.get("count", 1)
            ids = [f"{so_far.submitted}_{at}" for at in range(count)] if count > 1 else [str(so_far.submitted)]
            spec: Mapping[str, float] = event["spec"]
            so_far.each.update(dict.fromkeys(ids, spec.get("swap_bytes_per_gpu", 0.0)))
            so_far.memory_each.update(dict.fromkeys(ids, spec.get("memory_bytes_per_gpu", 0.0)))
        case "JobPlaced":
            so_far.places[job] = [(place["node"], place["gpus"]) for place in event["places"]]
        case "MemoryRecalled":
            so_far.recalled[job, name] = event["lend_bytes"]
        case "JobStarted":
            for each, found in ((so_far.each, so_far.promised), (so_far.memory_each, so_far.taken)):
                if each.get(job):
                    found[job] = {at: math.ceil(gpus * each[job]) for at, gpus in so_far.places[job]}
        case "JobUnplaced" | "JobRequeued" | "JobEnded":
            so_far.promised.pop(job, None)
            so_far.taken.pop(job, None)
            for key in [key for key in so_far.recalled if key[0] == job]:
                del so_far.recalled[key]
        case _:
            pass


def unplaced(lends: Mapping[str, int], pages: Mapping[str, int], copies: Mapping[str, int]) -> int:
    """Bytes of pages, with their copies, that find no room with donors of other nodes."""
    left: dict[Edge, int] = {}
    for name, size in pages.items():
        left["all", f"pages of {name}"] = size * copies.get(name, 1)
        for donor in lends:
            if donor != name:
                left[f"pages of {name}", f"donor {donor}"] = size if copies.get(name, 1) > 1 else ALL
    for donor, size in lends.items():
        left[f"donor {donor}", "room"] = size
    asked = sum(size for (at, _), size in left.items() if at == "all")
    return asked - largest_flow(left)


def largest_flow(left: dict[Edge, int]) -> int:
    """From ``all`` to ``room``, along shortest paths."""
    flow = 0
    while (path := shortest_path(left)) is not None:
        size = min(left[edge] for edge in path)
        for at, to in path:
            left[at, to] -= size
            left[to, at] = left.get((to, at), 0) + size
        flow += size
    return flow


def shortest_path(left: Mapping[Edge, int]) -> list[Edge] | None:
    to: dict[str, list[str]] = {}
    for (at, other), size in left.items():
        if size > 0:
            to.setdefault(at, []).append(other)
    came: dict[str, Edge] = {}
    queue = deque(["all"])
    while queue and "room" not in came:
        at = queue.popleft()
        for other in to.get(at, ()):
            if other not in came and other != "all":
                came[other] = at, other
                queue.append(other)
    if "room" not in came:
        return None
    path = [came["room"]]
    while path[-1][0] != "all":
        path.append(came[path[-1][0]])
    return path

"""Version 2 of the log converted to version 3: entries, archives and snapshots. PURE.

Until version 3 the log had a node's facts in a form of its own: GPUs said ``is_healthy``, and swap was two numbers. Who
held which GPU was said by process, and a GPU was held whole.
Each function takes a record as JSON or MessagePack gave it, and returns the one that would be written now.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Plain = dict[str, Any]
VERSION = 2

# What reading a damaged record of any version raises.
DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, AttributeError, KeyError, TypeError, ValueError)


def facts(old: Plain) -> Plain:
    """A record with a node's facts: `NodeJoined`, `NodeChanged` or a node of a snapshot."""
    new = {name: value for name, value in old.items() if name not in ("swap_bytes", "swap_own_bytes")}
    new["gpus"] = [_gpu(gpu) for gpu in old.get("gpus", ())]
    if old.get("swap_bytes"):
        new["swap"] = {"size_bytes": old["swap_bytes"], "own_bytes": old.get("swap_own_bytes", 0)}
    if "cpus" in old:
        new["cpus"] = int(old["cpus"])  # it was a float, of what an agent had said as an integer
    return new


def _gpu(old: Plain) -> Plain:
    new = {name: value for name, value in old.items() if name != "is_healthy"}
    return {**new, "healthy": old.get("is_healthy", True), "model": old.get("model", "")}


def snapshot(old: Plain) -> Plain:
    """The snapshot of a state."""
    return {**old, "nodes": {name: _node(node) for name, node in old["nodes"].items()}}


def _node(old: Plain) -> Plain:
    """A node of a snapshot: which process has which GPU, and which have none, were ``holds`` and ``others``."""
    new = {name: value for name, value in facts(old).items() if name not in ("holds", "others")}
    held = [(gpu, tuple(key)) for gpu, key in old["holds"].items()]
    new["shares"] = [{"node": old["name"], "gpu": gpu, "holder": key[:2]} for gpu, key in held]
    new["tasks"] = [*dict.fromkeys(key for _, key in held), *old["others"]]
    return new


EVENTS: Mapping[str, Callable[[Plain], Plain]] = {"NodeJoined": facts, "NodeChanged": facts}
"""By the type of an event, those that were others."""

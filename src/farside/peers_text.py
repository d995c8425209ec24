"""Text of a peers file, as `farside.blockdev.peers_file` reads it."""

import json
from collections.abc import Mapping


def peers_text(controls: Mapping[str, str]) -> str:
    """A ``[[donor]]`` for each node, with where its control listener is."""
    # JSON's strings are TOML's too.
    rows = (f"node = {json.dumps(node)}\ncontrol = {json.dumps(where)}\n" for node, where in controls.items())
    return "\n".join(f"[[donor]]\n{row}" for row in rows)

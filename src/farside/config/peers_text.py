"""Text of a peers file, as `farside.blockdev.peers_file` reads it."""

import json
from collections.abc import Mapping
from types import MappingProxyType


def peers_text(controls: Mapping[str, str], owners: Mapping[str, str] = MappingProxyType({})) -> str:
    """A ``[[donor]]`` for each node, with where its control listener is, and the owner of those that have another."""
    # JSON's strings are TOML's too.
    rows = (
        {"node": node, "control": where} | ({"owner": owners[node]} if owners.get(node) else {})
        for node, where in controls.items()
    )
    return "\n".join(
        "[[donor]]\n" + "".join(f"{key} = {json.dumps(told)}\n" for key, told in row.items()) for row in rows
    )

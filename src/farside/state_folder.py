"""Which sandbox a command is about, where it can be about one."""

import os
from pathlib import Path


def state_told(state: Path | None = None) -> Path | None:
    """The folder of ``--state``, else of FARSIDE_STATE; None: neither is told."""
    told = os.environ.get("FARSIDE_STATE", "")
    return state or (Path(told) if told else None)

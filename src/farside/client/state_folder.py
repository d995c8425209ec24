"""The sandbox folder that a command is about: `--state` or FARSIDE_STATE."""

import os
from pathlib import Path

from farside.errors import ConfigError


def state_told(state: Path | None = None) -> Path | None:
    """The folder of ``--state``, otherwise of FARSIDE_STATE; None if neither is given."""
    told = os.environ.get("FARSIDE_STATE", "")
    return state or (Path(told) if told else None)


def sandbox_config(state: Path) -> Path:
    """The settings of a sandbox's manager.

    Raises:
        ConfigError: No cluster runs in that folder.
    """
    config = state / "manager" / "config.toml"
    if not config.is_file():
        raise ConfigError(f"sandbox {state}: no manager's settings there", hint="start one with --cluster 4x8")
    return config

"""Settings: one declared table a program, files and drop-ins that fill it, checks that name what to change.

settings.py  how a setting is declared: kind, range, choices, doc
daemon.py    what `farside daemon` can be told
manager.py   what `farside manager` can be told
blockdev.py  what `farside blockdev` can be told
agent.py     what `farside agent` can be told
slurm.py     what `farside slurm` can be told
convert.py   one TOML value to one Python value, in the setting's unit and range
load.py      files and drop-ins to one frozen config, with the source of each value
check.py     what must hold between settings
"""

from farside.config.agent import AgentConfig
from farside.config.blockdev import BlockdevConfig, FaultRule
from farside.config.daemon import DaemonConfig
from farside.config.load import Effective, load_config
from farside.config.manager import ManagerConfig
from farside.config.slurm import SlurmConfig

__all__ = [
    "AgentConfig",
    "BlockdevConfig",
    "DaemonConfig",
    "Effective",
    "FaultRule",
    "ManagerConfig",
    "SlurmConfig",
    "load_config",
]

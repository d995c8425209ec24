"""Settings: one declared table for each program, read from files and drop-ins, and checked.

settings.py  how a setting is declared: name, type, default, range, meaning in one line
shared.py    settings that several programs have
daemon.py    settings of `farside daemon`
manager.py   settings of `farside manager`
blockdev.py  settings of `farside blockdev`
agent.py     settings of `farside agent`
aggregator.py  settings of `farside aggregator`
slurm.py     settings of `farside slurm`
convert.py   one TOML value to one Python value, in the setting's unit and range
renamed.py   names that settings had before
load.py      files and drop-ins to one frozen config, with the source of each value
check.py     what must hold between settings
"""

from farside.config.agent import AgentConfig
from farside.config.aggregator import AggregatorConfig
from farside.config.blockdev import BlockdevConfig, FaultRule
from farside.config.daemon import DaemonConfig
from farside.config.load import Effective, load_config
from farside.config.manager import ManagerConfig
from farside.config.slurm import SlurmConfig

__all__ = [
    "AgentConfig",
    "AggregatorConfig",
    "BlockdevConfig",
    "DaemonConfig",
    "Effective",
    "FaultRule",
    "ManagerConfig",
    "SlurmConfig",
    "load_config",
]

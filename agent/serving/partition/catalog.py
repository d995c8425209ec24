"""The partition drivers by name, and which of them a machine has."""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from farside.agent.serving.partition.cpu import CpuDriver
from farside.agent.serving.partition.gpu import GpuDriver
from farside.agent.serving.partition.green import GreenDriver
from farside.agent.serving.partition.mig import MigDriver
from farside.agent.serving.partition.mps import MpsDriver
from farside.agent.serving.partition.policy import Driver
from farside.agent.serving.partition.whole import WholeDriver
from farside.errors import ConfigError, Unavailable

AUTO = "auto"
# In the order in which `auto` tries them, but for those that have to be named.
DRIVERS: Mapping[str, type[Driver]] = MappingProxyType(
    {
        "mps": MpsDriver,
        "cpu": CpuDriver,
        "mig": MigDriver,
        "gpu": GpuDriver,
        "green": GreenDriver,
        "whole": WholeDriver,
    }
)
TO_BE_NAMED = frozenset({"green"})  # it serves files of one framework alone
# Nothing is measured or served with these, which say what a machine has: why, and what to do.
NOT_SERVED: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"mig": ("an instance is not cut further", "use gpu, which takes an instance as it takes a GPU")}
)
ON_GPU = frozenset(name for name, driver in DRIVERS.items() if driver.traits.on_gpu)
ON_CORES = DRIVERS.keys() - ON_GPU


def find_driver(name: str, among: Collection[str] = DRIVERS.keys()) -> tuple[str, Driver]:
    """A driver that works here, with its name; ``auto``: the first that does, of those that ``among`` has.

    Raises:
        ConfigError: There is none of this name.
        Unavailable: It does not work here; the line says what is missing.
    """
    if name != AUTO and name not in DRIVERS:
        raise ConfigError(f"there is no device driver {name}", hint=f"choose {AUTO}, {' or '.join(DRIVERS)}")
    problems = []
    tried = [one for one in DRIVERS if one in among and one not in TO_BE_NAMED and one not in NOT_SERVED]
    for one in tried if name == AUTO else (name,):
        driver = DRIVERS[one]()
        problem = driver.capabilities().problem
        if not problem:
            return one, driver
        problems.append(f"{one}: {problem}")
    raise Unavailable("; ".join(problems))

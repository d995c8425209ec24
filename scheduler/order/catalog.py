"""Catalogue of order policies by name. PURE."""

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from types import MappingProxyType

from farside.scheduler.order.fifo import Fifo
from farside.scheduler.order.gittins import Gittins
from farside.scheduler.order.las import Las
from farside.scheduler.order.policy import OrderPolicy
from farside.scheduler.order.qssf import Qssf
from farside.scheduler.order.sjf import Sjf
from farside.scheduler.order.smallest import Smallest
from farside.scheduler.order.srtf import Srsf, Srtf
from farside.scheduler.order.timeshare import Timeshare
from farside.scheduler.order.yarn import YarnCs
from farside.scheduler.settings import chosen, from_settings

ORDERS: Mapping[str, type[OrderPolicy]] = MappingProxyType(
    {
        "fifo": Fifo,
        "best-effort": Fifo,
        "yarn-cs": YarnCs,
        "sf": Smallest,
        "sjf": Sjf,
        "srtf": Srtf,
        "srsf": Srsf,
        "timeshare": Timeshare,
        "las": Las,
        "gittins": Gittins,
        "qssf": Qssf,
    }
)


class Needs(Enum):
    """What a policy must know of jobs; the value says it in words."""

    NOTHING = "nothing"
    RUN_TIME = "how long a job will run"
    ENDED_JOBS = "what the jobs that have ended took"
    EXPECTATION = "an estimator, which says what a job is expected to take"


_NEEDS: Mapping[type[OrderPolicy], Needs] = MappingProxyType(
    {
        Sjf: Needs.RUN_TIME,
        Srtf: Needs.RUN_TIME,
        Srsf: Needs.RUN_TIME,
        Gittins: Needs.ENDED_JOBS,
        Qssf: Needs.EXPECTATION,
    }
)
# What a name means besides its class; the user's own settings go over it.
_PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType({"best-effort": {"is_strict": "false"}})


# What an estimator of run times is of use to.
TIMED = frozenset({Needs.RUN_TIME, Needs.EXPECTATION})


def make_order(name: str, settings: Mapping[str, str]) -> OrderPolicy:
    """Make the order policy of a name, its fields set from text.

    Raises:
        ConfigError: No such policy, no such setting, or a value that the setting does not take.
    """
    cls = chosen(name, ORDERS, "policy")
    return from_settings(cls, {**_PRESETS.get(name, {}), **settings}, of=name)


def passing(order: OrderPolicy) -> OrderPolicy:
    """The policy under which jobs that have room pass the first in line that has none; itself, where they do anyway."""
    if not order.traits.is_strict:
        return order
    assert isinstance(order, Fifo | Qssf | Sjf | Smallest | Timeshare), f"{order.name} always blocks"
    return replace(order, is_strict=False)


def needs_of(order: OrderPolicy) -> Needs:
    """What a policy has to know of jobs."""
    return _NEEDS.get(type(order), Needs.NOTHING)

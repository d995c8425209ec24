"""Catalogue of placement policies by name. PURE."""

from collections.abc import Mapping
from types import MappingProxyType

from farside.scheduler.placement.consolidate import Consolidate
from farside.scheduler.placement.count_only import CountOnly
from farside.scheduler.placement.fragments import Fragments
from farside.scheduler.placement.ilp import Ilp
from farside.scheduler.placement.policy import PlacementPolicy
from farside.scheduler.placement.random import Random
from farside.scheduler.placement.skew import Skew
from farside.scheduler.placement.yarn import Yarn
from farside.scheduler.settings import chosen, from_settings

PLACEMENTS: Mapping[str, type[PlacementPolicy]] = MappingProxyType(
    {
        "consolidate": Consolidate,
        "skew": Skew,
        "fragments": Fragments,
        "count": CountOnly,
        "random": Random,
        "yarn": Yarn,
        "ilp": Ilp,
    }
)


def make_placement(name: str, settings: Mapping[str, str]) -> PlacementPolicy:
    """Make the placement policy of a name, its fields set from text.

    Raises:
        ConfigError: No such placement, no such setting, or a value that the setting does not take.
    """
    return from_settings(chosen(name, PLACEMENTS, "placement"), settings, of=name)

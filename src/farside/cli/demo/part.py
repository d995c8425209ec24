"""The parts of the demo."""

from enum import StrEnum


class ScenePart(StrEnum):
    """What to play."""

    ALL = "all"
    MEMORY = "memory"
    CLUSTER = "cluster"

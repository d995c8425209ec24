"""The preload library: its path and the variables that a program needs to be profiled."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """A library that goes into the program and all that it starts, and the variables that it reads."""

    library: str
    variables: Mapping[str, str]

"""What goes into a program so that its communication is seen."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """A library that goes into the program and all that it starts, and the variables that it reads."""

    library: str
    variables: Mapping[str, str]

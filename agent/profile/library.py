"""The preload library: its path and the variables that a program needs to be profiled."""

from collections.abc import Mapping
from typing import NamedTuple


class Preload(NamedTuple):
    """A library that goes into the program and all that it starts, and the variables that it reads."""

    library: str
    variables: Mapping[str, str]

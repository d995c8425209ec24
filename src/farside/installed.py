"""What is installed here: versions, and Python packages that not every installation has."""

from importlib import metadata
from importlib.util import find_spec

UNKNOWN = "unknown"


def version_of(*distributions: str) -> str:
    """Version of the first of these that is installed; UNKNOWN where none is.

    A source tree on PYTHONPATH has no version: that is in the metadata which an installation writes.
    """
    for name in distributions:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return UNKNOWN


def is_installed(module: str) -> bool:
    """Whether a module could be imported; packages around it are imported by that, the module is not."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package around it is not there
        return False

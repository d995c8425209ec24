"""CPU frequency governors, set by sysfs: ``powersave`` while a node is idle. [helios §4.3.2, DVFS]"""

from collections.abc import Mapping
from pathlib import Path

from farside.errors import Unavailable

GOVERNOR = "powersave"
_FILES = "devices/system/cpu/cpufreq/policy*/scaling_governor"


class CpuGovernor:
    """CPU governors of all frequency domains of this machine. ``root``: mount point of sysfs."""

    name = "cpu"

    def __init__(self, *, root: Path = Path("/sys")) -> None:
        self._root = root

    def settings(self) -> Mapping[str, str]:
        """Governor by the file that has it, relative to sysfs."""
        files = sorted(self._root.glob(_FILES))
        if not files:
            raise Unavailable("this machine has no cpufreq", hint="leave cpu out of rest, or enable it in firmware")
        for file in files:
            known = _read(file.with_name("scaling_available_governors")).split()
            if GOVERNOR not in known:
                raise Unavailable(f"{file}: no governor {GOVERNOR}", hint=f"leave cpu out of rest; {', '.join(known)}")
        return {str(file.relative_to(self._root)): _read(file) for file in files}

    def lower(self) -> None:
        """Set the governor on all domains."""
        for file in sorted(self._root.glob(_FILES)):
            _write(file, GOVERNOR)

    def restore(self, before: Mapping[str, str]) -> None:
        """Put the governors back, unless another program has changed them since; a domain that is gone has none."""
        for file in sorted(self._root.glob(_FILES)):
            governor = before.get(str(file.relative_to(self._root)))
            if governor and governor != GOVERNOR and _read(file) == GOVERNOR:
                _write(file, governor)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Unavailable(f"{file}: {why}", hint="is the CPU's frequency driver loaded?") from error


def _write(file: Path, governor: str) -> None:
    try:
        file.write_text(governor, encoding="ascii")
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}", hint="it takes root to set it") from error

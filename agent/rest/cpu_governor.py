"""CPU frequency governors, set by sysfs: ``powersave`` while a node is idle. [helios §4.3.2, DVFS]"""

from collections.abc import Mapping
from pathlib import Path

from farside.errors import Unavailable

GOVERNOR = "powersave"
_FILES = "devices/system/cpu/cpufreq/policy*/scaling_governor"
_OF_A_PROGRAM = "userspace"  # its speed is a setting besides, which the record does not have


class CpuGovernor:
    """CPU governors of all frequency domains of this machine. ``root``: mount point of sysfs."""

    name = "cpu"

    def __init__(self, *, root: Path = Path("/sys")) -> None:
        self._root = root

    def settings(self) -> Mapping[str, str]:
        """Governor by the file that has it, relative to sysfs."""
        files = self._files()
        if not files:
            raise Unavailable("this machine has no cpufreq", hint="leave cpu out of rest, or enable it in firmware")
        for file in files.values():
            known = _read(file.with_name("scaling_available_governors")).split()
            if GOVERNOR not in known:
                raise Unavailable(f"{file}: no governor {GOVERNOR}", hint=f"leave cpu out of rest; {', '.join(known)}")
        found = {name: _read(file) for name, file in files.items()}
        if name := next((name for name, governor in found.items() if governor == _OF_A_PROGRAM), ""):
            hint = "leave cpu out of rest, or set another governor"
            raise Unavailable(f"{files[name]}: {_OF_A_PROGRAM}: a program of this machine sets the speed", hint=hint)
        return found

    def lower(self) -> None:
        """Set the governor on all domains."""
        for file in self._files().values():
            _write(file, GOVERNOR)

    def restore(self, before: Mapping[str, str]) -> Mapping[str, str]:
        """Put the governors back, unless another program has changed them since; a domain that is gone has none."""
        failed: dict[str, str] = {}
        for name, file in self._files().items():
            governor = before.get(name)
            try:
                if governor and governor != GOVERNOR and _read(file) == GOVERNOR:
                    _write(file, governor)
            except Unavailable as error:
                failed[name] = str(error)
        return failed

    def _files(self) -> dict[str, Path]:
        return {str(file.relative_to(self._root)): file for file in sorted(self._root.glob(_FILES))}


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Unavailable(f"{file}: {why}", hint="is the CPU's frequency driver loaded?") from error


def _write(file: Path, governor: str) -> None:
    try:
        file.write_text(governor, encoding="ascii")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "the governor is no text"
        raise Unavailable(f"{file}: {why}", hint="it takes root to set it") from error

"""CPU frequency governors, set by sysfs: ``powersave`` while a node is idle. [helios §4.3.2, DVFS]"""

from pathlib import Path

from farside.errors import Unavailable

_GOVERNOR = "devices/system/cpu/cpufreq/policy*/scaling_governor"


class CpuGovernor:
    """CPU governors of all frequency domains of this machine. ``root``: mount point of sysfs."""

    name = "cpu governor"

    def __init__(self, governor: str = "powersave", *, root: Path = Path("/sys")) -> None:
        self._governor = governor
        self._root = root
        self._before: dict[Path, str] = {}

    def rest(self) -> None:
        """Set the governor on all domains, or on none."""
        if self._before:
            return
        files = sorted(self._root.glob(_GOVERNOR))
        if not files:
            raise Unavailable("this machine has no cpufreq", hint="leave the governor out, or enable it in firmware")
        for file in files:
            known = _read(file.with_name("scaling_available_governors")).split()
            if self._governor not in known:
                raise Unavailable(f"{file}: no governor {self._governor!r}", hint=f"one of {', '.join(known)}")
        before = {file: _read(file) for file in files}
        try:
            for file in files:
                _write(file, self._governor)
        except Unavailable:
            for file in files:
                if _read(file) != before[file]:
                    _write(file, before[file])
            raise
        self._before = before

    def resume(self) -> None:
        """Restore the old governors, unless another program has changed them since."""
        for file, governor in list(self._before.items()):
            if _read(file) == self._governor:
                _write(file, governor)
            del self._before[file]


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}", hint="is the CPU's frequency driver loaded?") from error


def _write(file: Path, governor: str) -> None:
    try:
        file.write_text(governor, encoding="ascii")
    except OSError as error:
        raise Unavailable(f"{file}: {error.strerror}", hint="it takes root to set it") from error

"""Pressure stall information of the kernel, read from /proc/pressure."""

from pathlib import Path

from farside.agent import messages as m


def read_psi(proc_root: Path) -> m.Psi:
    """Pressure of the last 10 s; None for values that this kernel does not report (not built in, or psi=0)."""
    memory = _avg10(proc_root / "pressure" / "memory")
    return m.Psi(
        memory_some_pct=memory.get("some"),
        memory_full_pct=memory.get("full"),
        cpu_some_pct=_avg10(proc_root / "pressure" / "cpu").get("some"),
        io_full_pct=_avg10(proc_root / "pressure" / "io").get("full"),
    )


def _avg10(path: Path) -> dict[str, float]:
    """Lines such as ``some avg10=0.12 avg60=...`` by their first word."""
    try:
        rows = [line.split() for line in path.read_text().splitlines()]
        return {row[0]: float(row[1].removeprefix("avg10=")) for row in rows}
    except (OSError, ValueError, IndexError):
        return {}

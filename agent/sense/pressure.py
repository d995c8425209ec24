"""Pressure stall information of the kernel, read from /proc/pressure."""

from pathlib import Path

from farside.agent import messages as m
from farside.memory_sense import read_avg10


def read_psi(proc_root: Path) -> m.Psi:
    """Pressure of the last 10 s; None for values that this kernel does not report (not built in, or psi=0)."""
    memory = read_avg10(proc_root / "pressure" / "memory")
    return m.Psi(
        memory_some_pct=memory.get("some"),
        memory_full_pct=memory.get("full"),
        cpu_some_pct=read_avg10(proc_root / "pressure" / "cpu").get("some"),
        io_full_pct=read_avg10(proc_root / "pressure" / "io").get("full"),
    )

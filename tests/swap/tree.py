"""A fake root folder: /proc, /sys and /run as far as the code under test reads them."""

from pathlib import Path

MEMINFO = "MemTotal: {total} kB\nMemAvailable: {available} kB\n"
SWAPS = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def process(
    root: Path, pid: int, *, flags: int = 0x180040, policy: int = 2, score: int = -1000, group: str = "/farside-swap0"
) -> None:
    """A guarded process, unless told otherwise."""
    write(
        root,
        {
            f"proc/{pid}/task/{pid}/stat": stat(flags, policy),
            f"proc/{pid}/smaps": smaps(("/usr/bin/python3.11", 4, "rd ex mr lo"), ("", 8, "rd wr lo")),
            f"proc/{pid}/oom_score_adj": f"{score}\n",
            f"proc/{pid}/cgroup": f"0::{group}\n",
            f"sys/fs/cgroup{group}/memory.swap.max": "0\n",
        },
    )


def stat(flags: int, policy: int = 2) -> str:
    between = "0 " * 31
    return f"7 (a name) with) spaces) S 1 7 7 0 -1 {flags} {between}{policy} 0 0\n"


def smaps(*mappings: tuple[str, int, str]) -> str:
    blocks = [
        f"7f00{number:08x}-7f01{number:08x} rw-p 00000000 00:00 0 {name}\n"
        f"Size: 1024 kB\nRss: {resident} kB\nVmFlags: {flags}\n"
        for number, (name, resident, flags) in enumerate(mappings)
    ]
    return "".join(blocks)


def machine(root: Path) -> Path:
    """A machine of 8 GiB that all is well with, and no swap on."""
    return write(
        root,
        {
            "proc/meminfo": MEMINFO.format(total=8 << 20, available=6 << 20),
            "proc/swaps": SWAPS,
            "proc/self/status": "CapEff:\t000001ffffffffff\n",
            "proc/self/mountinfo": "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
            "proc/sys/vm/min_free_kbytes": "67584\n",
            "proc/sys/vm/page-cluster": "3\n",
            "proc/sys/vm/watermark_boost_factor": "15000\n",
            "proc/cmdline": "quiet\n",
            "sys/module/nbd/refcnt": "0\n",
            "sys/power/state": "freeze mem disk\n",
            "sys/power/disk": "[platform] shutdown\n",
            "sys/power/resume": "0:0\n",
            "sys/fs/cgroup/cgroup.procs": "",
        },
    )

"""A machine on which `systemctl` starts and stops the swap unit of a device: files in place of unit and kernel.

It does to these files what `farside-swap@NAME` does to the kernel, with the size of the drop-in that was there at the
last daemon-reload; the unit itself, systemd and the kernel are in tests/vm/guest/test_swap_orders.py.
"""

import os
import sys
from pathlib import Path

from tests.swap import tree

NAME = "swap0"
UNIT = f"farside-swap@{NAME}.service"
DROP_IN = f"run/systemd/system/{UNIT}.d/50-ordered.conf"
# Of the real /proc what an agent reads besides.
_REAL = ("stat", "sys", "pressure", "self", "loadavg", "uptime", "version", "cpuinfo", "vmstat")
_SYSTEMCTL = """#!{python}
import json, pathlib, re, sys
root, device_bytes = pathlib.Path({root!r}), {device_bytes}
words = [word for word in sys.argv[1:] if not word.startswith("--")]
state, record, swaps = root / "unit", root / "run/farside/attached-nbd0.json", root / "proc/swaps"
with (root / "called").open("a") as called:
    called.write(" ".join(words) + chr(10))
drop_in, loaded = root / {drop_in!r}, root / "loaded"
if words[0] == "show":
    print("LoadState=loaded" + chr(10) + "ActiveState=" + state.read_text())
elif words[0] == "daemon-reload":
    if (root / "reload-fails").exists():
        sys.exit("no reload now")
    loaded.write_text(drop_in.read_text() if drop_in.exists() else "")
elif words[0] == "start":
    if (root / "fails").exists():
        state.write_text("failed")
        sys.exit()
    told = re.search("--size=([0-9]+)", loaded.read_text()) if loaded.exists() else None
    size = int(told[1]) if told else device_bytes
    if (root / "attaches").exists():  # whatever it is told, as with a size in SWAP_OPTIONS
        size = int((root / "attaches").read_text())
    if not record.exists():
        record.write_text(json.dumps(dict(
            index=0, export={name!r}, endpoint="", admin_socket="", connections=1, size_bytes=device_bytes,
            server_flags=0, backend="farside:" + {name!r}, is_swap=True, priority=100,
        )))
        swaps.write_text(swaps.read_text().splitlines()[0] + chr(10)
            + f"/dev/nbd0 partition {{size // 1024 - 4}} 0 100" + chr(10))
    state.write_text("active")
elif words[0] == "stop":
    swaps.write_text(swaps.read_text().splitlines()[0] + chr(10))
    record.unlink(missing_ok=True)
    state.write_text("inactive")
"""


def machine(root: Path, device_bytes: int) -> Path:
    """The folder with proc/, sys/ and run/ of such a machine; put `programs(root)` first into PATH."""
    root.mkdir(exist_ok=True)
    tree.write(
        root,
        {
            "proc/meminfo": Path("/proc/meminfo").read_text(),
            "proc/swaps": tree.SWAPS,
            "sys/block/nbd0/pid": f"{os.getpid()}\n",
            "sys/block/nbd0/backend": f"farside:{NAME}\n",
            "sys/block/nbd0/size": f"{device_bytes // 512}\n",
            "unit": "inactive",
            "called": "",
        },
    )
    (root / "run/farside").mkdir(parents=True)
    for name in _REAL:
        if Path("/proc", name).exists():
            (root / "proc" / name).symlink_to(Path("/proc", name))
    text = _SYSTEMCTL.format(
        python=sys.executable, root=os.fspath(root), device_bytes=device_bytes, drop_in=DROP_IN, name=NAME
    )
    tree.write(root, {"bin/systemctl": text, "bin/journalctl": "#!/bin/sh\necho 'farside: its words'\n"})
    for name in ("systemctl", "journalctl"):
        (root / "bin" / name).chmod(0o755)
    return root


def path_with(root: Path) -> str:
    """A PATH on which its programs come first."""
    return os.pathsep.join([os.fspath(root / "bin"), os.environ["PATH"]])


def swap_bytes(root: Path) -> int:
    """Size of the swap that is on, 0: none is."""
    lines = (root / "proc/swaps").read_text().splitlines()[1:]
    return (int(lines[0].split()[2]) + 4) * 1024 if lines else 0


def steps(root: Path) -> list[str]:
    """What systemd was asked to do, without questions."""
    return [line.split()[0] for line in (root / "called").read_text().splitlines() if not line.startswith("show")]

"""Hibernation: refused while swap is on a device that a process serves, where the system asks us.

The kernel would freeze every process, our server among them, and then write the image to a swap area. There are four
ways into hibernation, and each is closed as far as it can be:

    resume=, /sys/power/resume   names the area of the image; ours there: attach refuses
    systemctl hibernate          a drop-in in /run/systemd/sleep.conf.d forbids it as long as we are attached
    echo disk > /sys/power/state the supervisor holds a secret memory file (guard.py), and the kernel says EPERM;
                                 Linux 6.5, or 5.14 with secretmem.enable=1
    older kernels                without resume= the image goes to the first area in /proc/swaps; `nohibernate` on the
                                 kernel's command line is the way to be sure
"""

import re
from dataclasses import dataclass
from pathlib import Path

from farside.errors import ConfigError
from farside.kernel_file import kernel_text
from farside.kmod_shim.preflight import Check, Outcome
from farside.kmod_shim.swap.table import read_swaps

SLEEP_CONF = Path("run/systemd/sleep.conf.d/farside.conf")
_TEXT = """# Made by `farside swap attach`, removed by `farside swap detach`: a process of this machine serves swap,
# and hibernation would freeze it before the image is written to it.
[Sleep]
AllowHibernation=no
AllowHybridSleep=no
AllowSuspendThenHibernate=no
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hibernation:
    """Ways in which this machine could hibernate now.

    Attributes:
        is_possible: The kernel would try.
        resume_device: MAJOR:MINOR where the image would go; empty when none is set.
        resume_argument: resume= of the kernel's command line; empty when there is none.
    """

    is_possible: bool
    resume_device: str
    resume_argument: str


def read_hibernation(root: Path = Path("/")) -> Hibernation:
    """Read the state of hibernation from the kernel."""
    # A kernel that refuses hibernation now has [disabled] there; one without it has no such file.
    modes = kernel_text(root / "sys/power/disk")
    states = kernel_text(root / "sys/power/state").split()
    resume = kernel_text(root / "sys/power/resume")
    argument = re.search(r"(?:^|\s)resume=(\S+)", kernel_text(root / "proc/cmdline"))
    return Hibernation(
        is_possible="disk" in states and modes != "[disabled]" and bool(modes),
        resume_device="" if resume in ("", "0:0") else resume,
        resume_argument=argument.group(1) if argument else "",
    )


def hibernation_check(root: Path) -> Check:
    """Whether the machine might hibernate while a process of its own serves swap."""
    served = [area.path for area in read_swaps(root) if area.path.startswith("/dev/nbd")]
    if not read_hibernation(root).is_possible:
        return Check(name="hibernation", outcome=Outcome.OK, found="the kernel refuses it")
    if not served:
        return Check(name="hibernation", outcome=Outcome.OK, found="possible; no swap is served over nbd")
    return Check(
        name="hibernation",
        outcome=Outcome.WARNING,
        found=f"possible, though {served[0]} is swap: its server would be frozen before the image is written",
        advice="boot with `nohibernate`, or with secretmem.enable=1 (Linux below 6.5), by which it is refused",
    )


def names_device(hibernation: Hibernation, device: str, number: str) -> bool:
    """Whether the image would go to that device (its file, and MAJOR:MINOR, empty as long as nbd.ko is not loaded)."""
    # Both are empty on a machine that names no area, as long as nbd.ko is not loaded: that is no match.
    is_number = number != "" and hibernation.resume_device == number
    return is_number or hibernation.resume_argument == device


def forbid_sleep(root: Path) -> None:
    """Make systemd refuse hibernation; do nothing where there is no systemd. Raises ConfigError."""
    if not (root / "run/systemd/system").is_dir():
        return
    # In /run, so that a machine that ends without detach may hibernate again after its next boot.
    path = root / SLEEP_CONF
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_TEXT)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="it needs root") from error


def allow_sleep(root: Path) -> None:
    """Undo `forbid_sleep`."""
    (root / SLEEP_CONF).unlink(missing_ok=True)

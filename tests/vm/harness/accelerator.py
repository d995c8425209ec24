"""KVM where a kernel really boots under it, else emulation. /dev/kvm alone proves nothing: some hang after it opens."""

import os
import subprocess
from pathlib import Path

from farside.errors import ConfigError
from tests.vm.harness.image import Image
from tests.vm.harness.machine import Accelerator, Spec, probe_arguments

# Under a working KVM the probe is done in 2 s; one that hangs costs this once for each boot of the host.
_TRIAL_S = 20.0
_SENTENCE = b"farside-probe:"
FORCE = "FARSIDE_VM_ACCELERATOR"


def choose(image: Image) -> Accelerator:
    """What guests shall run with: tried once for each boot of this machine, then remembered beside the image.

    FARSIDE_VM_ACCELERATOR=kvm or =tcg ends the question.

    Raises:
        ConfigError: It says anything else.
    """
    if forced := os.environ.get(FORCE):
        if forced.upper() not in Accelerator.__members__:
            raise ConfigError(f"{FORCE}={forced}", hint="kvm, tcg, or nothing to have it found out")
        return Accelerator[forced.upper()]
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Accelerator.TCG
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    remembered = image.folder / "accelerator"
    known = remembered.read_text().split() if remembered.exists() else []
    if known[:1] == [boot]:
        return Accelerator[known[1]]
    found = Accelerator.KVM if _boots(image) else Accelerator.TCG
    remembered.write_text(f"{boot} {found.name}\n")
    return found


def _boots(image: Image) -> bool:
    argv = probe_arguments(Spec(accelerator=Accelerator.KVM), image.kernel, image.initrd)
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and _SENTENCE in done.stdout

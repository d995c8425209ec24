"""Configuration files that a sandbox writes for its processes.

They are ordinary files of the kind /etc/farside holds. Periods are shorter than in production, because a sandbox is
watched: a donor looks at its memory four times a second, and a silent borrower loses its leases after ten seconds.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from farside.sandbox.layout import BORROWER, Plan
from farside.sandbox.pressure import donor_folder, proc_folder

Value = str | int | float | bool | tuple[str, ...]

# On an emulated machine with a busy host every answer is late, and a sandbox would take all its donors for lost.
PATIENCE = float(os.environ.get("FARSIDE_PATIENCE", "1"))

SAMPLE_PERIOD_S = 0.25
LEASE_EXPIRY_S = 10.0 * PATIENCE
PSI_FULL_PCT_LIMIT = 20.0
# Soft RoCE is slow, the more so in an emulated guest, which is where most sandboxes meet it.
RDMA_DEADLINE_S = 3.0
RDMA_GRACE_S = 10.0
# Of a sandbox's jobs, and of processes alone that they are compared with: OPENBLAS_CORETYPE of a shell, as an example,
# chooses kernels with other last bits.
JOB_VARIABLES = {"PATH": os.environ.get("PATH", os.defpath)}


def toml_text(settings: Mapping[str, Value]) -> str:
    """A TOML document of these settings; JSON's strings, numbers, booleans and arrays are TOML's too."""
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())


def donor_settings(plan: Plan, state: Path, *, name: str, listen: str) -> dict[str, Value]:
    """Settings of one donor."""
    folder = donor_folder(state, name)
    return {
        "node": name,
        "listen": (listen,),
        "key_file": os.fspath(state / "cluster.key"),
        "slab_bytes": plan.slab_bytes,
        "headroom_bytes": plan.headroom_bytes,
        "sample_period_s": SAMPLE_PERIOD_S,
        "lease_expiry_s": LEASE_EXPIRY_S,
        "psi_full_pct_limit": PSI_FULL_PCT_LIMIT,
        "proc_root": os.fspath(proc_folder(state, name)),
        "hugepages": "off",
        "admin_socket": os.fspath(folder / "admin.sock"),
    }


def blockdev_settings(plan: Plan, state: Path) -> dict[str, Value]:
    """Settings of the borrower."""
    folder = state / "blockdev"
    settings: dict[str, Value] = {
        "name": "sandbox",
        "node": BORROWER,
        "size_bytes": plan.size_bytes,
        "slab_bytes": plan.slab_bytes,
        "listen": plan.listen,
        "key_file": os.fspath(state / "cluster.key"),
        "peers_file": os.fspath(state / "peers.toml"),
        "transport": plan.transport,
        "protection": plan.protection,
        "encrypt_remote": plan.encrypt_remote,
        "workers": plan.workers,
        "deadline_s": 1.0 * PATIENCE,
        "grace_s": 2.0 * PATIENCE,
        "state_dir": os.fspath(folder),
        "admin_socket": os.fspath(folder / "admin.sock"),
    }
    if plan.transport == "rdma":
        settings |= {"deadline_s": RDMA_DEADLINE_S, "grace_s": RDMA_GRACE_S}
    if plan.protection == "none":
        settings["i_accept_data_loss"] = True
    if plan.disk is not None:
        settings["disk_path"] = os.fspath(plan.disk)
    return settings

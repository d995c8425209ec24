"""The emulator's command line for one guest: pure."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

PROGRAM = "qemu-system-x86_64"
MTU_BYTES = 4200  # soft RDMA's packets of 4096 with their headers

# Warnings and worse go to the serial line, where they outlive the guest; a kernel that hangs is asked there what it
# waits for (sysrq). Emulated processors are so slow that the kernel's default of 20 s for a "soft lockup" is reached by
# honest work on a busy host.
_KERNEL_ARGUMENTS = (
    "console=ttyS0 loglevel=5 panic=-1 net.ifnames=0 mitigations=off audit=0 "
    "nmi_watchdog=0 watchdog_thresh=60 systemd.show_status=0 secretmem.enable=1 sysrq_always_enabled"
)


class Accelerator(StrEnum):
    """How the processor is made."""

    KVM = "kvm"
    TCG = "tcg,thread=multi,tb-size=256"


# Emulated, a string instruction goes a byte at a time: a kernel that believes they are fast (erms) copies at a tenth of
# the speed that it reaches by words. And with five levels of page tables (la57) each miss of the TLB, which is emptied
# whenever another process runs, takes a quarter longer.
_CPUS = {Accelerator.TCG: "max,-erms,-la57", Accelerator.KVM: "max"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What kind of machine; a snapshot fits only the kind that it was taken of."""

    accelerator: Accelerator
    memory_mib: int = 768
    cpus: int = 1

    @property
    def name(self) -> str:
        """As a folder's name."""
        return f"{self.accelerator.name.lower()}-{self.memory_mib}m-{self.cpus}c"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Files of one guest."""

    kernel: Path
    initrd: Path
    disk: Path  # qcow2 overlay, this guest's own
    payload: Path  # farside, read only
    console: Path  # what the serial line said, written by the emulator
    serial: Path  # socket of the serial line, made by the emulator
    control: Path  # QMP socket, made by the emulator


def arguments(spec: Spec, paths: Paths, *, name: str, port: Path | None, wake: str = "") -> list[str]:
    """Command line of a guest; `port` is the switch's socket, None for a network of one.

    `wake` names the snapshot inside `paths.disk` that it goes on from. The host reaches the guest's sshd by a port of
    127.0.0.1 that the emulator chooses; the guest reaches nothing (`restrict=on`).
    """
    data = "hubport,id=data,hubid=1" if port is None else f"stream,id=data,server=off,addr.type=unix,addr.path={port}"
    argv = [
        *_common(spec, name),
        *("-kernel", str(paths.kernel), "-initrd", str(paths.initrd), "-append", _KERNEL_ARGUMENTS),
        *("-chardev", f"socket,id=serial,path={paths.serial},server=on,wait=off,logfile={paths.console}"),
        *("-serial", "chardev:serial"),
        *("-qmp", f"unix:{paths.control},server=on,wait=off"),
        *("-drive", f"if=none,id=root,file={paths.disk},format=qcow2,cache=unsafe,aio=threads"),
        *("-device", "virtio-blk-pci,drive=root"),
        *("-drive", f"if=none,id=payload,file={paths.payload},format=raw,readonly=on"),
        *("-device", "virtio-blk-pci,drive=payload"),
        *("-netdev", "user,id=admin,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"),
        *("-device", "virtio-net-pci,netdev=admin,mac=52:54:00:55:00:01,romfile="),
        *("-netdev", data),
        *("-device", f"virtio-net-pci,id=nic,netdev=data,mac=52:54:00:77:00:64,host_mtu={MTU_BYTES},romfile="),
        *("-device", "virtio-rng-pci"),
    ]
    return [*argv, "-loadvm", wake] if wake else argv


def probe_arguments(spec: Spec, kernel: Path, initrd: Path) -> list[str]:
    """Command line of a guest that says one sentence on standard output and switches itself off."""
    append = "console=ttyS0 quiet panic=-1 farside.probe"
    argv = [*_common(spec, "probe"), "-kernel", str(kernel), "-initrd", str(initrd)]
    return [*argv, "-append", append, "-serial", "stdio", "-monitor", "none"]


def switch_arguments(ports: dict[int, Path], control: Path) -> list[str]:
    """Command line of an emulator without a machine, whose hub joins the guests' data networks.

    No guest owns the network, so each may die; each guest's port, named `port<N>`, can be cut here without a sign.
    """
    argv = [PROGRAM, "-name", "switch", "-machine", "none", "-nodefaults", "-display", "none"]
    argv += ["-qmp", f"unix:{control},server=on,wait=off"]
    for number, path in ports.items():
        argv += ["-netdev", f"stream,id=port{number},server=on,addr.type=unix,addr.path={path}"]
        argv += ["-netdev", f"hubport,id=hub{number},hubid=1,netdev=port{number}"]
    return argv


def _common(spec: Spec, name: str) -> list[str]:
    return [
        *(PROGRAM, "-name", name, "-machine", "q35", "-accel", spec.accelerator.value, "-cpu", _CPUS[spec.accelerator]),
        *("-m", f"{spec.memory_mib}M", "-smp", str(spec.cpus), "-display", "none", "-nodefaults", "-no-reboot"),
    ]

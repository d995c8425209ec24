"""GPU fence of a task: its cgroup is closed to the device files of GPUs that are not its own.

CUDA_VISIBLE_DEVICES only asks a program to leave others' GPUs alone. Here the kernel refuses to open them, to root as
to any user: it runs a program of ours (BPF_PROG_TYPE_CGROUP_DEVICE) at each open(2) and mknod(2) of a device by a
process of the cgroup. All that is not closed stays open: a list of what a driver needs besides would fail jobs as soon
as one file is forgotten. Programs of parent cgroups, systemd's for one, are asked as well, and each may refuse.

The fence ends with its cgroup. It is made before the first process enters, and a task without it is not started.
"""

import ctypes
import os
import platform
import struct
from pathlib import Path

from farside.agent.gpu_files import DeviceRange, DeviceRules

# linux/bpf.h
_PROG_LOAD, _PROG_ATTACH = 5, 8
_TYPE_CGROUP_DEVICE, _ATTACH_DEVICE = 15, 6
_ALLOW_MULTI = 2  # beside the programs of parent cgroups
_DEVICE_IS_CHARACTER = 2
_LOAD, _AND, _SET, _EXIT = 0x61, 0x54, 0xB7, 0x95
_IF_NOT, _IF_BELOW, _IF_ABOVE = 0x55, 0xA5, 0x25
_LICENSE = b"MIT"
# asm/unistd.h: glibc has no function for it.
_SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}

_libc = ctypes.CDLL(None, use_errno=True)


def program(rules: DeviceRules) -> bytes:
    """The rules as instructions of the kernel's machine: it returns 1 to open a device, 0 to refuse.

    At most five for each range, and the kernel takes a million.
    """
    # r1 has the question: u32 access and type (the lower 16 bits), u32 major, u32 minor.
    code = [
        _instruction(_LOAD, 2, source=1, offset=0),
        _instruction(_AND, 2, value=0xFFFF),
        _instruction(_LOAD, 3, source=1, offset=4),
        _instruction(_LOAD, 4, source=1, offset=8),
    ]
    for answer, ranges in ((1, rules.opened), (0, rules.closed)):
        for one in ranges:
            code += [
                _instruction(_IF_NOT, 2, offset=5, value=_DEVICE_IS_CHARACTER),
                _instruction(_IF_NOT, 3, offset=4, value=one.major),
                _instruction(_IF_BELOW, 4, offset=3, value=one.first),
                _instruction(_IF_ABOVE, 4, offset=2, value=one.last),
                *_answer(answer),
            ]
    return b"".join([*code, *_answer(1)])


def _answer(value: int) -> tuple[bytes, bytes]:
    return _instruction(_SET, 0, value=value), _instruction(_EXIT, 0)


def _instruction(code: int, register: int, *, source: int = 0, offset: int = 0, value: int = 0) -> bytes:
    return struct.pack("=BBhi", code, register | source << 4, offset, value)


def close_gpus(cgroup: Path, rules: DeviceRules) -> None:
    """Close the cgroup to these devices; what its processes have open stays open.

    Raises:
        OSError: The kernel refuses, or is none that we know.
    """
    loaded = _load(rules)
    try:
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", folder, loaded, _ATTACH_DEVICE, _ALLOW_MULTI))
        finally:
            os.close(folder)
    finally:
        os.close(loaded)


def why_no_fence(within: Path | None) -> str:
    """Why this process can't fence tasks here; empty: it can.

    It is tried in a cgroup that is made ``within`` this folder, as a program of a cgroup above may stand alone there.
    None: the cgroups are systemd's, which lets others stand beside its own, and the program is only loaded.
    """
    rules = DeviceRules(closed=(DeviceRange(0, 0, 0),))
    try:
        if within is None:
            os.close(_load(rules))
            return ""
        probe = within / f"fence-probe-{os.getpid()}"
        probe.mkdir()
        try:
            close_gpus(probe, rules)
        finally:
            probe.rmdir()
    except OSError as error:
        return f"the kernel takes no program for a cgroup's devices: {error.strerror}"
    return ""


def _load(rules: DeviceRules) -> int:
    """The descriptor of the rules' program in the kernel."""
    code = program(rules)
    instructions, license_text = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(_LICENSE)
    given = struct.pack(
        "=IIQQIIQII16s", _TYPE_CGROUP_DEVICE, len(code) // 8, ctypes.addressof(instructions),
        ctypes.addressof(license_text), 0, 0, 0, 0, 0, b"farside_gpus",
    )  # fmt: skip
    return _bpf(_PROG_LOAD, given)


def _bpf(command: int, given: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(0, f"bpf(2) is not known on {platform.machine()}")
    answer = int(_libc.syscall(number, command, ctypes.create_string_buffer(given, len(given)), len(given)))
    if answer < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return answer

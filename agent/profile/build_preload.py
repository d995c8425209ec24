"""Build of libfarside-profile.so, beside the engine and with the same environment variables (see build_ffi.py).

It goes into processes of others: it links nothing but libc, shows nothing but the functions that it stands in for, and
has no constructor but its own. Paths are relative to setup.py, as setuptools wants them.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext

HERE = Path("src/farside/agent/profile/preload")
NAME = "farside.agent.profile.libfarside-profile"
COMPILE = (
    "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-fvisibility=hidden", "-fstack-protector-strong",
    "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
)  # fmt: skip
LINK = ("-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack", "-Wl,-z,defs")


class BuildPlainly(build_ext):
    """Build with the library's plain name, without Python's version and machine in it."""

    def get_ext_filename(self, fullname: str) -> str:
        """Where it goes below the build folder; asked with and without its packages."""
        if fullname in (NAME, NAME.rpartition(".")[2]):
            return f"{fullname.replace('.', os.sep)}.so"
        return str(super().get_ext_filename(fullname))  # type: ignore[no-untyped-call]


def library() -> Any:
    """The library; what sees RDMA only where its headers are."""
    left_out = () if _has_verbs() else ("verbs.c",)
    return Extension(
        NAME,
        sources=sorted(str(path) for path in HERE.glob("*.c") if path.name not in left_out),
        depends=sorted(str(path) for path in HERE.glob("*.h")),
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=[*COMPILE, *(["-Werror"] if os.environ.get("FARSIDE_WERROR", "") == "1" else [])],
        extra_link_args=list(LINK),
    )


def _has_verbs() -> bool:
    if os.environ.get("FARSIDE_RDMA", "auto") == "off":
        return False
    return subprocess.run(["pkg-config", "--exists", "libibverbs"], check=False).returncode == 0

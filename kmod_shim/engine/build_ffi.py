"""How the C engine becomes `_ffi`: cffi in API mode, from the text of engine.h and every .c file beside it.

Read from the environment:
    FARSIDE_WERROR=1    a warning ends the build (CI's setting)
    FARSIDE_SANITIZE=1  address and undefined-behaviour sanitizers; run with libasan preloaded (see the Makefile)

Paths are relative to setup.py, as setuptools wants them.
"""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

from cffi import FFI

HERE = Path("src/farside/kmod_shim/engine")
LIBRARIES = ("liburing", "libcrypto")


def contract(header: str) -> str:
    """The declarations of engine.h that Python may use: what stands between its two cffi marks."""
    found = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", header, re.DOTALL)
    if found is None:
        sys.exit("engine.h: no text between /* cffi: begin */ and /* cffi: end */")
    return found.group(1)


def pkg_config(option: str) -> list[str]:
    """The flags that pkg-config knows for the libraries that the engine cannot do without."""
    try:
        done = subprocess.run(["pkg-config", option, *LIBRARIES], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("pkg-config is missing; install it (Debian: apt-get install pkg-config) or run `make venv` as root")
    if done.returncode:
        sys.exit(
            f"pkg-config does not know all of {', '.join(LIBRARIES)}; install them "
            "(Debian: apt-get install liburing-dev libssl-dev) or run `make venv` as root"
        )
    return done.stdout.split()


def is_set(name: str) -> bool:
    """True when the environment variable says 1."""
    return os.environ.get(name, "") == "1"


compile_args = ["-std=gnu11", "-O3", "-g", "-Wall", "-Wextra", "-fno-strict-aliasing", "-fvisibility=hidden"]
link_args: list[str] = []
if platform.machine() == "x86_64":
    compile_args.append("-msse4.2")  # the crc32 instruction
if is_set("FARSIDE_WERROR"):
    compile_args.append("-Werror")
if is_set("FARSIDE_SANITIZE"):
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    compile_args += flags
    link_args += flags

ffibuilder = FFI()
ffibuilder.cdef(contract((HERE / "engine.h").read_text()))
ffibuilder.set_source(
    "farside.kmod_shim.engine._ffi",
    '#include "engine.h"',
    sources=sorted(str(path) for path in HERE.glob("*.c") if path.name != "_ffi.c"),
    depends=sorted(str(path) for path in HERE.glob("*.h")),
    include_dirs=[str(HERE)],
    define_macros=[("_GNU_SOURCE", "1")],
    undef_macros=["NDEBUG"],  # CPython's own flags define it; the engine keeps its asserts
    extra_compile_args=[*compile_args, *pkg_config("--cflags")],
    extra_link_args=[*link_args, *pkg_config("--libs")],
)

"""Build of the C engine as `_ffi`: cffi in API mode, from the text of engine.h and every .c file beside it.

Read from the environment:
    FARSIDE_WERROR=1    a warning ends the build (CI's setting)
    FARSIDE_SANITIZE=1  address and undefined-behaviour sanitizers; run with libasan preloaded (see the Makefile)
    FARSIDE_HARDENED=0  without BIND_NOW, RELRO, checked copies and stack protector, to measure what they cost
    FARSIDE_RDMA        auto (the default): the RDMA transport is built where rdma-core is; on: or the build fails; off
    FARSIDE_TLS         the same for TLS of NBD clients, which is built where GnuTLS's headers are

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
# The disk's ring, and its encryption
LIBRARIES = ("liburing", "libcrypto")
RDMA_LIBRARIES = ("libibverbs", "librdmacm")
WITH_RDMA = ("verbs.c", "verbs_cm.c", "verbs_export.c", "verbs_pair.c", "verbs_registry.c")
WITHOUT_RDMA = ("verbs_none.c",)
# Its headers: the library itself is loaded where settings ask for TLS (tls.c).
TLS_LIBRARIES = ("gnutls >= 3.6.13",)
WITH_TLS = ("tls.c",)
WITHOUT_TLS = ("tls_none.c",)


def contract(header: str) -> str:
    """Declarations of engine.h that Python may use: the text between its two cffi marks."""
    # cffi reads declarations but no preprocessor lines, so the part between the marks has none.
    found = re.search(r"/\* cffi: begin \*/(.*)/\* cffi: end \*/", header, re.DOTALL)
    if found is None:
        sys.exit("engine.h: no text between /* cffi: begin */ and /* cffi: end */")
    return found.group(1)


def pkg_config(option: str, libraries: tuple[str, ...]) -> list[str] | None:
    """The flags that pkg-config knows for the libraries; None when it does not know all of them."""
    try:
        done = subprocess.run(["pkg-config", option, *libraries], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        sys.exit("pkg-config is missing; install it (Debian: apt-get install pkg-config) or run `make venv` as root")
    return None if done.returncode else done.stdout.split()


def needed(option: str) -> list[str]:
    """The flags for the libraries that the engine cannot do without."""
    flags = pkg_config(option, LIBRARIES)
    if flags is None:
        sys.exit(
            f"pkg-config does not know all of {', '.join(LIBRARIES)}; install them "
            "(Debian: apt-get install liburing-dev libssl-dev) or run `make venv` as root"
        )
    return flags


def wants(name: str, libraries: tuple[str, ...], packages: str) -> bool:
    """Whether an optional part is built, by the environment variable and by what is installed.

    ``packages``: Debian's, that have the libraries.
    """
    told = os.environ.get(name, "auto")
    if told not in ("auto", "on", "off"):
        sys.exit(f"{name}={told}: must be auto, on or off")
    found = told != "off" and pkg_config("--exists", libraries) is not None
    if told == "on" and not found:
        sys.exit(
            f"{name}=on, and pkg-config does not know all of {', '.join(libraries)}; install them "
            f"(Debian: apt-get install {packages})"
        )
    return found


def is_set(name: str) -> bool:
    """True when the environment variable says 1."""
    return os.environ.get(name, "") == "1"


compile_args = ["-std=gnu11", "-O3", "-g", "-Wall", "-Wextra", "-fno-strict-aliasing", "-fvisibility=hidden"]
# What reduce.c promises of its bits
compile_args += ["-ffp-contract=off", "-fno-math-errno"]
is_hardened = os.environ.get("FARSIDE_HARDENED", "1")
if is_hardened not in ("0", "1"):
    sys.exit(f"FARSIDE_HARDENED={is_hardened}: must be 0 or 1")
# Tables of functions are read-only once the module is loaded. [L7]
bound = ["-Wl,-z,relro", "-Wl,-z,now"] if is_hardened == "1" else ["-Wl,-z,norelro", "-Wl,-z,lazy"]
link_args = ["-lm", *bound, "-Wl,-z,noexecstack"]
if platform.machine() == "x86_64":
    compile_args.append("-msse4.2")  # the crc32 instruction, for the checksum of each page
if is_set("FARSIDE_WERROR"):
    compile_args.append("-Werror")
if is_set("FARSIDE_SANITIZE"):
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]
    compile_args += flags
    link_args += flags
elif is_hardened == "1":
    compile_args += ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]
else:
    compile_args += ["-fno-stack-protector", "-U_FORTIFY_SOURCE"]

has_rdma = wants("FARSIDE_RDMA", RDMA_LIBRARIES, "libibverbs-dev librdmacm-dev")
rdma_link_args = (pkg_config("--libs", RDMA_LIBRARIES) or []) if has_rdma else []
has_tls = wants("FARSIDE_TLS", TLS_LIBRARIES, "libgnutls28-dev")
tls_compile_args = (pkg_config("--cflags", TLS_LIBRARIES) or []) if has_tls else []
# cffi adds its own _ffi.c. Of an optional part either its files are built or those that stand in for it: they define
# the same functions.
left_out = {"_ffi.c", *(WITHOUT_RDMA if has_rdma else WITH_RDMA), *(WITHOUT_TLS if has_tls else WITH_TLS)}

ffibuilder = FFI()
ffibuilder.cdef(contract((HERE / "engine.h").read_text()))
ffibuilder.set_source(
    "farside.kmod_shim.engine._ffi",
    '#include "engine.h"',
    sources=sorted(str(path) for path in HERE.glob("*.c") if path.name not in left_out),
    depends=sorted(str(path) for path in HERE.glob("*.h")),
    include_dirs=[str(HERE)],
    define_macros=[("_GNU_SOURCE", "1")],
    undef_macros=["NDEBUG"],  # CPython's own flags define it; the engine keeps its asserts
    extra_compile_args=[*compile_args, *needed("--cflags"), *tls_compile_args],
    extra_link_args=[*link_args, *needed("--libs"), *rdma_link_args, "-ldl"],
)

"""Builds the Debian package: `make deb`, or python -m tools.build_deb [--version VERSION] [--out FOLDER] [--fast].

A virtual environment without its own interpreter goes to /usr/lib/farside: Debian's python3, with our package and the
pinned packages that both planes need. So `python3-pyverbs` is Debian's, and no other package's versions matter. NumPy
is in it, for the manager, with LightGBM, which its estimates and forecasts use, and SciPy, which that needs; what only
reports of the simulator use is left out. Needs dpkg-deb and dpkg-shlibdeps (dpkg-dev).
"""

import argparse
import compileall
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from py_compile import PycInvalidationMode

from tools.distributions import closure, copy_distribution

ROOT = Path(__file__).parents[1]
HOME = Path("usr/lib/farside")
SITE = HOME / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
# What only reports and files of the simulator import.
LEFT_OUT = {"matplotlib", "pyarrow", "pandas"}
# The manager's parts are processes that read this file again, under another name.
LAUNCHER = '#!/usr/lib/farside/bin/python3\nfrom farside.cli import main\n\nif __name__ == "__main__":\n    main()\n'
PYVENV = "home = /usr/bin\ninclude-system-site-packages = true\n"


def main() -> int:
    """Builds, and prints the package's path."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--version", default=own_version(), help="version of the package; default: that of pyproject.toml"
    )
    arguments.add_argument("--out", type=Path, default=ROOT / "build", help="folder for the package")
    arguments.add_argument("--fast", action="store_true", help="compress little, for tests")
    told = arguments.parse_args()
    for program in ("dpkg-deb", "dpkg-shlibdeps", "dpkg"):
        if shutil.which(program) is None:
            print(f"farside: no {program}; apt-get install dpkg-dev", file=sys.stderr)
            return 1
    told.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="farside-deb-") as folder:
        staging = Path(folder) / "farside"
        staging.mkdir(mode=0o755)
        _fill(staging)
        _describe(staging, told.version)
        path = told.out / f"farside_{told.version}_{architecture()}.deb"
        how = ("-Zgzip", "-z1") if told.fast else ("-Zxz",)
        _pack(staging, path, how)
    print(path)
    return 0


def _pack(staging: Path, path: Path, how: Sequence[str]) -> None:
    # Beside it, so that a build that is interrupted leaves no torn package under its name.
    fresh = path.with_suffix(".new")
    try:
        _run("dpkg-deb", "--root-owner-group", *how, "--build", str(staging), str(fresh))
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def own_version() -> str:
    """pyproject.toml's."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def architecture() -> str:
    """Debian's name for this machine's kind."""
    return _run("dpkg", "--print-architecture").strip()


# --- files


def _fill(staging: Path) -> None:
    _python(staging)
    for pattern in ("*.service", "*.target"):
        _put(ROOT / "systemd", staging / "lib/systemd/system", pattern)
    for kind in ("sysusers.d", "tmpfiles.d"):
        _put(ROOT / "systemd" / kind, staging / "usr/lib" / kind, "*.conf")
    _put(ROOT / "debian/etc", staging / "etc/farside", "*.toml")
    for pattern in ("*.rules.yml", "*.dashboard.json"):
        _put(ROOT / "systemd", staging / "usr/share/farside", pattern)
    documents = staging / "usr/share/doc/farside"
    for name in ("operating.md", "manager.md", "page-*.png"):
        _put(ROOT / "docs", documents, name)
    shutil.copy(ROOT / "LICENSE", documents / "copyright")
    shutil.copy(ROOT / "CHANGELOG.md", documents)
    _manual(staging)
    (staging / "var/lib/farside").mkdir(parents=True)
    for folder, _, files in os.walk(staging):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.parent.name == "bin" else 0o644)


def _put(source: Path, target: Path, pattern: str) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob(pattern)):
        shutil.copy(path, target)


def _python(staging: Path) -> None:
    site = staging / SITE
    ignore = shutil.ignore_patterns("__pycache__", "*.o", "*.c", "*.h")
    shutil.copytree(ROOT / "src/farside", site / "farside", ignore=ignore)
    for name in sorted(closure(("farside",), LEFT_OUT)):
        copy_distribution(name, site)
    compileall.compile_dir(
        site, quiet=2, stripdir=staging, prependdir="/", invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
    )
    (staging / HOME / "bin").mkdir()
    (staging / HOME / "bin/python3").symlink_to("/usr/bin/python3")
    (staging / HOME / "pyvenv.cfg").write_text(PYVENV)
    (staging / "usr/bin").mkdir()
    (staging / "usr/bin/farside").write_text(LAUNCHER)


def _manual(staging: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="farside-man-") as folder:
        _run(sys.executable, "-m", "farside.cli.manual", folder)
        for section in "158":
            target = staging / f"usr/share/man/man{section}"
            _put(Path(folder), target, f"*.{section}")
            for page in target.iterdir():
                _run("gzip", "-9n", str(page))
        _put(Path(folder) / "completion", staging / "usr/share/bash-completion/completions", "farside")


# --- what dpkg is told


def _describe(staging: Path, version: str) -> None:
    control = staging / "DEBIAN"
    control.mkdir(mode=0o755)
    major, minor = sys.version_info[:2]
    size_kib = sum(path.lstat().st_size for path in staging.rglob("*")) >> 10
    values = {
        "VERSION": version,
        "ARCHITECTURE": architecture(),
        "SIZE_KIB": str(size_kib),
        "PYTHON": f"{major}.{minor}",
        "NEXT_PYTHON": f"{major}.{minor + 1}",
        "LIBRARIES": _libraries(staging),
    }
    text = (ROOT / "debian/control.in").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    (control / "control").write_text(text)
    for script in ("postinst", "prerm", "postrm"):
        shutil.copy(ROOT / "debian" / script, control)
        (control / script).chmod(0o755)
    settings = sorted((staging / "etc").rglob("*.toml"))
    (control / "conffiles").write_text("".join(f"/{path.relative_to(staging)}\n" for path in settings))
    (control / "md5sums").write_text("".join(_sums(staging)))


def _libraries(staging: Path) -> str:
    """The packages of the C libraries that the engine is linked to, as dpkg's own database has them."""
    engine = next((staging / SITE / "farside/kmod_shim/engine").glob("*.so"))
    with tempfile.TemporaryDirectory(prefix="farside-shlibs-") as folder:
        (Path(folder) / "debian").mkdir()
        (Path(folder) / "debian/control").write_text("Source: farside\n\nPackage: farside\nArchitecture: any\n")
        said = _run("dpkg-shlibdeps", "-O", str(engine), cwd=Path(folder))
    return said.strip().removeprefix("shlibs:Depends=")


def _sums(staging: Path) -> Iterator[str]:
    for path in sorted(staging.rglob("*")):
        name = path.relative_to(staging)
        if path.is_file() and not path.is_symlink() and name.parts[0] not in ("DEBIAN", "etc"):
            yield f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {name}\n"


def _run(*argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"farside: {argv[0]} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

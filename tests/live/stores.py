"""The stores that tests run over: SQLite, and a PostgreSQL server of our own in a temporary folder."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

KINDS = ("sqlite", "postgresql")


@contextmanager
def store_url(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store, one of `KINDS`; skips where there is no PostgreSQL and it is to be that."""
    if kind == "postgresql":
        with a_database() as url:
            yield url
    else:
        yield f"sqlite:///{folder}/manager.db"


@contextmanager
def a_database() -> Iterator[str]:
    """The URL of an empty database; skips where there is no PostgreSQL."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
    binaries = programs[-1].parent
    # The server refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    before = ["setpriv", "--reuid", user, "--regid", user, "--clear-groups"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="farside-pg-"))
    try:
        shutil.chown(folder, user)
        run = [*before, str(binaries / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "farside", "-N"]
        made = subprocess.run(run, capture_output=True, text=True, cwd=folder)
        if made.returncode:
            pytest.skip(f"PostgreSQL makes no database here: {made.stderr.strip()[-200:]}")
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        control = [*before, str(binaries / "pg_ctl"), "-D", str(folder / "data"), "-w"]
        log = str(folder / "log")
        started = subprocess.run([*control, "-o", options, "-l", log, "start"], stdout=subprocess.DEVNULL, cwd=folder)
        if started.returncode:
            pytest.skip(f"PostgreSQL does not start here: {Path(log).read_text()[-200:]}")
        try:
            yield f"postgresql+psycopg://farside@/postgres?host={folder}"
        finally:
            subprocess.run([*control, "-m", "immediate", "stop"], stdout=subprocess.DEVNULL, check=True, cwd=folder)
    finally:
        shutil.rmtree(folder)

"""What slurmdbd needs besides Slurm: its settings, and a MariaDB in a folder, without privileges or a service."""

import getpass
import socket
from pathlib import Path

from tests.support.ports import free_port
from tests.support.programs import need, run

SQL = Path("/usr/share/mysql")

_CONF = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=root
StorageLoc=slurm
"""


def need_accounting() -> None:
    """Skips the test where Debian's slurmdbd and mariadb-server-core are not installed."""
    need("slurmdbd", "sacctmgr", "sacct", "mariadbd")


def make_accounting(folder: Path) -> tuple[tuple[str, ...], str]:
    """Makes a database and slurmdbd.conf; how to start the database, and the lines that slurm.conf needs."""
    user, data = getpass.getuser(), folder / "database"
    port, database_port = free_port(), free_port()
    (data / "mysql").mkdir(parents=True)
    common = "mariadbd", "--no-defaults", f"--datadir={data}", f"--user={user}", "--skip-grant-tables"
    # What mariadb-install-db does, which is of another package: the tables of its own that it starts with.
    tables = b"CREATE DATABASE IF NOT EXISTS mysql;\nUSE mysql;\n" + (SQL / "mysql_system_tables.sql").read_bytes()
    run([*common, "--bootstrap"], stdin=tables)
    conf = folder / "slurmdbd.conf"
    host = socket.gethostname().partition(".")[0]
    conf.write_text(_CONF.format(folder=folder, host=host, port=port, user=user, database_port=database_port))
    conf.chmod(0o600)
    start = (
        *common, "--bind-address=127.0.0.1", f"--port={database_port}", f"--socket={folder}/db.sock",
        f"--pid-file={folder}/database.pid", "--innodb-flush-log-at-trx-commit=0",
    )  # fmt: skip
    # The "password" is where munged listens.
    lines = (
        f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={port}\nAccountingStorageTRES=gres/gpu\n"
        f"AccountingStoragePass={folder}/munge.sock"
    )
    return start, lines

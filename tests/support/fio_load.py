"""A verifying fio that runs in the background while a test does things to the server."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import need

LIMIT_S = 90.0
FIO_JOBS = 2


@contextmanager
def verifying_fio(uri: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """fio that writes and verifies until the body of the `with` ends; then its round is finished and must be good.

    It works in rounds of 48 MiB for each of two jobs, with random order and sizes, and stops at the first difference or
    error. Whether it still runs can be asked of the process.
    """
    need("fio")
    log = folder / "fio.log"
    script = folder / "fio.sh"
    argv = ["fio", "--name=v", "--ioengine=nbd", f"--uri={uri}", "--thread", "--verify_state_save=0", *_LOAD, *options]
    # One round after the other, until told: fio itself can't loop over write-then-verify with fresh random data.
    stop = folder / "stop"
    script.write_text(
        f"set -e\nn=0\nwhile [ ! -e {stop} ]; do n=$((n + 1)); {' '.join(argv)} --randseed=$n; done\necho rounds $n\n"
    )
    with (
        log.open("w") as output,
        subprocess.Popen(
            ["sh", str(script)], stdout=output, stderr=subprocess.STDOUT, text=True, cwd=folder
        ) as process,
    ):
        try:
            yield process
        finally:
            stop.touch()
            status = process.wait(LIMIT_S)
    said = log.read_text()
    assert status == 0, f"fio ended with {status}:\n{said[-3000:]}"
    assert "rounds" in said


_LOAD = (
    "--rw=randwrite",
    "--bssplit=4k/40:64k/30:128k/30",
    "--size=48M",
    "--offset_increment=64M",
    f"--numjobs={FIO_JOBS}",
    "--iodepth=16",
    "--verify=crc32c",
    "--do_verify=1",
    "--verify_fatal=1",
    "--group_reporting",
)

"""Clients of the demo's device: fio and nbdcopy, which check every byte they read back."""

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farside.errors import FarsideError
from farside.units import MIB

# Where on the device each client works; they share nothing.
COPY_BYTES = 192 * MIB
FIO_OFFSET = 256 * MIB
FIO_JOBS = 2
FIO_JOB_BYTES = 96 * MIB
LIMIT_S = 60.0
LOOK_EVERY_S = 0.1


class WrongBytes(FarsideError):
    """A client read something else than it had written, or got an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What the clients have seen so far."""

    verified_bytes: int = 0
    written_bytes: int = 0
    longest_s: float = 0.0
    rounds: int = 0
    error: str = ""

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(
            verified_bytes=self.verified_bytes + other.verified_bytes,
            written_bytes=self.written_bytes + other.written_bytes,
            longest_s=max(self.longest_s, other.longest_s),
            rounds=self.rounds + other.rounds,
            error=self.error or other.error,
        )


class FioLoad:
    """fio, one verifying round after the other, in a thread until stopped."""

    def __init__(self, uri: str, folder: Path) -> None:
        self.uri = uri
        self.folder = folder
        # Written by the thread alone and replaced as a whole, so that readers need no lock.
        self.tally = Tally()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fio")

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> Tally:
        """Ends after the round that runs now, and returns what was seen."""
        # The round is not interrupted: what it has not verified yet would be lost to the tally.
        self._stop.set()
        self._thread.join()
        return self.tally

    def wait_until_verified(self, count_bytes: int, *, limit_s: float) -> None:
        """Returns when this number of bytes is verified, a client saw an error, or time is up."""
        end_s = time.monotonic() + limit_s
        while self.tally.verified_bytes < count_bytes and not self.tally.error and time.monotonic() < end_s:
            # A sleep that ends early when the thread ends.
            self._thread.join(LOOK_EVERY_S)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set() and not self.tally.error:
            number += 1
            try:
                seen = fio_round(self.uri, self.folder, seed=number)
            except (FarsideError, OSError, subprocess.SubprocessError) as error:
                seen = Tally(error=str(error))
            self.tally = self.tally.plus(seen)


def fio_round(uri: str, folder: Path, *, seed: int) -> Tally:
    """Writes an area in random order, 4 KiB and 128 KiB mixed, and reads all of it back against its checksums.

    Raises:
        WrongBytes: fio found a difference or got an error.
    """
    report = folder / "fio.json"
    options = {
        "name": "demo", "ioengine": "nbd", "uri": uri, "rw": "randwrite", "bssplit": "4k/40:128k/60",
        "offset": FIO_OFFSET, "size": FIO_JOB_BYTES, "offset_increment": 2 * FIO_JOB_BYTES, "numjobs": FIO_JOBS,
        "iodepth": 16, "verify": "crc32c", "do_verify": 1, "verify_fatal": 1, "verify_state_save": 0,
        "randseed": seed, "group_reporting": 1, "output-format": "json", "output": report,
    }  # fmt: skip
    _run(["fio", "--thread", *(f"--{name}={value}" for name, value in options.items())])
    text = report.read_text()
    # What fio says before the first brace is no JSON.
    return fio_tally(text[text.index("{") :])


def fio_tally(report: str) -> Tally:
    """What a report of fio says: bytes read are bytes verified, since its job reads for nothing else."""
    job = json.loads(report)["jobs"][0]
    longest_ns = max(float(job[way]["clat_ns"]["max"]) for way in ("read", "write"))
    return Tally(
        verified_bytes=int(job["read"]["io_bytes"]),
        written_bytes=int(job["write"]["io_bytes"]),
        longest_s=longest_ns / 1e9,
        rounds=1,
        error="fio says error " + str(job["error"]) if job["error"] else "",
    )


def copy_in(uri: str, data: Path) -> Tally:
    """Copies a file onto the device's beginning with nbdcopy, four connections and 64 requests at once."""
    _run(["nbdcopy", "--connections=4", "--requests=64", str(data), uri])
    return Tally(written_bytes=data.stat().st_size)


def copy_back_and_compare(uri: str, data: Path) -> Tally:
    """Copies that area back with nbdcopy and compares it with the file, byte for byte.

    Raises:
        WrongBytes: they differ.
    """
    size = data.stat().st_size
    # nbdcopy reads a whole device: nbdkit shows it the area of the file alone.
    window = ["nbdkit", "--exit-with-parent", "--filter=offset", "nbd", f"uri={uri}", "offset=0", f"range={size}"]
    reader = ["nbdcopy", "--requests=64", "--", "[", *window, "]", "-"]
    with subprocess.Popen(reader, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as copy:
        _run(["cmp", "--", str(data), "-"], stdin=copy)
        if copy.wait(LIMIT_S) != 0:
            raise WrongBytes(f"nbdcopy: {_last_words(copy.stderr.read() if copy.stderr else b'')}")
    return Tally(verified_bytes=size)


def _run(argv: Sequence[str], *, stdin: "subprocess.Popen[bytes] | None" = None) -> None:
    done = subprocess.run(
        list(argv), stdin=stdin.stdout if stdin else None, capture_output=True, timeout=LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise WrongBytes(f"{argv[0]} ended with {done.returncode}: {_last_words(done.stderr or done.stdout)}")


def _last_words(output: bytes) -> str:
    # fio puts its reason on the line after "fio: ".
    lines = output.decode(errors="replace").strip().splitlines()
    return " ".join(line.strip() for line in lines[-2:]) or "it said nothing"

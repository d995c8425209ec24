"""Runs the load generators (our nbd_load.c, and fio) against a server, with every process's CPU time beside."""

import json
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import psutil

from benchmarks.result import Point, Sample, SecondOpinion
from farside.errors import FarsideError

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmarks"
CFLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread")
FILL_BLOCK_BYTES = 1 << 20


class BenchmarkError(FarsideError):
    """A server or a load generator did not do what a measurement needs."""


class _Report(msgspec.Struct, frozen=True):
    """What nbd_load prints."""

    operations: int
    operations_total: int
    iops: float
    bytes_per_s: float
    mean_ns: float
    p50_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: float
    failed: int
    misread: int
    cpu_s: float
    error: int


def build_program(name: str) -> Path:
    """Compiles benchmarks/NAME.c where it is newer than what was built before; the program's path."""
    source, program = HERE / f"{name}.c", BUILD / name
    newest = max(source.stat().st_mtime, (HERE / "nbd_wire.h").stat().st_mtime)
    if not program.exists() or program.stat().st_mtime < newest:
        program.parent.mkdir(parents=True, exist_ok=True)
        command = ["cc", *CFLAGS, "-o", str(program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"{shlex.join(command)}: {done.stderr.strip()}")
    return program


def cpu_s(pids: tuple[int, ...]) -> float:
    """CPU seconds that these processes and all their children have used, to the nanosecond. Ended ones count as 0."""
    return sum(process_cpu_s(pid) for pid in family(pids))


def family(pids: tuple[int, ...]) -> frozenset[int]:
    """The processes and everything below them."""
    found = set(pids)
    for pid in pids:
        try:
            found.update(child.pid for child in psutil.Process(pid).children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return frozenset(found)


def process_cpu_s(pid: int) -> float:
    """CPU seconds that one process has used without its children; 0 where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): CPUCLOCK_SCHED of the whole process
    except OSError:
        return 0.0


def run_load(
    program: Path,
    socket: Path,
    point: Point,
    *,
    export: str = "",
    seconds: float,
    warmup_s: float,
    seed: int,
    stamp: bool,
    roles: Mapping[str, tuple[int, ...]],
    server: str,
    repetition: int,
) -> Sample:
    """One measurement. ``roles`` names the processes whose CPU time is charged to "server" and to "donor"."""
    command = [str(program), "--unix", str(socket), "--export", export, "--rw", point.rw]
    command += ["--block", str(point.block_bytes), "--depth", str(point.depth)]
    command += ["--connections", str(point.connections), "--seconds", str(seconds), "--warmup", str(warmup_s)]
    command += ["--seed", str(seed), *([] if stamp else ["--no-stamp"])]
    report, cpu = _converse(command, roles)
    if report.error or not report.operations:
        raise BenchmarkError(f"{server}: {point.name}: load ended with error {report.error}: {shlex.join(command)}")
    per_request = {role: 1e6 * used / report.operations_total for role, used in cpu.items()}
    return Sample(
        server=server,
        point=point,
        repetition=repetition,
        iops=report.iops,
        bytes_per_s=report.bytes_per_s,
        mean_us=report.mean_ns / 1e3,
        p50_us=report.p50_ns / 1e3,
        p99_us=report.p99_ns / 1e3,
        p999_us=report.p999_ns / 1e3,
        max_us=report.max_ns / 1e3,
        failed=report.failed,
        misread=report.misread,
        cpu_us_per_request={"client": 1e6 * report.cpu_s / report.operations_total, **per_request},
    )


def fill(program: Path, socket: Path, *, export: str = "") -> None:
    """Writes every page of the device once with random, stamped content, so that no server gains by zero pages."""
    command = [str(program), "--unix", str(socket), "--export", export, "--rw", "fill", "--depth", "4"]
    report, _ = _converse([*command, "--block", str(FILL_BLOCK_BYTES)], {})
    if report.error or report.failed:
        raise BenchmarkError(f"filling {socket}: error {report.error}, {report.failed} failed writes")


def _converse(command: list[str], roles: Mapping[str, tuple[int, ...]]) -> tuple[_Report, dict[str, float]]:
    """Runs nbd_load; its report, and the CPU seconds each role used while it ran."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin
        assert client.stdout
        if client.stdout.readline() != "ready\n":
            raise BenchmarkError(f"load did not connect: {shlex.join(command)}")
        before = {role: cpu_s(pids) for role, pids in roles.items()}
        client.stdin.write("go\n")
        client.stdin.flush()
        line = client.stdout.readline()
        used = {role: max(0.0, cpu_s(pids) - before[role]) for role, pids in roles.items()}
        client.stdin.close()
    return msgspec.json.decode(line, type=_Report), used


def run_fio(socket: Path, point: Point, *, export: str = "", seconds: float, server: str) -> SecondOpinion:
    """The same load by fio's NBD engine."""
    command = ["fio", "--name=opinion", "--ioengine=nbd", f"--uri=nbd+unix:///{export}?socket={socket}"]
    command += [f"--rw=rand{point.rw}", f"--bs={point.block_bytes}", f"--iodepth={point.depth}", "--thread"]
    command += [f"--numjobs={point.connections}", "--group_reporting", "--time_based", f"--runtime={seconds}"]
    command += ["--output-format=json", "--norandommap", "--randseed=1", "--refill_buffers=0", "--eta=never"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/tmp")
    if done.returncode:
        raise BenchmarkError(f"{server}: fio: {done.stderr.strip()[-300:]}")
    side = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][point.rw]
    latency = side["clat_ns"]["percentile"]
    return SecondOpinion(
        server=server,
        point=point,
        iops=side["iops"],
        p50_us=latency["50.000000"] / 1e3,
        p99_us=latency["99.000000"] / 1e3,
    )

"""``python -m benchmarks.hardening_cost``: what BIND_NOW, RELRO, checked copies and stack guards cost the engine.

Builds the package twice under build/, with them and without (FARSIDE_HARDENED=0), and runs a sandbox of each, by shared
memory and by TCP. Loads alternate between the builds, in another order each time. Figures: processor time a request of
the borrower and the donor, the median latency of a single read, and the time that the engine's module takes to load, in
processes of each build in turn. Each is the median of all repetitions, as hardened over plain.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.load import BUILD, BenchmarkError, build_program
from benchmarks.machine import this_command, this_commit, this_machine
from benchmarks.plan import PAGE_BYTES, alternate
from benchmarks.render import table
from benchmarks.result import Point, Rw, Sample
from benchmarks.sandbox import Layout
from benchmarks.server import Server, ours
from benchmarks.settle import fill_and_settle, measured
from benchmarks.summary import Summaries, summarise

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "hardening_cost.json"
DEVICE_BYTES = 256 << 20
HARDENED, PLAIN = "hardened", "plain"
TRANSPORTS = ("shm", "tcp")
POINTS = tuple(Point(rw=rw, block_bytes=PAGE_BYTES, depth=depth, connections=1) for depth in (1, 32) for rw in Rw)
LOADS = 31
MODULE = "farside/kmod_shim/engine/_ffi.abi3.so"
LOAD_TIME = """
import sys, time, _cffi_backend
from farside.kmod_shim import engine
begun_s = time.perf_counter()
from farside.kmod_shim.engine import _ffi
print(time.perf_counter() - begun_s, _ffi.__file__)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """One transport: processor time a request and latency of a single read, hardened over plain."""

    transport: str
    cpu: float
    cpu_least: float
    cpu_most: float
    read_p50: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, measures, writes the result file; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardening_cost", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=9, help="of each load; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=0.4, help="of each repetition; default: %(default)s")
    parser.add_argument("--output", metavar="FILE", default=str(RESULTS), help="default: %(default)s")
    options = parser.parse_args(arguments)
    if options.repetitions < 1:
        parser.error("--repetitions: at least one")
    machine, commit = this_machine(), this_commit()
    try:
        packages = {HARDENED: _built(HARDENED, "1"), PLAIN: _built(PLAIN, "0")}
        load_ms = _load_ms(packages)
        samples = _samples(packages, options.repetitions, options.seconds)
    except BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return error.exit_code
    summaries = summarise(samples)
    ratios = [ratio_of(summaries, transport) for transport in TRANSPORTS]
    _say(ratios, load_ms)
    told = {
        "command": this_command("benchmarks.hardening_cost"), "commit": commit, "machine": asdict(machine),
        "repetitions": options.repetitions, "seconds": options.seconds,
        "figures": {"load_ms": load_ms, **{one.transport: asdict(one) for one in ratios}},
        "loads": [
            {"server": name, "load": point.name, "p50_us": one.p50_us.median, "cpu_us": one.cpu_us_per_request}
            for (name, point), one in summaries.items()
        ],
    }  # fmt: skip
    Path(options.output).write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {options.output}")
    return 0


def ratio_of(summaries: Summaries, transport: str) -> Ratio:
    """What a transport's loads cost with the hardened build, over what they cost with the plain one."""

    def cpu_us(build: str, point: Point) -> float:
        parts = summaries[f"{build}-{transport}", point].cpu_us_per_request
        return sum(used for role, used in parts.items() if role != "client")

    times = [cpu_us(HARDENED, point) / cpu_us(PLAIN, point) for point in POINTS]
    single = next(point for point in POINTS if point.rw is Rw.READ and point.depth == 1)
    hardened, plain = (summaries[f"{build}-{transport}", single].p50_us.median for build in (HARDENED, PLAIN))
    return Ratio(
        transport=transport, cpu=statistics.geometric_mean(times), cpu_least=min(times), cpu_most=max(times),
        read_p50=hardened / plain,
    )  # fmt: skip


def _say(ratios: Sequence[Ratio], load_ms: Mapping[str, float]) -> None:
    rows = [
        (one.transport, f"{one.cpu:.3f}", f"{one.cpu_least:.3f} to {one.cpu_most:.3f}", f"{one.read_p50:.3f}")
        for one in ratios
    ]
    print(table(("transport", "processor time", "by load", "a single read"), rows))
    print(f"the module loads in {load_ms[HARDENED]:.2f} ms hardened, {load_ms[PLAIN]:.2f} ms plain")


def _built(name: str, is_hardened: str) -> Path:
    """The folder of a build of the package."""
    folder = BUILD / "hardening" / name
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", f"{folder}", "--build-lib", f"{folder}/lib"]
    env = os.environ | {"FARSIDE_HARDENED": is_hardened}
    done = subprocess.run([*command, "--force"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchmarkError(f"{shlex.join(command)}: {done.stderr.strip()[-400:]}")
    module = folder / "lib" / MODULE
    if is_bound_now(module) != (is_hardened == "1"):
        raise BenchmarkError(f"{module}: was not built {name}")
    return folder / "lib"


def is_bound_now(module: Path) -> bool:
    """Whether a module's functions are all looked up when it is loaded."""
    told = subprocess.run(["readelf", "-Wd", str(module)], capture_output=True, text=True, check=False)
    if told.returncode:
        raise BenchmarkError(f"readelf {module}: {told.stderr.strip()[-200:]}")
    return "BIND_NOW" in told.stdout


def _load_ms(packages: Mapping[str, Path]) -> Mapping[str, float]:
    found: dict[str, list[float]] = {name: [] for name in packages}
    for number in range(LOADS):
        for name in sorted(packages, reverse=number % 2 == 1):
            env = os.environ | {"PYTHONPATH": str(packages[name])}
            done = subprocess.run(
                [sys.executable, "-c", LOAD_TIME], env=env, capture_output=True, text=True, check=False
            )
            seconds, _, file = done.stdout.strip().partition(" ")
            if done.returncode or not file.startswith(str(packages[name])):
                raise BenchmarkError(f"the {name} build does not load: {file} {done.stderr.strip()[-300:]}")
            found[name].append(1e3 * float(seconds))
    return {name: statistics.median(times) for name, times in found.items()}


def _samples(packages: Mapping[str, Path], repetitions: int, seconds: float) -> list[Sample]:
    program = build_program("nbd_load")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="farside-hardening-")))
        servers: dict[str, Server] = {}
        for transport in TRANSPORTS:
            for name, package in packages.items():
                layout = Layout(name=f"{name}-{transport}", transport=transport, disk=False, package=package)
                server = stack.enter_context(ours(layout)(folder, DEVICE_BYTES))
                _check_build(server, package)
                fill_and_settle(server, program)
                servers[layout.name] = server
        turns = alternate(list(servers), POINTS, range(repetitions))
        return list(measured(program, servers, turns, seconds=seconds, warmup_s=0.05))


def _check_build(server: Server, package: Path) -> None:
    """Raises BenchmarkError where a process of the server has another build's module."""
    for role, pids in server.roles.items():
        for pid in pids:
            if str(package / MODULE) not in Path(f"/proc/{pid}/maps").read_text():
                raise BenchmarkError(f"{server.name}: its {role} does not run the module of {package}")


if __name__ == "__main__":
    sys.exit(main())

"""Deployments for the demo and for benchmarks: models made in place, measured, planned for, and served.

Models are small nets with seeded weights; each device is one core of this machine, at most two.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import psutil

from farside import admin
from farside.agent.serving.partition.cpu import CAPACITY_PCT
from farside.cli.demo.serving_load import Target
from farside.ending import end_process
from farside.errors import PeerError, Unavailable
from farside.scheduler.sharing.glet.catalog import SCHEDULERS
from farside.scheduler.sharing.glet.plan import Plan
from farside.scheduler.sharing.glet.rate import planned_rate
from farside.scheduler.sharing.glet.size import Sizes
from farside.serve.packages import GRPC_DOOR, SAMPLE_MODELS, check_packages
from farside.serve.sample_models import make_models
from farside.serve.status import ServeStatus
from farside.serve.table import Tables, read_tables

# Sizes of the models, and their shares of a device's work: some hundred requests a second fill two cores, so that what
# these cores do besides, client and front, stays small.
MODELS: Mapping[str, float] = {"conv": 1.4, "mlp": 1.0, "lstm": 1.8}
WORK: Mapping[str, float] = {"conv": 0.5, "mlp": 0.15, "lstm": 0.35}
SHAPES: Mapping[str, tuple[int, ...]] = {"conv": (3, 48, 48), "lstm": (24, 64), "null": (4,)}
MAX_BATCH = 8
PARTS = "40,60,100"
PROFILE_TRIES = 3  # a machine that is busy measures fewer cells in its minutes; what it has is kept
READY_S, END_S = 120.0, 30.0
# An SLO is so many times what the largest batch takes on a whole device, and no less than the second: processors that
# others use too give a process nothing for tens of milliseconds.
SLO_TIMES, SLO_MS_MIN = 4.0, 200.0
_SEARCH_STEPS = 12


def devices() -> tuple[int, ...]:
    """The cores that are devices here, two at most."""
    return tuple(sorted(os.sched_getaffinity(0)))[:2]


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody uses now."""
    with_sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in with_sockets]
    for one in with_sockets:
        one.close()
    return ports


def farside(*arguments: str) -> list[str]:
    """The command line of this very Farside."""
    return [sys.executable, "-m", "farside", *arguments]


def measure(
    folder: Path, *, minutes: float, models: Mapping[str, float] = MODELS, cores: Sequence[int] = (),
    parts: str = PARTS, capacity_pct: int = CAPACITY_PCT,
) -> Tables:  # fmt: skip
    """Makes models, of sizes by name, and measures them on a device of these cores; of one unless cores are given.

    ``capacity_pct``: so much of the cores is the models', as in serving.toml.

    Raises:
        Unavailable: A package is missing, or it could not be measured; the last line that was said.
    """
    check_packages((*GRPC_DOOR, *SAMPLE_MODELS))
    for name, size in models.items():
        make_models(folder, (name,), size=size)
    on = ["--cores", ",".join(map(str, cores or devices()[-1:]))]
    if capacity_pct != CAPACITY_PCT:
        on += ["--capacity", f"{capacity_pct}"]
    return profile(folder, on, minutes=minutes, parts=parts)


def profile(folder: Path, on: Sequence[str], *, minutes: float, parts: str) -> Tables:
    """Measures a folder's models; ``on``: the options that name the device.

    Raises:
        Unavailable: It could not be measured; the last line that was said.
    """
    command = farside(
        "serve", "profile", str(folder), "--out", str(folder / "profile"), *on, "--parts", parts,
        "--max-batch", str(MAX_BATCH), "--minutes", f"{minutes:g}",
    )  # fmt: skip
    tries = 0
    while True:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        tries += 1
        if told.returncode != 1 or tries == PROFILE_TRIES:
            break
    if told.returncode != 0:
        lines = (told.stderr or told.stdout).strip().splitlines()
        raise Unavailable(f"the models could not be measured: {lines[-1] if lines else 'nothing was said'}")
    return read_tables(folder / "profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Models with their SLOs and the rates that a plan serves at most, requests a second."""

    slo_ms: Mapping[str, float]
    most: Mapping[str, float]

    def rates(self, share: float) -> dict[str, float]:
        """A share of the most."""
        return {name: share * rate for name, rate in self.most.items()}


def mix_of(tables: Tables, *, work: Mapping[str, float] = WORK, slo_ms_min: float = SLO_MS_MIN, count: int = 0) -> Mix:
    """The largest rates that have a plan on ``count`` devices, 0: on all cores', in proportion to the models' ``work``.

    ``slo_ms_min``: no SLO is shorter.
    """
    slo_ms = {
        name: float(round(max(slo_ms_min, SLO_TIMES * model.latency_ms[100][-1])))
        for name, model in tables.models.items()
    }
    models = {name: replace(model, slo_ms=slo_ms[name]) for name, model in tables.models.items()}
    scheduler = SCHEDULERS["glet+int"]
    sizes = scheduler.sizes(models, tables.device)
    unit = {name: work[name] * 1000 * model.max_batch / model.latency_ms[100][-1] for name, model in models.items()}
    count = count or len(devices())
    low, high = 0.0, 2.0 * count
    for _ in range(_SEARCH_STEPS):
        middle = (low + high) / 2
        if isinstance(_planned(sizes, {name: middle * rate for name, rate in unit.items()}, count), Plan):
            low = middle
        else:
            high = middle
    return Mix(slo_ms=slo_ms, most={name: low * rate for name, rate in unit.items()})


def _planned(sizes: Sizes, rates: Mapping[str, float], count: int) -> object:
    wanted = {name: planned_rate(rate) for name, rate in rates.items()}
    return SCHEDULERS["glet+int"].plan(sizes, wanted, count)


@dataclass(slots=True)
class Running:
    """A deployment in a process of its own; ends with the body of its `with`.

    Args:
        folder: Has the models and their profile.
        mix: What is promised.
        rates: Expected at the start.
        extra: Lines more of serving.toml.
        options: Of `farside serve run`.
        cores: Of each device; those of `devices`, a device each, unless given.
        gpu_driver: What cuts this machine's GPUs, in place of cores; empty: cores.
    """

    folder: Path
    mix: Mix
    rates: Mapping[str, float]
    extra: Sequence[str] = ()
    options: Sequence[str] = ()
    cores: Sequence[Sequence[int]] = ()
    gpu_driver: str = ""
    http: int = 0
    grpc: int = 0
    _process: "subprocess.Popen[bytes] | None" = None
    _log: Path = field(default=Path())

    def __enter__(self) -> Self:
        self.http, self.grpc = free_ports(2)
        cores = [list(one) for one in self.cores or [(core,) for core in devices()]]
        on, suffix = f"cpu_devices = {cores}", ".onnx"
        if self.gpu_driver:
            on, suffix = f'device = "{self.gpu_driver}"', ".pt"
        lines = [
            f'http_listen = "tcp:127.0.0.1:{self.http}"', f'grpc_listen = "tcp:127.0.0.1:{self.grpc}"',
            'metrics_listen = ""', 'admin_socket = "s"', 'profile = "profile"', on, *self.extra,
        ]  # fmt: skip
        for name, slo_ms in self.mix.slo_ms.items():
            lines += [f"[model.{name}]", f'file = "{name}{suffix}"', f"slo_ms = {slo_ms}"]
            lines += [f"rate = {self.rates[name]}", f"max_batch = {MAX_BATCH}"]
        (self.folder / "serving.toml").write_text("\n".join(lines) + "\n")
        self._log = self.folder / "serve.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(farside("serve", "run", str(self.folder), *self.options), stderr=log)
        end_s = time.monotonic() + READY_S
        while time.monotonic() < end_s and self._process.poll() is None:
            try:
                if self.status().ready:
                    return self
            except PeerError:
                pass
            time.sleep(0.1)
        self.__exit__(None, None, None)
        lines = self._log.read_text().strip().splitlines()
        raise Unavailable(f"the deployment did not start: {lines[-1] if lines else 'nothing was said'}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            end_process(self._process, END_S)

    def status(self) -> ServeStatus:
        """What it says of itself."""
        told: Any = admin.call(self.folder / "s", "status")
        return msgspec.convert(told, ServeStatus)

    @property
    def pid(self) -> int:
        """Number of the front's process."""
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds of the front so far, without its executors."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def targets(self) -> dict[str, Target]:
        """Its models, for the client."""
        return {
            name: Target(model=name, input="input", shape=self.shape(name), slo_ms=slo_ms)
            for name, slo_ms in self.mix.slo_ms.items()
        }

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a row of a model's input, by its metadata."""
        if name in SHAPES:
            return SHAPES[name]
        return row_shape(self.http, name)


def row_shape(port: int, model: str) -> tuple[int, ...]:
    """The shape of a row of a model's first input, as a server of the Open Inference Protocol has it."""
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{model}") as answer:
        about = msgspec.json.decode(answer.read())
    return tuple(about["inputs"][0]["shape"][1:])

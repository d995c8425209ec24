"""The command `farside serve profile`: measures models on parts of this machine's device."""

import asyncio
import contextlib
import os

from farside.agent.serving.partition.catalog import DRIVERS, NOT_SERVED, ON_CORES, ON_GPU, find_driver
from farside.agent.serving.partition.cpu import CAPACITY_PCT, CpuDriver
from farside.agent.serving.partition.gpu import NAME as WHOLE_GPU
from farside.agent.serving.partition.green import FRAMEWORK as GREEN_FRAMEWORK
from farside.agent.serving.partition.green import NAME as GREEN
from farside.agent.serving.partition.nvidia import INSTANCE, gpu_named
from farside.agent.serving.partition.policy import Device, Driver
from farside.cli.serve import ProfileRequest
from farside.cli.terminal import standard_output
from farside.errors import ConfigError, Unavailable
from farside.serve.profile.cells import PARTS, WHOLE_PCT
from farside.serve.profile.profiler import ProfileTask, describe_folder, profile
from farside.serve.scenario import parse_slos

# What is measured is the device, and not what else runs on it.
_WEIGHT, _PRIORITY = 64, -20


def run(request: ProfileRequest) -> int:
    """Measures and prints; 1 if the tables that plans need are not complete.

    Raises:
        FarsideError: An option, a model or the folder is wrong, or the device has no parts.
    """
    parts = _numbers("--parts", request.parts, 1, WHOLE_PCT)
    cores = _numbers("--cores", request.cores, 0, 1 << 16) or tuple(sorted(os.sched_getaffinity(0)))
    if parts and WHOLE_PCT not in parts:
        raise ConfigError(f"--parts {request.parts}: does not have {WHOLE_PCT}", hint="add it: plans need the whole")
    if request.minutes is not None and not 0 < request.minutes <= 1440:
        raise ConfigError(f"--minutes {request.minutes:g}: is out of bounds", hint="give minutes up to a day")
    absent = set(cores) - os.sched_getaffinity(0)
    if absent:
        raise ConfigError(f"--cores {request.cores}: core {min(absent)} is not ours", hint="name cores of this machine")
    if request.device in NOT_SERVED:
        why, hint = NOT_SERVED[request.device]
        raise ConfigError(f"--device {request.device}: {why}", hint=hint)
    # Cores or a GPU that are named say what kind of device is meant, and an instance is not cut.
    kinds = (ON_CORES if request.cores else DRIVERS.keys()) & (ON_GPU if request.gpu else DRIVERS.keys())
    if request.gpu.startswith(INSTANCE):
        kinds &= {WHOLE_GPU}
    if not kinds:
        raise ConfigError(f"--cores {request.cores} and --gpu {request.gpu} exclude each other", hint="give one")
    name, driver = find_driver(request.device, kinds)
    if isinstance(driver, CpuDriver):
        driver = CpuDriver(request.capacity or CAPACITY_PCT, weight=_WEIGHT)
    elif request.capacity is not None:
        raise ConfigError(f"--capacity {request.capacity}: is for the driver cpu, not {name}", hint="take it out")
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    if name in ON_GPU and request.cores:
        raise ConfigError(f"--cores {request.cores}: the driver {name} has GPUs", hint="give --gpu")
    if name not in ON_GPU and request.gpu:
        raise ConfigError(f"--gpu {request.gpu}: the driver {name} has CPU cores", hint="give --cores")
    device = gpu_named(request.gpu or None, "--gpu") if name in ON_GPU else Device(cores=cores)
    parts = parts or (PARTS if driver.traits.can_cut else (WHOLE_PCT,))
    _check_parts(request.parts, parts, driver, device)
    return asyncio.run(_profile(request, name, driver, device, parts))


def _check_parts(given: str, parts: tuple[int, ...], driver: Driver, device: Device) -> None:
    for part_pct in parts:
        try:
            driver.check(device, part_pct)
        except Unavailable as error:
            if not given:
                raise
            is_cut = driver.traits.can_cut or part_pct == WHOLE_PCT
            hint = error.hint if is_cut else f"give --parts {WHOLE_PCT}, or another driver by --device"
            raise ConfigError(f"--parts {given}: {error.args[0]}", hint=hint) from error


async def _profile(request: ProfileRequest, name: str, driver: Driver, device: Device, parts: tuple[int, ...]) -> int:
    models = await describe_folder(request.models, request.max_batch)
    others = [model for model in models if model.framework != GREEN_FRAMEWORK]
    if name == GREEN and others:
        raise ConfigError(f"{others[0].path}: the driver green runs TorchScript files alone", hint="use mps")
    task = ProfileTask(
        models=models, driver_name=name, driver=driver, device=device, parts=parts,
        slo_ms=parse_slos(request.slo, [model.name for model in models]), out=request.out, minutes=request.minutes,
    )  # fmt: skip
    with standard_output():
        result = await profile(task, print)
        print(f"{result.cells} cells measured; {request.out} has {result.rows} rows.")
        if result.missing:
            print(f"{result.missing} cells that plans need are missing: the same command goes on.")
            return 1
        print(f"farside serve plan --table {request.out} --rates ... plans with it.")
    return 0


def _numbers(option: str, text: str, low: int, high: int) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(one) for one in text.split(",") if one.strip()}))
    except ValueError:
        found = (-1,)
    if any(not low <= one <= high for one in found):
        raise ConfigError(
            f"{option} {text}: is no list of numbers", hint=f"give numbers of {low} to {high} with commas"
        )
    return found

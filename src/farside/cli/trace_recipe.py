"""Recipe of `farside sim trace generate`: a named workload changed by options, or options alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from farside.cli.sim_trace import Wishes
from farside.errors import ConfigError
from farside.scheduler.settings import chosen, from_settings, suggestion
from farside.scheduler.sim.trace.job import Trace
from farside.scheduler.sim.workload.arrivals import ARRIVALS
from farside.scheduler.sim.workload.catalog import GPU_MIXES, NAMES, TIRESIAS_480, WORKLOADS, tiresias_480
from farside.scheduler.sim.workload.durations import KINDS, PRESETS, Service
from farside.scheduler.sim.workload.generate import GpuMix, VcMix, Workload, generate
from farside.units import parse_seconds


def make(name: str, wishes: Wishes) -> Trace:
    """The trace of a name, of options, or of both.

    Raises:
        ConfigError: An unknown name, options that contradict each other, or one that cannot be.
    """
    rng = np.random.default_rng(wishes.seed)
    changes = _changes(wishes)
    if name == TIRESIAS_480:
        if changes:
            raise ConfigError(f"{name} has the paper's values", hint="only --seed changes it")
        return tiresias_480(rng)
    if name:
        chosen(name, dict.fromkeys(NAMES), "workload")
    elif wishes.jobs is None:
        raise ConfigError(
            "neither a name nor --jobs is given", hint=f"name one of {', '.join(NAMES)}, or say --jobs 1000"
        )
    try:
        workload = replace(WORKLOADS.get(name, Workload()), **changes)
    except ValueError as error:
        raise ConfigError(str(error), hint="see farside sim trace generate --help") from error
    return generate(workload, rng)


def _changes(wishes: Wishes) -> dict[str, Any]:
    if wishes.load is not None and wishes.interval is not None:
        raise ConfigError("--load and --interval exclude each other", hint="each decides how fast jobs come")
    found: Mapping[str, Any] = {
        "jobs": wishes.jobs,
        "load": wishes.load,
        "cluster_gpus": wishes.gpus,
        "interval_s": None if wishes.interval is None else _interval_s(wishes.interval),
        "arrivals": None if wishes.arrivals is None else chosen(wishes.arrivals, ARRIVALS, "rhythm of arrivals"),
        "service": None if wishes.service is None else _service(wishes.service),
        "gpu_mix": None if wishes.gpu_mix is None else _gpu_mix(wishes.gpu_mix),
        "vc_mix": _vc_mix(wishes.vc or ()) or None,
        "users": wishes.users,
        "start_s": None if wishes.start is None else _start_s(wishes.start),
    }
    return {name: value for name, value in found.items() if value is not None}


def _interval_s(text: str) -> float:
    try:
        value = parse_seconds(text)
    except ValueError as error:
        raise ConfigError(f"--interval: {error}") from error
    if value <= 0:
        raise ConfigError(f"--interval: '{text}' is not above 0", hint="for example 30s")
    return value


def _service(text: str) -> Service:
    name, colon, told = text.partition(":")
    if name in PRESETS and not colon:
        return PRESETS[name]
    if name in PRESETS:
        raise ConfigError(f"--service: {name} has no settings", hint=f"set those of {', '.join(KINDS)}")
    if name not in KINDS:
        hint = suggestion(name, (*PRESETS, *KINDS), "those there are")
        raise ConfigError(f"--service: no distribution of durations '{name}'", hint=hint)
    settings: dict[str, str] = {}
    for one in filter(None, told.split(",")):
        key, equals, value = one.partition("=")
        if not equals:
            raise ConfigError(
                f"--service: '{one}' is not key=value", hint="for example lognormal:median_s=10min,sigma=2"
            )
        settings[key.strip()] = value.strip()
    return from_settings(KINDS[name], settings, of=f"--service {name}")


def _gpu_mix(text: str) -> GpuMix:
    if ":" not in text:
        return chosen(text, GPU_MIXES, "mix of GPU demands")
    mix = []
    for one in text.split(","):
        gpus, _, weight = one.partition(":")
        if not (gpus.strip().isascii() and gpus.strip().isdigit()):
            raise ConfigError(f"--gpu-mix: '{one}' is not GPUS:WEIGHT", hint="for example 1:70,4:20,8:10")
        mix.append((int(gpus), _weight("--gpu-mix", one, weight)))
    return tuple(mix)


def _vc_mix(texts: Sequence[str]) -> VcMix:
    split = [text.partition(":") for text in texts]
    if len({name for name, _, _ in split}) < len(split) or not all(name for name, _, _ in split):
        raise ConfigError("--vc: each needs a name of its own", hint="for example --vc vision:2 --vc speech:1")
    return tuple((name, _weight("--vc", name, weight) if colon else 1.0) for name, colon, weight in split)


def _weight(option: str, of: str, text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0 < weight < 1e12:
        raise ConfigError(f"{option}: '{of}' has no weight above 0", hint="give a number after the colon")
    return weight


def _start_s(text: str) -> float:
    try:
        value = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        value = -1.0
    if value < 0:
        raise ConfigError(f"--start: '{text}' is not a date from 1970 on", hint="for example 2024-01-01")
    return value

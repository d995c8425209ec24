"""The command `farside sim aggregation`: plays mixes of jobs, or a job log, on servers that aggregate for all jobs."""

import math
import random
import re
from pathlib import Path

import msgspec

from farside.cli.figure_table import figure_table, print_plain
from farside.cli.sim import AggregationRequest
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.scheduler.sharing.aggregation.cycle import Limits
from farside.scheduler.sharing.aggregation.pool import PoolSettings
from farside.scheduler.sim.aggregation.job_log import LogResult, aggregating, play
from farside.scheduler.sim.aggregation.mixes import VARIANTS, After, Summary, Watcher, decode_mixes, encode
from farside.scheduler.sim.output_files import check_apart, check_writable, written
from farside.scheduler.sim.trace.read import read_trace

# Of a job log alone: option by field.
_LOG_OPTIONS = {
    "seed": "--seed",
    "period_s": "--period-s",
    "cluster_max": "--cluster-max",
    "on_demand_min": "--on-demand-min",
    "servers_max": "--servers-max",
}
_JSON = re.compile(rb"\s*[\[{]")
# Of Philly's jobs, in the one job log that is JSON. Any other JSON is mixes, or should be.
_JOB_KEYS = re.compile(rb'"(jobid|submitted_time|attempts)"')
_HEAD_BYTES = 4096


def run(request: AggregationRequest, json_out: Path | None) -> None:
    """Reads, plays, writes and prints.

    Raises:
        FarsideError: The file can't be read or is neither, an option is out of bounds, or the result can't be written.
    """
    _check(request)
    check_apart({"--json": json_out}, {"the jobs": request.file})
    check_writable((json_out,))
    try:
        with request.file.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ConfigError(f"{request.file}: {error.strerror}", hint="name a file of mixes, or a job log") from error
    if _JSON.match(head) and not _JOB_KEYS.search(head):
        _run_mixes(request, json_out)
    else:
        _run_log(request, json_out)


def _check(request: AggregationRequest) -> None:
    if request.capacity is not None and not 0 < request.capacity < math.inf:
        raise ConfigError(f"--capacity {request.capacity:g}: is no number of cores", hint="give a number above 0")
    if not 0 < request.loss_limit < 1:
        raise ConfigError(f"--loss-limit {request.loss_limit:g}: is no share", hint="give a number above 0 and below 1")
    if request.period_s is not None and not 1 <= request.period_s < math.inf:
        raise ConfigError(f"--period-s {request.period_s:g}: is no period", hint="give 1 second or more")


def _run_mixes(request: AggregationRequest, json_out: Path | None) -> None:
    given = [option for field, option in _LOG_OPTIONS.items() if getattr(request, field) is not None]
    if given:
        raise ConfigError(f"{request.file}: {', '.join(given)} is for a job log", hint="leave it out for mixes")
    watcher, results = Watcher(request.loss_limit), list[list[After]]()
    for mix in decode_mixes(request.file.read_bytes(), str(request.file)):
        placement = VARIANTS[request.variant](request.capacity or 1.0, request.loss_limit)
        played = list(watcher.watch(mix, placement))
        if json_out is not None:
            results.append(played)
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(encode(results))
    with standard_output():
        _print_mixes(watcher.summary(), request.variant)


def _print_mixes(summary: Summary, variant: str) -> None:
    table = figure_table("figure", variant)
    table.add_row("mixes", f"{summary.mixes:,}")
    table.add_row("jobs of a mix, where it has the most", f"{summary.jobs:.1f}")
    table.add_row("Aggregators then", f"{summary.aggregators:.2f}")
    table.add_row("jobs then that lose the limit or more", f"{summary.jobs_at_limit:.2f}")
    table.add_row("mixes in which an Aggregator is overloaded", f"{100 * summary.overloaded_share:.1f} %")
    table.add_row("most work on an Aggregator", f"{100 * summary.most_load:.1f} % of its capacity")
    table.add_row("most that any job loses", f"{100 * summary.most_loss:.2f} %")
    table.add_row("jobs refused", f"{summary.refused:,}")
    print_plain(table)


def _run_log(request: AggregationRequest, json_out: Path | None) -> None:
    if request.variant == "printed":
        raise ConfigError(
            f"{request.file}: --variant printed is for mixes", hint="a job log is played by corrected or cycles"
        )
    if request.capacity is not None:
        raise ConfigError(
            f"{request.file}: --capacity is for mixes", hint="leave it out: a job log's servers are all alike"
        )
    trace = read_trace(request.file)
    jobs = aggregating(trace.jobs, random.Random(request.seed if request.seed is not None else 1))
    if not jobs:
        raise ConfigError(f"{request.file}: no job has more than one GPU", hint="only these aggregate")
    result = play(
        jobs,
        Limits(
            loss_limit=request.loss_limit,
            cycle_multiple=4 if request.variant == "cycles" else 1,
            period_tolerance=0.0,
        ),
        PoolSettings(
            cluster_max=request.cluster_max or PoolSettings().cluster_max,
            on_demand_min=request.on_demand_min or PoolSettings().on_demand_min,
            servers_max=request.servers_max,
        ),
        request.period_s or 300.0,
    )
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(_as_json(result))
    with standard_output():
        _print_log(result, request.variant)


def _as_json(result: LogResult) -> bytes:
    told = {
        "jobs": result.jobs,
        "refused": result.refused,
        "why_refused": result.why_refused or None,
        "waited": result.waited,
        "asked_core_s": result.asked_core_s,
        "held_core_s": result.held_core_s,
        "saved_share": result.saved_share,
        "most_loss": result.most_loss,
        "asked": list(result.asked),
        "held": list(result.held),
    }
    return msgspec.json.encode(told) + b"\n"


def _print_log(result: LogResult, variant: str) -> None:
    ratios, hour_s = result.ratios, 3600.0
    table = figure_table("figure", variant)
    table.add_row("jobs of more than one GPU, which aggregate", f"{result.jobs:,}")
    table.add_row("server hours that they would reserve", f"{result.asked_core_s / hour_s:,.0f}")
    table.add_row("Aggregator hours that were held", f"{result.held_core_s / hour_s:,.0f}")
    table.add_row("saved", f"{100 * result.saved_share:.1f} %")
    table.add_row("minutes with jobs", f"{len(ratios):,}")
    if ratios:
        below = sum(ratio < 1 for ratio in ratios) / len(ratios)
        table.add_row("of these with fewer Aggregators than servers", f"{100 * below:.1f} %")
        table.add_row("Aggregators by servers: median", f"{ratios[len(ratios) // 2]:.2f}")
        table.add_row("Aggregators by servers: most", f"{ratios[-1]:.2f}")
    table.add_row("most that any job loses", f"{100 * result.most_loss:.2f} %")
    table.add_row("jobs that waited for Aggregators", f"{result.waited:,}")
    table.add_row("jobs refused", f"{result.refused:,}")
    print_plain(table)
    print_plain(
        "Models, servers and iterations are drawn; scheduler/sim/aggregation/models.py has them. Each job begins when "
        "it was submitted."
    )
    if result.why_refused:
        print_plain(f"The first refused: {result.why_refused}")

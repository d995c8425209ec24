"""The command `farside sim colocation`: plays jobs that share machines, and jobs that do not, on a virtual cluster."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean

import msgspec

from farside.cli.figure_table import figure_table, print_plain
from farside.cli.sim import ColocationRequest
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.scheduler.settings import chosen, from_settings
from farside.scheduler.sim.colocation.cluster import GroupRecord, JobRecord, Outcome
from farside.scheduler.sim.colocation.compare import NAMES, believed, played, prepared
from farside.scheduler.sim.colocation.policies import Settings
from farside.scheduler.sim.colocation.table import ASSUMED, TableJob, drawn_jobs, read_table
from farside.scheduler.sim.output_files import check_apart, check_writable, written

SEEDS_MAX = 1000
_HOUR_S = 3600.0
_PAPER = ("the paper", "2.11", "1.60", "", "93 %", "83 %", "6.7", "27.2")


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one policy with one seed, as `--json` has it."""

    policy: str
    seed: int
    makespan_s: float
    jct_s: float
    busy_cpu: float
    busy_net: float
    groups: Sequence[GroupRecord]
    jobs: Sequence[JobRecord]


def run(request: ColocationRequest, json_out: Path | None) -> None:
    """Reads or draws, plays, writes and prints.

    Raises:
        FarsideError: An option or the table is wrong, or the result can't be written.
    """
    names = [chosen(name, dict.fromkeys(NAMES, name), "policy") for name in _parts(request.policy)]
    if not names or len(set(names)) != len(names):
        raise ConfigError(f"--policy {request.policy}", hint=f"name some of these, each once: {', '.join(NAMES)}")
    settings = from_settings(Settings, request.settings_by_name, of="colocation")
    seeds = _seeds(request.seeds)
    check_apart({"--json": json_out}, {"the jobs": request.table})
    check_writable((json_out,))
    table = _table(request.table) if request.table is not None else None
    outcomes = {name: list[Outcome]() for name in names}
    for seed in seeds:
        rng = random.Random(seed)
        jobs = prepared(table if table is not None else drawn_jobs(rng), settings, rng)
        taken = believed(jobs, settings, rng)
        for name in names:
            outcomes[name].append(played(name, jobs, request.machines, settings, taken, random.Random(seed)))
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(_as_json(outcomes, seeds, request.machines))
    with standard_output():
        _print(outcomes, is_drawn=table is None)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _seeds(text: str) -> list[int]:
    found = list[int]()
    for part in _parts(text):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        last = int(match[2] or match[1]) if match else -1
        if match is None or not int(match[1]) <= last < int(match[1]) + SEEDS_MAX:
            raise ConfigError(f"--seeds {text}: '{part}' is not understood", hint="give seeds such as 1-10 or 1,4,7")
        found += range(int(match[1]), last + 1)
    if not 0 < len(set(found)) == len(found) <= SEEDS_MAX:
        raise ConfigError(f"--seeds {text}", hint=f"give from 1 to {SEEDS_MAX} seeds, each once, such as 1-10")
    return found


def _table(path: Path) -> list[TableJob]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return read_table(file, str(path))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="name a CSV table of jobs") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not text in UTF-8", hint="name a CSV table of jobs") from error


def _as_json(outcomes: Mapping[str, Sequence[Outcome]], seeds: Sequence[int], machines: int) -> bytes:
    runs = [
        Run(
            policy=name, seed=seed, makespan_s=one.makespan_s, jct_s=one.jct_s, busy_cpu=one.busy_cpu,
            busy_net=one.busy_net, groups=one.groups, jobs=one.jobs,
        )
        for name, each in outcomes.items()
        for seed, one in zip(seeds, each, strict=True)
    ]  # fmt: skip
    return msgspec.json.encode({"machines": machines, "runs": runs}) + b"\n"


def _print(outcomes: Mapping[str, Sequence[Outcome]], *, is_drawn: bool) -> None:
    base_name, base = next(iter(outcomes.items()))
    table = figure_table("policy", "JCT", "makespan", "moves", "CPU", "network", "groups", "jobs")
    for name, each in outcomes.items():
        table.add_row(
            name,
            _gain(base, each, lambda one: one.jct_s),
            _gain(base, each, lambda one: one.makespan_s),
            f"{mean(one.moves for one in each):.2f}",
            f"{100 * mean(one.busy_cpu for one in each):.0f} %",
            f"{100 * mean(one.busy_net for one in each):.0f} %",
            f"{mean(one.group_count for one in each):.1f}",
            f"{mean(one.running for one in each):.1f}",
        )
    if is_drawn:
        table.add_row(*_PAPER)
    print_plain(table)
    print_plain(
        f"JCT and makespan: how many times shorter than with {base_name}, where {_times(base)}. Moves: of a job. "
        "CPU, network: share that is busy. Groups and jobs: at once. All on average."
    )
    for name, each in outcomes.items():
        if failed := sum(one.failed for one in each):
            left = "the other figures are without them" if any(map(_has_ended, each)) else "none ended"
            print_plain(f"{name}: {failed} jobs failed for want of memory; {left}.")
    if is_drawn:
        print_plain(ASSUMED)


def _has_ended(one: Outcome) -> bool:
    """Whether some job did: otherwise there are no times."""
    return len(one.jobs) > one.failed


def _times(base: Sequence[Outcome]) -> str:
    ended = list(filter(_has_ended, base))
    if not ended:
        return "no job ends"
    jct_s, makespan_s = mean(one.jct_s for one in ended), mean(one.makespan_s for one in ended)
    return f"a job takes {jct_s / _HOUR_S:.2f} h and all of them {makespan_s / _HOUR_S:.2f} h"


def _gain(base: Sequence[Outcome], ours: Sequence[Outcome], seconds: Callable[[Outcome], float]) -> str:
    """How many times shorter, of the seeds with which jobs end under both."""
    pairs = [(a, b) for a, b in zip(base, ours, strict=True) if _has_ended(a) and _has_ended(b)]
    return f"{mean(seconds(before) / seconds(now) for before, now in pairs):.2f}" if pairs else "-"

"""The command `farside sim replay`: compares a cluster's real history with its simulation."""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from farside.cli.terminal import standard_output
from farside.config import ManagerConfig, load_config
from farside.config.check import names_in
from farside.scheduler.configured_rules import idle_rules_of, partitions_of
from farside.scheduler.manager.compare_decisions import DecisionCount, decided_again
from farside.scheduler.manager.compare_simulation import (
    PAPER_APART_PCT,
    PAPER_SIMULATOR,
    PAPER_TESTBED,
    Fidelity,
    Recording,
    recording,
    simulated,
)
from farside.scheduler.manager.model.preemption_times import PreemptionTimes, as_settings
from farside.scheduler.manager.store.compact import archive_of, whole_log
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.view.view import Packlimit
from farside.scheduler.sim.learned_before import learned_before
from farside.scheduler.sim.trace.job import Trace
from farside.scheduler.sim.trace.write import write_trace
from farside.scheduler.slowdown import MeasuredSlowdown
from farside.units import format_count, format_moment, format_seconds

PAPER = (
    f"[tiresias §3.5.3.1] replays its testbed: over YARN-CS the mean JCT is {PAPER_TESTBED:g} times better there, "
    f"{PAPER_SIMULATOR:g} times in its simulator, {PAPER_APART_PCT:.1f} % apart"
)

IDLE_GPUS = (
    "idle_gpus is not simulated: no log has the load of GPUs over time, so jobs that it ended run as long as they did"
)


def replay(config: ManagerConfig, only: Sequence[str] | None = None) -> tuple[Recording, Fidelity]:
    """Reads the log of a manager's store, and simulates its jobs, or ``only`` some, by the manager's own rules.

    Raises:
        FarsideError: The store can't be read, or no job has run to its end.
    """
    before = learned_before(config)
    with closing(EventStore(config.store_url)) as store:
        entries = whole_log(store, archive_of(config.store_url, config.archive_dir))
        found = recording(entries, only, partitions_of(config))
    return found, simulated(found, before.rules, before.times)


def replay_decisions(config: ManagerConfig) -> DecisionCount:
    """Reads the log of a manager's store, and makes its cycle's decisions again, each on the state that it was made on.

    Raises:
        FarsideError: The store can't be read.
    """
    before = learned_before(config)
    with closing(EventStore(config.store_url)) as store:
        entries = whole_log(store, archive_of(config.store_url, config.archive_dir))
        return decided_again(
            entries, before.rules, before.times, partitions=partitions_of(config),
            set_aside=frozenset(names_in(config.colocation_nodes)),
        )  # fmt: skip


def run(configs: Sequence[Path], overrides: Mapping[str, object], *, trace: Path | None, as_json: bool) -> None:
    """Prints it, and writes the trace where one was asked for."""
    config = load_config(ManagerConfig, configs, overrides)
    found, fidelity = replay(config)
    decided = replay_decisions(config)
    if idle_rules_of(config):
        Console(stderr=True, soft_wrap=True).print(IDLE_GPUS, highlight=False, markup=False)
    if trace is not None:
        # A trace knows one time of a job, when it comes.
        jobs = (replace(one.traced, job=replace(one.traced.job, submit_s=one.traced.comes_s)) for one in found.jobs)
        write_trace(Trace(jobs=tuple(jobs)), trace)
    with standard_output():
        if as_json:
            print(json.dumps(_json(config.policy, found, fidelity, decided), indent=2))
        else:
            _print(Console(soft_wrap=True), config.policy, found, fidelity, decided)


def fidelity_table(fidelity: Fidelity) -> Table:
    """What really happened and what was predicted, side by side."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "really", "predicted", "off by"):
        table.add_column(column, justify="right" if column else "left")
    really, said = sorted(job.jct_s for job in fidelity.jobs), sorted(job.predicted_s for job in fidelity.jobs)
    for name, share in (("median JCT", 0.5), ("95th percentile", 0.95)):
        at = min(len(really) - 1, int(share * len(really)))
        _row(table, name, really[at], said[at])
    _row(table, "mean JCT", fidelity.mean_jct_s, fidelity.predicted_mean_s)
    table.add_row("preemptions", str(fidelity.preemptions), str(fidelity.predicted_preemptions), "")
    return table


def _row(table: Table, name: str, really_s: float, predicted_s: float) -> None:
    off = f"{100 * (predicted_s - really_s) / really_s:+.1f} %" if really_s else ""
    table.add_row(name, f"{really_s:.2f} s", f"{predicted_s:.2f} s", off)


def measured(preemption_times: PreemptionTimes) -> str:
    """How long pauses and resumes took, in a line; empty where there were none."""
    parts = []
    for name, steps in (("pause", preemption_times.pauses), ("resume", preemption_times.resumes)):
        count = sum(times.count for times in steps.values())
        if count:
            mean_s = sum(times.total_s for times in steps.values()) / count
            parts.append(f"{format_count(count, name)} of {format_seconds(mean_s)} on average")
    return ", ".join(parts)


def _print(console: Console, policy: str, found: Recording, fidelity: Fidelity, decided: DecisionCount) -> None:
    gpus = sum(node.gpus for node in found.nodes)
    first, last = found.jobs[0].traced.comes_s, max(one.end_s for one in found.jobs)
    nodes = f"{format_count(len(found.nodes), 'node')} with {format_count(gpus, 'GPU')}"
    console.print(
        f"{format_count(len(found.jobs), 'job')} under {policy} on {nodes}, from {format_moment(first)} to "
        f"{format_moment(last)}",
        highlight=False,
    )
    for why, count in found.left_out.items():
        console.print(f"left out: {format_count(count, 'job')}, {why}", highlight=False)
    told = measured(found.preemption_times)
    if told:
        words = " ".join(f"--set {name}={value}" for name, value in as_settings(found.preemption_times).items())
        console.print(f"measured: {told}; for `farside sim run`: {words}", highlight=False)
    if lost := _lost_words(found.slowdown):
        console.print(lost, highlight=False)
    for limit in fidelity.packlimits:
        console.print(_limit_words(limit), highlight=False, markup=False)
    console.print(fidelity_table(fidelity))
    console.print(f"half of the jobs are predicted within {100 * fidelity.median_error:.1f} %", highlight=False)
    if (order := fidelity.order).pairs:
        waited = f"of {format_count(order.pairs, 'pair')} of jobs that waited together"
        console.print(f"{waited}, {100 * order.error:.1f} % started in the other order", highlight=False)
    if decided.decisions:
        made = f"of {format_count(decided.decisions, 'decision')}, each made again on the state of that time"
        elsewhere = format_count(decided.elsewhere, "start")
        console.print(f"{made}, {100 * decided.error:.1f} % differ, and {elsewhere} on other nodes", highlight=False)
    console.print(PAPER, highlight=False, markup=False)


def _lost_words(slowdown: MeasuredSlowdown) -> str:
    """What spread starts lost, by which the simulation slows jobs, in a line; empty: it slows none."""
    kinds = (("over", slowdown.over), ("not over", slowdown.under))
    parts = [
        f"{one.factor:.2f} times as long as consolidated for models {side} {slowdown.packlimit:.1%} "
        f"({format_count(one.starts, 'start')})"
        for side, one in kinds
        if one is not None
    ]
    return f"measured: an iteration of spread starts took {', '.join(parts)}" if parts else ""


def _limit_words(limit: Packlimit) -> str:
    """The limit that the placement by skew came to, and from what, in a line."""
    where = f" in partition {limit.partition}" if limit.partition else ""
    seen = f"{format_count(limit.measured_starts, 'measured start')}, {limit.spread_starts} of them spread"
    if limit.since_s is None:
        return f"placement by skew{where}: its limit stays at {limit.packlimit:.1%}, as configured; {seen}"
    since = f"learned at {format_moment(limit.since_s)} from {format_count(limit.learned_from, 'start')}"
    return f"placement by skew{where}: its limit comes to {limit.packlimit:.1%}, {since}; {seen}"


def _json(policy: str, found: Recording, fidelity: Fidelity, decided: DecisionCount) -> dict[str, Any]:
    return {
        "policy": policy,
        "jobs": [
            {"id": job.job_id, "gpus": job.gpus, "jct_s": job.jct_s, "predicted_s": job.predicted_s}
            for job in fidelity.jobs
        ],
        "mean_jct_s": fidelity.mean_jct_s,
        "predicted_mean_s": fidelity.predicted_mean_s,
        "mean_error": fidelity.mean_error,
        "median_error": fidelity.median_error,
        "pairs_that_waited": fidelity.order.pairs,
        "pairs_that_swapped": fidelity.order.swapped,
        "decisions": decided.decisions,
        "decisions_that_differ": decided.different,
        "decisions_elsewhere": decided.elsewhere,
        "preemptions": fidelity.preemptions,
        "predicted_preemptions": fidelity.predicted_preemptions,
        "packlimits": msgspec.to_builtins(fidelity.packlimits),
        "slowdown": msgspec.to_builtins(found.slowdown),
        "left_out": dict(found.left_out),
        "settings": dict(as_settings(found.preemption_times)),
        "paper": {"testbed": PAPER_TESTBED, "simulator": PAPER_SIMULATOR, "apart_pct": PAPER_APART_PCT},
    }

"""The command `farside sim aggregation`: plays mixes of jobs on servers that aggregate for all of them."""

import math
from pathlib import Path

from farside.cli.figure_table import figure_table, print_plain
from farside.cli.terminal import standard_output
from farside.errors import ConfigError
from farside.scheduler.sim.aggregation.mixes import VARIANTS, After, Summary, Watcher, decode_mixes, encode
from farside.scheduler.sim.output_files import check_apart, check_writable, written


def run(mixes: Path, *, variant: str, capacity: float, loss_limit: float, json_out: Path | None) -> None:
    """Reads, plays, writes and prints.

    Raises:
        FarsideError: The mixes can't be read or are none, an option is out of bounds, or the result can't be written.
    """
    if not 0 < capacity < math.inf:
        raise ConfigError(f"--capacity {capacity:g}: is no number of cores", hint="give a number above 0")
    if not 0 < loss_limit < 1:
        raise ConfigError(f"--loss-limit {loss_limit:g}: is no share", hint="give a number above 0 and below 1")
    check_apart({"--json": json_out}, {"the mixes": mixes})
    check_writable((json_out,))
    try:
        text = mixes.read_bytes()
    except OSError as error:
        raise ConfigError(f"{mixes}: {error.strerror}", hint="name a file of mixes") from error
    watcher, results = Watcher(loss_limit), list[list[After]]()
    for mix in decode_mixes(text, str(mixes)):
        played = list(watcher.watch(mix, VARIANTS[variant](capacity, loss_limit)))
        if json_out is not None:
            results.append(played)
    if json_out is not None:
        with written(json_out) as place:
            place.write_bytes(encode(results))
    with standard_output():
        _print(watcher.summary(), variant)


def _print(summary: Summary, variant: str) -> None:
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

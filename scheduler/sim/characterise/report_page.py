"""HTML page of a study: implications, what-ifs, and the data behind them."""

import math
from collections.abc import Iterable

from farside.scheduler.sim.characterise.study import Stretch, Study
from farside.scheduler.sim.characterise.survey import STATUSES
from farside.scheduler.sim.characterise.what_if import Group
from farside.scheduler.sim.result.report_html import render
from farside.units import format_moment, format_seconds


def page(found: Study, pictures: Iterable[object]) -> str:
    """HTML of the whole page, which needs nothing else. Each of ``pictures`` is a `report.Shown`."""
    values = {
        "title": f"Job log {found.survey.log.path}",
        "facts": facts(found),
        "verdicts": [(one.number, one.claim, answer(one.holds), one.found, one.bar) for one in found.verdicts],
        "stretch": stretch_told(found.stretch) if found.stretch is not None else "",
        "what_ifs": found.what_ifs,
        "omitted": found.omitted,
        "pictures": pictures,
    }
    return render("study.html", values, duration=format_seconds, group_row=_group_row)


def facts(found: Study) -> list[str]:
    """What was read, what it lacks, and what was made up for that; a line each."""
    survey = found.survey
    log, gpu = survey.log, survey.gpu
    span = f"{format_moment(float(log.submit_s[0]))} to {format_moment(float(log.submit_s[-1]))}"
    parts = f"{len(log.users):,} users and {len(log.vcs):,} virtual clusters"
    lines = [f"{len(log):,} jobs ({len(gpu):,} with GPUs) of {parts}, submitted {span}; read as {log.fmt}."]
    if survey.sizes is not None:
        guess = " (nobody told: the most that was in use at once)" if survey.sizes.is_guess else ""
        lines.append(f"The cluster has {survey.sizes.gpus:,} GPUs{guess}.")
    if survey.lacks:
        lines.append(f"The log lacks {', '.join(sorted(survey.lacks))}: what needs them is left out.")
    if STATUSES not in survey.lacks and min(survey.known_jobs, survey.known_gpu_time) < 1:
        known = f"{survey.known_jobs:.1%} of GPU jobs and {survey.known_gpu_time:.1%} of their GPU time"
        lines.append(f"Final statuses are known of {known}; shares of statuses are of these.")
    if survey.is_replayed:
        lines.append(
            "Start times are the simulator's, first come first served: waits and use are what they would have been."
        )
    if survey.unsized:
        shown = ", ".join(survey.unsized[:5]) + (" and others" if len(survey.unsized) > 5 else "")
        lines.append(f"Nobody says how many nodes {shown} have: their jobs count, what they use does not.")
    if survey.left_out:
        lines.append(f"{survey.left_out:,} GPU jobs fit nowhere on this cluster and are left out.")
    lines += [f"{count:,} rows {note}." for count, note in log.notes]
    if log.skipped:
        lines.append(f"{log.skipped:,} bad rows were skipped.")
    return lines


def answer(holds: bool | None) -> str:
    """A verdict in a word or two."""
    return "cannot tell" if holds is None else "holds" if holds else "does not hold"


def _group_row(one: Group) -> tuple[str, ...]:
    return (one.name, f"{one.jobs:,}", seconds(one.before_s), seconds(one.after_s), change(one.before_s, one.after_s))


def stretch_told(stretch: Stretch) -> str:
    """Which jobs the what-ifs are about, and how near the simulator is to what happened."""
    which = (
        f"All {stretch.jobs:,} GPU jobs"
        if stretch.jobs == stretch.of
        else (f"The busiest {stretch.jobs:,} of {stretch.of:,} GPU jobs in a row")
    )
    logged = "" if math.isnan(stretch.logged_wait_s) else f"; the log says {seconds(stretch.logged_wait_s)}"
    out = f" {stretch.left_out:,} that fit nowhere are left out." if stretch.left_out else ""
    when = f"{format_moment(stretch.first_s)} to {format_moment(stretch.last_s)}"
    return (
        f"{which}, {when}, simulated on an empty cluster, strictly first come first served: they wait "
        f"{seconds(stretch.mean_wait_s)} on average{logged}. Each change is compared with that.{out}"
    )


def seconds(value: float) -> str:
    """A duration, or a stroke where there is none."""
    return "-" if math.isnan(value) else format_seconds(value)


def change(before_s: float, after_s: float) -> str:
    """Change of a wait in percent; nothing if no job waited, as such a percentage is noise."""
    if math.isnan(before_s) or math.isnan(after_s) or before_s < 1:
        return "-"
    return f"{after_s / before_s - 1:+.0%}"

"""Report of a study: an HTML page with verdicts, what-ifs and Figures 1 to 9, and JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from farside.scheduler.sim.characterise import report_plot
from farside.scheduler.sim.characterise.report_page import page
from farside.scheduler.sim.characterise.study import Study
from farside.scheduler.sim.characterise.survey import CALENDAR, CPU_JOBS, SIZES, STARTS, STATUSES, USERS, VCS, Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A figure of the page: its picture, or why it has none."""

    title: str
    told: str
    svg: str
    why_not: str


# Title, what is seen, what the log must have, and the picture; "" where the survey has nothing to draw after all.
_FIGURES: tuple[tuple[str, str, tuple[str, ...], Callable[[Survey], str]], ...] = (
    (
        "Figure 1: duration, and GPU time by final status",
        "How long GPU jobs run; how the jobs ended whose GPU time it was.",
        (),
        report_plot.durations_and_time,
    ),
    (
        "Figure 2: a day",
        "Left: GPUs in use. Right: GPU jobs submitted. Means of whole days, by hour.",
        (CALENDAR,),
        lambda found: report_plot.day(found.diurnal) if found.diurnal else "",
    ),
    (
        "Figure 3: month by month",
        "Above: GPU jobs submitted. Below: what they used of all GPUs. The outer months may be parts.",
        (CALENDAR,),
        lambda found: report_plot.by_month(found.months),
    ),
    (
        "Figure 4: virtual clusters",
        "Above: GPUs in use minute by minute, between the quartiles, with the mean GPUs of its jobs on top. "
        "Below: how long its jobs wait and run.",
        (VCS, STARTS, SIZES),
        lambda found: report_plot.boxes(found.tenants) if found.tenants else "",
    ),
    ("Figure 5: GPU and CPU jobs", "How long they run.", (CPU_JOBS,), report_plot.gpu_and_cpu),
    (
        "Figure 6: GPUs asked for",
        "What jobs up to a size are of all jobs, and of all GPU time.",
        (),
        report_plot.demands,
    ),
    (
        "Figure 7: final statuses",
        "Left: GPU and CPU jobs. Right: GPU jobs by the GPUs that they asked for. Of jobs whose status is known.",
        (STATUSES,),
        report_plot.final_statuses,
    ),
    (
        "Figure 8: users' GPU and CPU time",
        "What part of all time the users have who use most.",
        (USERS,),
        lambda found: (
            report_plot.users_time(found.gpu_time_by_user, found.cpu_time_by_user) if found.gpu_time_by_user else ""
        ),
    ),
    (
        "Figure 9: users' waits and completions",
        "Left: what part of all waiting the users bear who wait most. Right: how many of their jobs complete.",
        (USERS,),
        report_plot.users_waits,
    ),
)


def figures(found: Survey) -> tuple[Shown, ...]:
    """Nine figures, each drawn if the log allows."""
    return tuple(_shown(found, *figure) for figure in _FIGURES)


def _shown(found: Survey, title: str, told: str, needs: tuple[str, ...], draw: Callable[[Survey], str]) -> Shown:
    missing = [name for name in needs if name in found.lacks]
    if missing:
        return Shown(title=title, told=told, svg="", why_not=f"The log lacks {' and '.join(missing)}.")
    picture = draw(found)
    why_not = "" if picture else "There is only one virtual cluster, or one pool of nodes."
    return Shown(title=title, told=told, svg=picture, why_not=why_not)


def write_page(path: Path, found: Study) -> None:
    """Write the page."""
    path.write_text(page(found, figures(found.survey)), encoding="utf-8")


def write_json(path: Path, found: Study) -> None:
    """Write verdicts and what-ifs as JSON."""
    told = {
        "log": found.survey.log.path,
        "format": found.survey.log.fmt,
        "jobs": len(found.survey.log),
        "gpu_jobs": len(found.survey.gpu),
        "lacks": sorted(found.survey.lacks),
        "known_statuses": {"gpu_jobs": found.survey.known_jobs, "gpu_time": found.survey.known_gpu_time},
        "is_replayed": found.survey.is_replayed,
        "implications": found.verdicts,
        "stretch": found.stretch,
        "what_ifs": found.what_ifs,
        "omitted": [{"implication": number, "title": title, "why": why} for number, title, why in found.omitted],
    }
    path.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=2) + b"\n")

"""Helios's Figures 1 to 9 for any cluster, as SVG. [helios §3]"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator, PercentFormatter

from farside.scheduler.sim.characterise.busy_times import Diurnal, Month
from farside.scheduler.sim.characterise.jobs import Curve, Ends
from farside.scheduler.sim.characterise.survey import Survey
from farside.scheduler.sim.characterise.tenants import Tenant
from farside.scheduler.sim.characterise.users import Concentration
from farside.scheduler.sim.result.report_svg import COLOURS, DASHES, new_axes, new_figure, style, svg

_HEIGHT_IN = 3.4
_END_NAMES = ("completed", "canceled", "failed")
_END_COLOURS = (COLOURS[2], COLOURS[5], COLOURS[7])


def durations_and_time(found: Survey) -> str:
    """Figure 1: run times of GPU jobs, and GPU time by final status."""
    with style("f1"):
        figure = new_figure(_HEIGHT_IN)
        _cdf(new_axes(figure, 1, 0, 2), [("GPU jobs", found.durations)])
        axes = new_axes(figure, 1, 1, 2)
        if found.gpu_time_ends is None:
            _say_unknown(axes, "no final statuses")
        else:
            axes.bar(_END_NAMES, found.gpu_time_ends, color=_END_COLOURS, width=0.6)
            axes.set(ylabel="share of GPU time", ylim=(0, 1))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return svg(figure)


def day(found: Diurnal) -> str:
    """Figure 2: use and submissions by hour of day."""
    hours = np.arange(25)
    with style("f2"):
        figure = new_figure(_HEIGHT_IN)
        axes = new_axes(figure, 1, 0, 2)
        if found.utilisation is None:
            _say_unknown(axes, "use is not known")
        else:
            axes.stairs(found.utilisation, hours, color=COLOURS[0], linewidth=1.6, baseline=None)
            axes.set(xlabel="hour of day", ylabel="GPUs in use", ylim=(0, max(1.0, float(found.utilisation.max()))))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes = new_axes(figure, 1, 1, 2)
        axes.stairs(found.submissions, hours, color=COLOURS[1], linewidth=1.6, baseline=None)
        axes.set(xlabel="hour of day", ylabel="GPU jobs submitted an hour", ylim=(0, None))
        for one in figure.axes:
            one.set_xlim(0, 24)
            one.set_xticks(range(0, 25, 4))
        return svg(figure)


def by_month(found: Sequence[Month]) -> str:
    """Figure 3: submissions by month, and what single- and multi-GPU jobs used."""
    at = np.arange(len(found))
    names = [month.name for month in found]
    with style("f3"):
        figure = new_figure(5.2)
        axes = new_axes(figure, 2, 0)
        axes.bar(at - 0.19, [month.single for month in found], 0.36, color=COLOURS[0], label="1 GPU")
        axes.bar(at + 0.19, [month.multi for month in found], 0.36, color=COLOURS[1], label="several")
        axes.set(ylabel="GPU jobs submitted")
        axes.set_xticks(at, names)
        figure.legend(loc="outside upper right", ncols=2, fontsize=9)
        axes = new_axes(figure, 2, 1)
        if found[0].utilisation is None:
            _say_unknown(axes, "use is not known")
        else:
            single = np.array([month.use_single or 0.0 for month in found])
            multi = np.array([month.use_multi or 0.0 for month in found])
            axes.bar(at, multi, 0.5, color=COLOURS[1])
            axes.bar(at, single, 0.5, bottom=multi, color=COLOURS[0])
            axes.set(ylabel="GPUs in use", ylim=(0, max(1.0, float((single + multi).max()))))
            axes.set_xticks(at, names)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return svg(figure)


def boxes(found: Sequence[Tenant]) -> str:
    """Figure 4: use of each virtual cluster by minute, and how long its jobs wait and run."""
    at = np.arange(len(found))
    with style("f4"):
        figure = new_figure(5.6)
        axes = new_axes(figure, 2, 0)
        stats: list[dict[str, Any]] = [
            dict(zip(("whislo", "q1", "med", "q3", "whishi"), one.box, strict=True)) for one in found
        ]
        axes.bxp(
            stats, positions=at, widths=0.5, showfliers=False, patch_artist=True,
            boxprops={"facecolor": COLOURS[0], "alpha": 0.6}, medianprops={"color": COLOURS[7], "linewidth": 1.6},
        )  # fmt: skip
        for place, one in enumerate(found):
            axes.annotate(f"{one.mean_gpus:.1f}", (place, 1.03), ha="center", fontsize=8)
        axes.set(ylabel="GPUs in use, by minute", ylim=(0, 1.12))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xticks(at, [f"{one.name}\n{one.gpus} GPUs" for one in found], fontsize=8)
        axes = new_axes(figure, 2, 1)
        waiting, running = np.nan_to_num([(one.mean_wait_s, one.mean_duration_s) for one in found]).T / 3600
        axes.bar(at - 0.19, waiting, 0.36, color=COLOURS[1], label="waiting")
        axes.bar(at + 0.19, running, 0.36, color=COLOURS[0], label="running")
        axes.set(ylabel="hours, mean of GPU jobs")
        axes.set_xticks(at, [one.name for one in found], fontsize=8)
        figure.legend(loc="outside upper right", ncols=2, fontsize=9)
        return svg(figure)


def gpu_and_cpu(found: Survey) -> str:
    """Figure 5: how long GPU jobs and CPU jobs run."""
    with style("f5"):
        figure = new_figure(_HEIGHT_IN)
        curves = [("GPU jobs", found.durations)]
        if found.cpu_durations is not None:
            curves.append(("CPU jobs", found.cpu_durations))
        _cdf(new_axes(figure), curves)
        return svg(figure)


def demands(found: Survey) -> str:
    """Figure 6: GPUs asked for, by jobs and by GPU time."""
    demand = found.demand
    with style("f6"):
        figure = new_figure(_HEIGHT_IN)
        axes = new_axes(figure)
        for at, (label, share) in enumerate(
            (("of jobs", demand.share_of_jobs), ("of GPU time", demand.share_of_gpu_time))
        ):
            axes.step(demand.gpus, share, where="post", color=COLOURS[at], label=label, linewidth=1.6, marker=".")
        axes.set(xlabel="GPUs asked for, at most", ylabel="share", ylim=(0, 1.02))
        axes.set_xscale("log", base=2)
        powers = [2.0**power for power in range(int(np.log2(demand.gpus[-1])) + 1)]
        axes.set_xticks(powers, [f"{power:.0f}" for power in powers])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.legend(loc="best", fontsize=9)
        return svg(figure)


def final_statuses(found: Survey) -> str:
    """Figure 7: how GPU and CPU jobs end, and how jobs of each demand do."""
    with style("f7"):
        figure = new_figure(_HEIGHT_IN)
        kinds = [("GPU jobs", found.ends), ("CPU jobs", found.cpu_ends)]
        _stacks(new_axes(figure, 1, 0, 2), [(name, ends) for name, ends in kinds if ends is not None])
        axes = new_axes(figure, 1, 1, 2)
        _stacks(axes, list(found.ends_by_demand.items()))
        axes.set_xlabel("GPUs asked for")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside upper right", ncols=3, fontsize=9)
        return svg(figure)


def users_time(gpu: Concentration, cpu: Concentration | None) -> str:
    """Figure 8: share of GPU and CPU time of the largest users."""
    with style("f8"):
        figure = new_figure(_HEIGHT_IN)
        curves = [("GPU time", gpu)] + ([("CPU time", cpu)] if cpu is not None else [])
        _concentrations(new_axes(figure), curves)
        return svg(figure)


def users_waits(found: Survey) -> str:
    """Figure 9: share of waiting by user, and completion rates of users' jobs."""
    with style("f9"):
        figure = new_figure(_HEIGHT_IN)
        axes = new_axes(figure, 1, 0, 2)
        if found.waits_by_user is None:
            _say_unknown(axes, "waits are not known, or nobody waited")
        else:
            _concentrations(axes, [("waiting for GPUs", found.waits_by_user)])
        axes = new_axes(figure, 1, 1, 2)
        rates = found.completion_rates
        if not len(rates):
            _say_unknown(axes, "no final statuses")
        else:
            bins = np.linspace(0, 1, 21).tolist()
            axes.hist(rates, bins=bins, color=COLOURS[2], weights=np.full(len(rates), 1 / len(rates)))
            axes.set(xlabel="share of a user's GPU jobs that completed", ylabel="share of users", xlim=(0, 1))
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        return svg(figure)


# ---------------------------------------------------------------- kinds of pictures


def _cdf(axes: Axes, curves: Sequence[tuple[str, Curve]]) -> None:
    for at, (label, curve) in enumerate(curves):
        value = np.maximum(curve.value, 1.0)
        axes.plot(value, curve.share, color=COLOURS[at], linestyle=DASHES[at], label=label, linewidth=1.6)
    axes.set(xscale="log", xlabel="duration", ylabel="share of jobs", ylim=(0, 1))
    axes.set_xticks([1, 60, 3600, 86400, 7 * 86400], ["1 s", "1 min", "1 h", "1 day", "1 week"])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if len(curves) > 1:
        axes.legend(loc="best", fontsize=9)


def _stacks(axes: Axes, bars: Sequence[tuple[str, Ends]]) -> None:
    names = [name for name, _ in bars]
    below = np.zeros(len(bars))
    for at, label in enumerate(_END_NAMES):
        share = np.array([ends[at] for _, ends in bars])
        axes.bar(names, share, 0.6, bottom=below, color=_END_COLOURS[at], label=label)
        below += share
    axes.set(ylabel="share of jobs", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _concentrations(axes: Axes, curves: Sequence[tuple[str, Concentration]]) -> None:
    for at, (label, curve) in enumerate(curves):
        users = np.arange(len(curve.share) + 1) / len(curve.share)
        share = np.concatenate(([0.0], curve.share))
        axes.plot(users, share, color=COLOURS[at], linestyle=DASHES[at], label=label, linewidth=1.6)
    axes.set(xlabel="users, those with most first", ylabel="share of all", xlim=(0, 1), ylim=(0, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(loc="lower right", fontsize=9)


def _say_unknown(axes: Axes, why: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes)

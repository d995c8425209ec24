"""The demo's live scene: a day of a log under QSSF with lending, in a real manager, beside its simulation."""

import os
from dataclasses import dataclass
from pathlib import Path

from farside.cli.demo.live.compare import LiveCompared, compare
from farside.cli.demo.live.day import LiveDay, day_of, generated_log
from farside.cli.demo.live.rig import Played, Tell, play_day
from farside.cli.demo.live.senders import GRACE_S
from farside.cli.demo.show import Show
from farside.scheduler.manager.model.check_log import violations
from farside.scheduler.sim.learned_before import has_lightgbm
from farside.scheduler.sim.trace.read import read_trace
from farside.units import format_count

ERROR_MAX = 0.05
"""How far the average JCT may be from the simulated one, and how many pairs of jobs may swap."""
LATE_MAX_S = 5.0
"""Where a job was submitted later than that, what was played is not the log."""
PHILLY = Path("cluster/jobs/philly_dev.csv.gz")
CHECKOUT = Path(__file__).parents[5]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveScene:
    """A day, how it went, and how far that is from its simulation.

    Attributes:
        played: What happened.
        compared: Beside the simulation.
        violations: What the log's checker finds.
    """

    day: LiveDay
    played: Played
    compared: LiveCompared
    violations: tuple[str, ...]


def philly_log() -> Path:
    """Where Philly's log is looked for: in the folder that FARSIDE_DATA names, otherwise beside the checkout."""
    told = os.environ.get("FARSIDE_DATA")
    return (Path(told) if told else CHECKOUT.parent / "shared" / "data") / PHILLY


def chosen_day(show: Show, log: Path | None) -> LiveDay:
    """The day of the log that was named, of Philly's where it is at hand, otherwise of a generated one.

    Raises:
        ConfigError: The log can't be read, or no day of it suits.
    """
    show.begin("a day is chosen")
    path = log or philly_log()
    if log is None and not path.exists():
        day = day_of(generated_log(), "generated log (farside sim trace generate repeating)")
        show.end(f"there is no {path}, so a generated log is played; --log FILE names another")
    else:
        day = day_of(read_trace(path).jobs, path.name)
        show.end(f"{format_count(len(day.past), 'job')} that had ended before are learned from")
    if not has_lightgbm():
        show.end("LightGBM is not installed: jobs are expected by the rolling estimate alone")
    return day


def play(show: Show, folder: Path, log: Path | None, tell: Tell) -> LiveScene:
    """Plays it.

    Raises:
        FarsideError: There is no such log or no day in it, the sandbox did not start, or jobs do not end in time.
    """
    day = chosen_day(show, log)
    show.begin("a day of jobs under QSSF, with lending")
    played = play_day(day, folder / "day", tell, lends=True)
    tell("")
    show.end(day.words)
    show.begin("the same jobs in the simulator, with the delays that were measured")
    compared = compare(played.entries, played.config, played.needs_s)
    delays = compared.delays
    show.end(
        f"on average a job was charged {1000 * delays.deciding_s:.0f} ms for deciding, "
        f"{1000 * delays.starting_s:.0f} ms for starting and {1000 * delays.stopping_s:.0f} ms for stopping"
    )
    found = tuple(violations(played.entries, is_complete=True))
    return LiveScene(day=day, played=played, compared=compared, violations=found)


def scene_faults(scene: LiveScene) -> tuple[str, ...]:
    """What was out of bounds, a line each."""
    found = [f"the log: {one}" for one in scene.violations]
    left = len(scene.day.jobs) - sum(state == "done" for state in scene.played.states.values())
    if left:
        found.append(f"{format_count(left, 'job')} of {len(scene.day.jobs)} not done")
    fidelity = scene.compared.fidelity
    if abs(fidelity.mean_error) > ERROR_MAX:
        found.append(
            f"the simulated average JCT is off by {100 * fidelity.mean_error:+.1f} % ({100 * ERROR_MAX:g} at most)"
        )
    if fidelity.order.error > ERROR_MAX:
        found.append(
            f"{100 * fidelity.order.error:.1f} % of pairs started in the other order ({100 * ERROR_MAX:g} at most)"
        )
    if len(scene.day.nodes) > 1 and not scene.compared.guests:
        found.append("no job ran on nodes of another virtual cluster")
    if len(scene.day.nodes) > 1 and not scene.compared.recalls:
        found.append("no borrower gave nodes back to their owner")
    if not fidelity.order.pairs:
        found.append("no two jobs waited together, so their order says nothing")
    found += [
        f"job {one.owner} waited {one.waited_s:.1f} s for borrower {one.borrower}, whose grace is {GRACE_S:g} s"
        for one in scene.compared.recalls
        if one.waited_s > GRACE_S
    ]
    if scene.played.late_s > LATE_MAX_S:
        found.append(f"a job was submitted {scene.played.late_s:.1f} s late ({LATE_MAX_S:g} at most)")
    if not scene.played.estimates:
        found.append("the manager expected nothing of any job")
    return tuple(found)

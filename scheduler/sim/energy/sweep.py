"""Results of each energy policy over a range of parameters: the curves to compare policies by. PURE."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from farside.errors import ConfigError
from farside.scheduler.energy.catalog import POLICIES, Question, prepare
from farside.scheduler.energy.ces import Ces
from farside.scheduler.energy.helios_policy import Paper
from farside.scheduler.energy.policy import EnergyPolicy
from farside.scheduler.settings import chosen
from farside.scheduler.sim.energy.replay import figures, play

# Shares of all nodes; 0.095 is 40 of Philly's 420.
BUFFER_SHARES = (0.0, 0.012, 0.024, 0.048, 0.071, 0.095, 0.143, 0.19, 0.238)
KEEP_S = tuple(hours * 3600.0 for hours in (1 / 6, 1, 3, 6, 12, 24))
WAKEUPS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One policy with one set of parameters.

    ``is_on_frontier``: no other of the policy's has as few wake-ups and as many nodes asleep.
    """

    policy: str
    setting: str
    sleeping_nodes: float
    wakeups_per_day: float
    short_nodes: float
    short_intervals: int
    is_on_frontier: bool = False


def sweep(question: Question, names: Sequence[str] = (), *, boot_s: float = 300.0) -> tuple[Point, ...]:
    """Points of some policies (empty: all), grouped by policy.

    Raises:
        ConfigError: A name is wrong, or the series too short for a forecast.
    """
    found: list[Point] = []
    for name in names or tuple(_SWEEPS):
        chosen(name, POLICIES, "energy policy")
        if name not in _SWEEPS:
            raise ConfigError(f"policy '{name}' has nothing to sweep", hint=f"sweep {', '.join(_SWEEPS)}")
        points: list[Point] = []
        for label, setting, policy in _SWEEPS[name](question):
            came = figures(play(policy, question.series, question.begin, question.end, boot_s=boot_s), boot_s=boot_s)
            points.append(
                Point(
                    policy=label,
                    setting=setting,
                    sleeping_nodes=came.sleeping_nodes,
                    wakeups_per_day=came.wakeups_per_day,
                    short_nodes=came.short_nodes,
                    short_intervals=came.short_intervals,
                )
            )
        found += [replace(point, is_on_frontier=_is_unbeaten(point, points)) for point in points]
    return tuple(found)


def _is_unbeaten(point: Point, points: Sequence[Point]) -> bool:
    return not any(
        other.wakeups_per_day <= point.wakeups_per_day
        and other.sleeping_nodes >= point.sleeping_nodes
        and (other.wakeups_per_day, -other.sleeping_nodes) != (point.wakeups_per_day, -point.sleeping_nodes)
        for other in points
        if other.policy == point.policy
    )


_Runs = Iterator[tuple[str, str, EnergyPolicy]]


def _ces(question: Question) -> _Runs:
    for wakeups in WAKEUPS:
        policy = prepare("ces", {"wakeups_per_day": f"{wakeups:g}"}, question).policy
        assert isinstance(policy, Ces)
        yield "ces", f"wakeups_per_day={wakeups:g}", policy


def _paper(question: Question) -> _Runs:
    for features in ("causal", "artifact"):
        trained = prepare("paper", {"features": features}, question).policy  # one forecast serves all buffers
        assert isinstance(trained, Paper)
        for nodes in _buffers(question):
            settings = replace(trained.settings, buffer_nodes=nodes)
            label = "paper" if features == "causal" else "paper (looks ahead)"
            yield (
                label,
                f"buffer_nodes={nodes}",
                Paper(settings=settings, outlook=trained.outlook, step_s=trained.step_s),
            )


def _rule(question: Question) -> _Runs:
    for keep_s in KEEP_S:
        for nodes in _buffers(question):
            told = {"buffer_nodes": str(nodes), "keep_s": f"{keep_s:g}"}
            policy = prepare("rule", told, question).policy
            yield "rule", f"buffer_nodes={nodes} keep_s={keep_s:g}", policy


def _vanilla(question: Question) -> _Runs:
    for nodes in _buffers(question):
        policy = prepare("vanilla", {"buffer_nodes": str(nodes)}, question).policy
        yield "vanilla", f"buffer_nodes={nodes}", policy


def _buffers(question: Question) -> tuple[int, ...]:
    nodes = float(question.series.total[0])
    return tuple(sorted({round(share * nodes) for share in BUFFER_SHARES}))


_SWEEPS: Mapping[str, Callable[[Question], _Runs]] = MappingProxyType(
    {"ces": _ces, "paper": _paper, "rule": _rule, "vanilla": _vanilla}
)

"""The demo's co-location scene: its verdict, what it lacks, and a small one played for real."""

import io
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from farside.agent.training.turn_record import row_of
from farside.cli.demo import colocated, colocated_managed
from farside.cli.demo.colocated import KINDS, ColocationScene, JobFound, best_apart_s, play, profile_of, steps_s
from farside.cli.demo.colocated_groups import GroupFound, Regrouped, iteration_s, overlapping
from farside.cli.demo.colocated_managed import ManagedJob, ManagedScene, pauses_s
from farside.cli.demo.colocated_managed import play as play_managed
from farside.cli.demo.colocated_node import Link
from farside.cli.demo.colocated_report import managed_faults, print_managed, print_scene, scene_faults
from farside.cli.demo.main import run
from farside.cli.demo.show import Show
from farside.errors import Unavailable
from tests.colocation.test_turn_record import Node

GOOD = ColocationScene(
    unjudged="", has_links=True, spread=0.03, apart_s=30.0, together_s=20.0, predicted_s=19.0, overlaps=0,
    let_through=9, starts=5,
    jobs=tuple(
        JobFound(name=name, iterations=30, alone_s=10.0, nodes=nodes, is_equal=True)
        for name, nodes in (("lasso", ("n1",)), ("lda", ("n1",)), ("nmf", ("n2", "n1")), ("mlr", ("n2",)))
    ),
    groups=(GroupFound(node="n1", jobs=("lasso", "lda"), bound="cpu", predicted_s=0.33, measured_s=0.34),),
    changes=(Regrouped(ended="lda", moved=("nmf",), why="1.4 machines busy instead of 1.1"),),
)  # fmt: skip


MANAGED = ManagedScene(
    unjudged="", spread=0.05, node="n1", bound="cpu", predicted_s=0.5, measured_s=0.52, still_s=0.6, turns_s=0.3,
    jobs=(
        ManagedJob(name="nmf", state="done", starts=2, is_equal=True),
        ManagedJob(name="mlr", state="done", starts=1, is_equal=True),
    ),
    violations=(),
)  # fmt: skip


def shown(scene: ColocationScene) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=160)
    code = print_scene(console, scene)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_a_scene_within_its_bounds_is_good() -> None:
    assert scene_faults(GOOD) == ()
    code, page = shown(GOOD)
    assert code == 0
    assert "one after the other 30.0 s, together 20.0 s: 0.67 of it, predicted 0.63" in page


def test_what_is_out_of_bounds_is_named_and_ends_with_1() -> None:
    stays = tuple(replace(job, nodes=job.nodes[:1], is_equal=job.name != "mlr") for job in GOOD.jobs)
    bad = replace(GOOD, jobs=stays, together_s=28.0, overlaps=2, let_through=50)

    assert scene_faults(bad) == (
        "job mlr's model differs from the one that it has alone",
        "no job moved when another one ended",
        "two jobs of a node computed at once 2 times",
        "50 subtasks began without a turn in 5 starts",
        "together they took 0.93 of the time of one after the other; 0.85 is the most",
        "together they took 47 % longer than predicted; 25 % may be",
    )
    assert shown(bad)[0] == 1


def test_where_times_say_nothing_models_alone_are_judged_and_it_says_why() -> None:
    busy = replace(GOOD, unjudged="computing alone varied by 40 %", together_s=60.0)

    assert scene_faults(busy) == ()
    code, page = shown(busy)
    assert code == 0
    assert "no time is judged, the models alone are: computing alone varied by 40 %" in page
    assert scene_faults(replace(busy, jobs=(replace(GOOD.jobs[0], is_equal=False),))) != ()


def test_the_best_order_of_jobs_one_after_the_other_is_what_they_are_compared_with() -> None:
    assert best_apart_s([4, 3, 3, 2], 2) == 6
    assert best_apart_s([4, 3, 3, 2], 1) == 12


def test_steps_are_read_from_a_trace_without_the_first_iterations_and_the_last_pull() -> None:
    def row(iteration: int, phase: str, took_s: float, start: str = "a") -> list[object]:
        position = 3 * iteration + ("PULL", "COMP", "PUSH").index(phase)
        return [start, position, phase, 0, 10**9, 10**9 + round(took_s * 1e9), True]

    trace = [row(at, phase, 1.0 if at < 3 else 0.25) for at in range(6) for phase in ("PULL", "COMP", "PUSH")]
    trace += [row(6, "PULL", 5.0), row(4, "COMP", 9.0, "b")]

    assert steps_s(trace, "a", ("COMP",)) == [0.25] * 3
    assert steps_s(trace, "a", ("PULL", "PUSH")) == [0.5] * 3


def test_what_a_job_needs_is_what_a_manager_knows_by_the_job_s_executor() -> None:
    node = Node(other_ms=0)
    node.iterations(0, 12)

    found = profile_of("a", [row_of(turn) for turn in node.record.trace(0, 100)[1]])

    # Of 8 ms of its processor in pulls, pushes and between, the 5 ms in which it is on the network.
    assert (found.work_machine_s, found.net_alone_s, found.net_cpu_alone_s) == pytest.approx((0.028, 0.005, 0.005))
    assert (found.machines_least, found.machines_most) == (1, 1)


def test_an_iteration_is_from_push_to_push_and_needs_enough_of_them() -> None:
    trace = [["a", at, "PUSH", 0, 0, at * 10**9 // 2, True] for at in range(1, 30)]

    assert iteration_s(trace, ["a"], 0, 10**12) == pytest.approx(0.5)
    assert iteration_s(trace, ["a"], 0, 3 * 10**9) is None
    assert iteration_s(trace, ["b"], 0, 10**12) is None


def test_two_jobs_overlap_while_the_turn_of_one_is_its_own_and_not_after_its_time() -> None:
    def computes(start: str, since_s: float, until_s: float, *, has_lease: bool = True) -> list[object]:
        return [start, 4, "COMP", 0, round(since_s * 1e9), round(until_s * 1e9), has_lease]

    assert overlapping([computes("a", 0, 0.5), computes("b", 0.5, 1)]) == 0
    assert overlapping([computes("a", 0, 0.5), computes("b", 0.4, 1)]) == 1
    assert overlapping([computes("a", 0, 3), computes("b", 1.1, 2)]) == 0
    assert overlapping([computes("a", 0, 0.5), computes("b", 0.4, 1, has_lease=False)]) == 0


def test_without_numba_it_says_in_one_line_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(colocated, "find_spec", lambda name: None)

    with pytest.raises(Unavailable, match="needs numba, which is not installed") as refused:
        run(part="colocation")

    assert refused.value.hint == "make demo SCENE=colocation"


def test_without_root_there_is_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    with pytest.raises(Unavailable, match="needs root"):
        Link()


def test_the_manager_s_half_is_judged_by_models_starts_and_times() -> None:
    bad = replace(
        MANAGED, measured_s=0.7, still_s=1.2, turns_s=2.5, violations=("entry 9: two leaders",),
        jobs=(replace(MANAGED.jobs[0], starts=1, is_equal=False), replace(MANAGED.jobs[1], state="failed")),
    )  # fmt: skip

    assert managed_faults(MANAGED) == ()
    assert managed_faults(bad) == (
        "entry 9: two leaders",
        "job nmf's model differs from the one that it has alone",
        "job nmf was started 1 times, not 2",
        "job mlr is failed",
        "an iteration took +40 % of the predicted; 25 % may be",
        "the other job stood still for 1.20 s; 1 s may be",
        "turns were given again after 2.50 s; 2 s may be",
    )
    assert len(managed_faults(replace(bad, unjudged="no link"))) == 4
    console = Console(file=io.StringIO(), width=160)
    assert print_managed(console, MANAGED) == 0
    assert "bound by computing: an iteration of both takes 0.500 s by prediction, measured 0.520 s" in (
        console.file.getvalue()  # type: ignore[attr-defined]
    )


def test_a_pause_is_from_push_to_push_and_those_before_a_kill_count_not() -> None:
    trace = [["a", at, "PUSH", 0, 0, at * 10**9, True] for at in (1, 2, 3, 7, 8)]

    assert pauses_s(trace, 2 * 10**9) == [1.0, 4.0, 1.0]


@pytest.mark.long  # ten processes that import numba; tests/train shows equal bits of jobs that share a node, too
def test_a_small_scene_without_a_link_ends_with_equal_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link() -> Link:
        raise Unavailable("no link here")

    monkeypatch.setattr(colocated, "Link", no_link)
    few = {
        name: replace(
            kind,
            options=msgspec.structs.replace(kind.options, iterations=12, rows=64, columns=kind.options.columns // 50),
        )
        for name, kind in KINDS.items()
    }

    with (
        tempfile.TemporaryDirectory(prefix="farside-") as folder,
        Show(Console(file=io.StringIO()), lambda: "") as show,
    ):
        scene = play(show, Path(folder), few)

    assert scene_faults(scene) == ()
    assert [job.is_equal for job in scene.jobs] == [True] * 4


@pytest.mark.long  # four starts of programs under a manager; tests/live shows each part of it, too
def test_the_manager_s_half_without_a_link_ends_with_equal_models(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link() -> Link:
        raise Unavailable("no link here")

    monkeypatch.setattr(colocated_managed, "Link", no_link)
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")  # a job's variables are its own
    with (
        tempfile.TemporaryDirectory(prefix="farside-") as folder,
        Show(Console(file=io.StringIO()), lambda: "") as show,
    ):
        scene = play_managed(show, Path(folder) / "managed")

    assert managed_faults(scene) == ()
    assert scene.unjudged == "no link here"

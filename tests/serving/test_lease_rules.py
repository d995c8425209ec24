"""Which leases are asked for, served on and given back, by hand and by chance."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farside.errors import ConfigError
from farside.scheduler.manager.model.spec import JobBody
from farside.serve.failures import FORGOTTEN_S, Failures
from farside.serve.lease.rules import LAST_S, Lease, LeaseRules, judge
from farside.serve.lease.terms import LeaseTerms, check_terms, is_asked_for, job_of

RULES = LeaseRules(most=4, spare=0, replace_before_s=600.0)
DAY_S = 86_400.0


def lease(number: int, phase: str = "running", **said: object) -> Lease:
    runs = phase == "running"
    made = Lease(
        job_id=f"j{number}", number=number, phase=phase, node=f"n{number}" if runs else "", answers=runs,
        left_s=DAY_S if runs else 0.0,
    )  # fmt: skip
    return replace(made, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("log_dir", "state_folder", "output"),
    [
        ("", "", "/etc/farside/serve/v/serve-v-%j.log"),
        ("", "/var/lib/farside/serve", "/var/lib/farside/serve/serve-v-%j.log"),
        ("logs", "/var/lib/farside/serve", "/etc/farside/serve/v/logs/serve-v-%j.log"),
        ("/scratch", "/var/lib/farside/serve", "/scratch/serve-v-%j.log"),
    ],
)
def test_a_lease_writes_its_log_where_the_file_says_or_its_service_may(
    log_dir: str, state_folder: str, output: str
) -> None:
    terms = LeaseTerms(key_file="key", log_dir=log_dir)

    job = job_of("v", Path("/etc/farside/serve/v"), terms, ("farside",), 90, state_folder)

    assert job["output"] == output


@pytest.mark.parametrize(("cpus", "said"), [(None, {}), (0.0, {"cpus_per_gpu": 0.0}), (4.0, {"cpus_per_gpu": 4.0})])
def test_a_lease_names_cpus_only_where_the_file_does_so_that_the_manager_may_choose(
    cpus: float | None, said: dict[str, float]
) -> None:
    job = job_of("v", Path("/v"), LeaseTerms(key_file="key", cpus=cpus), ("farside",), 90)

    assert {key: value for key, value in job.items() if key.startswith("cpus")} == said


def test_a_lease_may_be_where_the_file_says() -> None:
    said = {"partition": "gpu", "nodes": ("n1", "n2"), "exclude": ("n3",), "features": ("nvlink",)}
    terms = LeaseTerms(key_file="key", **said)  # type: ignore[arg-type]

    check_terms(Path("/v/serving.toml"), terms)
    body = msgspec.convert(job_of("v", Path("/v"), terms, ("farside",), 90), JobBody)

    assert {key: getattr(body, key) for key in said} == said


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ({"nodes": ("n1",), "exclude": ("n1",)}, "exclude: n1 is among nodes as well; leave it out of one"),
        ({"nodes": ("n 1",)}, "nodes: 'n 1' is no name"),
        ({"partition": "a\nb"}, "partition: "),
        ({"worker_command": ("",)}, "worker_command: is empty"),
    ],
)
def test_what_no_manager_takes_of_a_lease_is_refused_before_anything_starts(said: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^/v/serving.toml: {line}") as refused:
        check_terms(Path("/v/serving.toml"), LeaseTerms(key_file="key", **said))  # type: ignore[arg-type]

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("said", "spec", "is_same"),
    [
        ({}, {"partition": "gpu", "account": "lab", "qos": "normal", "cpus_per_gpu": 4.0}, True),
        ({"nodes": ("n2", "n1")}, {"nodes": ["n1", "n2"]}, True),
        ({"nodes": ("n1",)}, {"nodes": ["n1", "n2"]}, False),
        ({}, {"exclude": ["n1"]}, False),
        ({"exclude": ("n1",)}, {"exclude": []}, False),
        ({"features": ("nvlink",)}, {"features": []}, False),
        ({"partition": "gpu"}, {"partition": "old"}, False),
        ({"qos": "high"}, {"qos": "normal"}, False),
        ({"gpu_model": "H200"}, {"gpu_model": ""}, False),
        ({"memory": "1GiB"}, {"memory_bytes_per_gpu": 2.0**30}, True),
        ({"memory": "2GiB"}, {"memory_bytes_per_gpu": 2.0**30}, False),
        ({"cpus": 2.0}, {"cpus_per_gpu": 4.0}, False),
        ({"preemptible": True}, {"preemptible": False}, False),
        ({"lease_s": 100.0}, {"time_limit_s": 86_400.0}, True),
        ({"qos": "high"}, {}, True),
        ({"gpu_model": "H200|h100"}, {"gpu_model": "h100|h200"}, True),
        ({}, {"argv": ["other", "serve", "worker", "--key-file", "/v/key", "--capacity", "90"]}, True),
        ({}, {"argv": ["farside", "serve", "worker", "--key-file", "/v/key", "--capacity", "80"]}, False),
        (
            {"key_file": "new"},
            {"argv": ["farside", "serve", "worker", "--key-file", "/v/key", "--capacity", "90"]},
            False,
        ),
    ],
)
def test_a_lease_that_the_front_before_asked_for_is_known_by_what_its_job_says(
    said: dict[str, object], spec: dict[str, object], is_same: bool
) -> None:
    """What the file does not say the manager fills in, and what a manager does not tell is taken for the same."""
    terms = LeaseTerms(**{"key_file": "key", **said})  # type: ignore[arg-type]

    assert is_asked_for(spec, job_of("v", Path("/v"), terms, ("farside",), 90)) == is_same


def test_one_that_the_file_asks_for_otherwise_serves_and_is_extended_until_another_one_is_there() -> None:
    old = lease(0, is_outdated=True, may_extend=True, left_s=RULES.replace_before_s)

    found = judge([old], 1, {0}, RULES)
    assert (found.submit, found.cancel, found.extend, set(found.usable)) == (1, (), ("j0",), {0})
    assert found.leaving == {0: "the file asks for another one"}
    found = judge([old, lease(1, "waiting")], 1, {0}, RULES)
    assert (found.submit, found.cancel, found.extend, set(found.usable)) == (0, (), ("j0",), {0})
    found = judge([old, lease(1)], 1, {0}, RULES)
    assert (found.submit, found.cancel, found.extend, set(found.usable)) == (0, (), (), {1})
    found = judge([old, lease(1)], 1, {1}, RULES)
    assert found.cancel == ("j0",)


def test_one_that_waits_and_that_the_file_asks_for_otherwise_is_given_back_once_another_one_is_asked_for() -> None:
    old = lease(0, "waiting", is_outdated=True)

    found = judge([old], 1, set(), RULES)
    assert (found.submit, found.cancel) == (1, ())
    found = judge([old, lease(1, "waiting")], 1, set(), RULES)
    assert (found.submit, found.cancel) == (0, ("j0",))


def test_as_many_are_asked_for_as_are_needed_and_spare_ones() -> None:
    found = judge([lease(0), lease(1, "waiting")], 3, {0}, replace(RULES, spare=1))

    assert (found.submit, found.cancel, set(found.usable)) == (2, (), {0})


def test_one_on_a_node_that_drains_serves_until_another_one_is_there_and_then_until_it_is_empty() -> None:
    drains = lease(0, is_draining=True)

    alone = judge([drains], 1, {0}, RULES)
    waits = judge([drains, lease(1, "starting")], 1, {0}, RULES)
    there = judge([drains, lease(1)], 1, {0}, RULES)
    moved = judge([drains, lease(1)], 1, {1}, RULES)

    assert (alone.submit, set(alone.usable), dict(alone.leaving)) == (1, {0}, {0: "n0 drains"})
    assert (waits.submit, set(waits.usable), waits.cancel) == (0, {0}, ())
    assert (set(there.usable), there.cancel) == ({1}, ())
    assert (set(moved.usable), moved.cancel) == ({1}, ("j0",))


def test_one_whose_time_ends_is_extended_and_neither_left_nor_replaced_while_that_is_asked() -> None:
    ends = lease(0, left_s=RULES.replace_before_s, may_extend=True)

    found = judge([ends], 1, {0}, RULES)

    assert (found.extend, found.submit, dict(found.leaving), set(found.usable)) == (("j0",), 0, {}, {0})
    assert judge([replace(ends, left_s=RULES.replace_before_s + 1)], 1, {0}, RULES).extend == ()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"may_extend": False}, "its time ends"),
        ({"left_s": RULES.replace_before_s / 2}, "its time ends"),  # nobody has answered
        ({"is_draining": True}, "n0 drains"),
        ({"is_unfit": True}, "no executor starts there"),
    ],
)
def test_one_that_is_refused_or_that_gets_no_answer_or_is_no_use_is_replaced(said: dict[str, object], why: str) -> None:
    ends = replace(lease(0, left_s=RULES.replace_before_s, may_extend=True), **said)  # type: ignore[arg-type]

    found = judge([ends], 1, {0}, RULES)

    assert (found.extend, found.submit, dict(found.leaving)) == ((), 1, {0: why})


def test_one_that_is_not_needed_is_given_back_rather_than_extended() -> None:
    ends = lease(0, left_s=RULES.replace_before_s, may_extend=True)

    found = judge([ends], 0, set(), RULES)

    assert (found.extend, found.cancel) == ((), ("j0",))


def test_one_whose_time_ends_is_replaced_and_left_at_last_though_there_is_no_other() -> None:
    ends = lease(0, left_s=RULES.replace_before_s)

    assert judge([ends], 1, {0}, RULES).submit == 1
    assert judge([ends], 1, {0}, RULES).usable == {0}
    assert judge([replace(ends, left_s=LAST_S)], 1, {0}, RULES).usable == frozenset()


def test_too_many_are_given_back_where_they_wait_and_then_so_that_nodes_become_empty() -> None:
    two, one = [lease(0, node="b"), lease(1, node="b")], lease(2, node="c")

    assert judge([*two, one, lease(3, "waiting")], 2, {0}, RULES).cancel == ("j3", "j2")
    assert judge([*two, one], 2, {2}, RULES).cancel == ("j0",)
    assert judge([*two, one], 1, {0, 1, 2}, RULES).cancel == (), "each of them has executors"


def test_one_whose_worker_is_gone_is_no_place_and_is_not_replaced_while_its_job_runs() -> None:
    found = judge([lease(0, answers=False)], 1, {0}, RULES)

    assert (found.usable, found.submit, found.cancel) == (frozenset(), 0, ())


def test_one_whose_worker_hangs_up_serves_on_the_executors_that_it_has_until_another_one_is_there() -> None:
    lost = lease(0, answers=False, serves=True)
    hangs_up = replace(lost, hangs_up=True, may_extend=True, left_s=RULES.replace_before_s)

    first = judge([lost], 1, {0}, RULES)
    alone = judge([hangs_up], 1, {0}, RULES)
    there = judge([hangs_up, lease(1)], 1, {0}, RULES)
    moved = judge([replace(hangs_up, serves=False), lease(1)], 1, {1}, RULES)

    assert (set(first.usable), first.submit, first.cancel) == ({0}, 0, ())
    assert (set(alone.usable), alone.submit, alone.cancel, alone.extend) == ({0}, 1, (), ("j0",))
    assert (set(there.usable), there.submit, there.cancel, there.extend) == ({1}, 0, (), ())
    assert (set(moved.usable), moved.cancel) == ({1}, ("j0",))


def test_one_whose_worker_does_not_answer_serves_on_and_is_extended_until_another_one_is_there() -> None:
    silent = lease(0, answers=False, serves=True, is_silent=True, may_extend=True, left_s=RULES.replace_before_s)

    alone = judge([silent], 1, {0}, RULES)
    waits = judge([silent, lease(1, "waiting")], 1, {0}, RULES)
    there = judge([silent, lease(1)], 1, {0}, RULES)
    moved = judge([replace(silent, serves=False), lease(1)], 1, {1}, RULES)
    died = judge([replace(silent, serves=False), lease(1, "waiting")], 1, frozenset(), RULES)

    assert (set(alone.usable), alone.submit, alone.cancel, alone.extend) == ({0}, 1, (), ("j0",))
    assert alone.leaving == {0: "its worker does not answer"}
    assert (set(waits.usable), waits.submit, waits.cancel) == ({0}, 0, ())
    assert (set(there.usable), there.submit, there.cancel, there.extend) == ({1}, 0, (), ())
    assert (set(moved.usable), moved.cancel) == ({1}, ("j0",))
    assert (set(died.usable), died.submit, died.cancel) == (set(), 0, ("j0",))


def test_one_on_which_no_executor_starts_is_replaced_and_given_back() -> None:
    unfit = lease(0, is_unfit=True, answers=False)

    spare = judge([unfit, lease(1)], 1, frozenset(), replace(RULES, spare=1))
    used = judge([unfit], 1, {0}, RULES)

    assert (set(spare.usable), spare.cancel, spare.submit) == ({1}, ("j0",), 1)
    assert (used.submit, used.cancel, used.leaving[0]) == (1, (), "no executor starts there")


def test_what_fails_is_left_out_twice_as_long_each_time_and_old_failures_count_no_more() -> None:
    failures, left_out_s = Failures(), list[float]()
    for now_s in (100.0, 110.0, 130.0, 130.0 + FORGOTTEN_S):
        failures = failures.and_one(now_s, 10.0)
        left_out_s.append(failures.until_s - now_s)

    assert left_out_s == [10.0, 20.0, 40.0, 10.0]


PHASES = st.sampled_from(["waiting", "placed", "starting", "running", "stopping"])
LEASES = st.lists(
    st.tuples(PHASES, st.sampled_from("abc"), st.floats(0, DAY_S), *[st.booleans()] * 5),
    max_size=8,
).map(
    lambda all_of: [
        lease(
            number,
            phase,
            node=node,
            left_s=left_s,
            is_draining=drains,
            answers=answers,
            is_outdated=old,
            serves=serves,
            is_silent=silent,
        )
        for number, (phase, node, left_s, drains, answers, old, serves, silent) in enumerate(all_of)
    ]
)


@given(LEASES, st.integers(0, 4), st.sets(st.integers(0, 7)), st.integers(0, 2))
def test_what_serves_is_never_given_back_and_nobody_asks_for_more_than_may_be(
    leases: list[Lease], needed: int, in_use: set[int], spare: int
) -> None:
    rules = replace(RULES, spare=spare)
    found = judge(leases, needed, in_use, rules)
    numbers = {one.job_id: one.number for one in leases}
    given_back = {numbers[job_id] for job_id in found.cancel}

    assert not given_back & (in_use | found.usable)
    assert len(found.cancel) == len(set(found.cancel))
    staying = [
        one for one in leases if one.phase != "stopping" and one.number not in found.leaving and not one.is_outdated
    ]
    assert len(staying) + found.submit <= max(len(staying), needed + spare)
    assert all(one.phase == "running" and (one.answers or one.serves) for one in leases if one.number in found.usable)

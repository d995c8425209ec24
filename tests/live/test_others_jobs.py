"""What a user is told of others' jobs: no number, whichever route it asks, and whether one is there neither."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import get_args

import httpx
import msgspec
import pytest
from fastapi.routing import iter_route_contexts
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from farside import admin
from farside.agent import messages as m
from farside.scheduler.explain import nobody_knows
from farside.scheduler.manager.aggregation.state import JobChunks
from farside.scheduler.manager.aggregation.state import Run as ChunksOwned
from farside.scheduler.manager.api import overview_stream
from farside.scheduler.manager.api.overview import EventStream
from farside.scheduler.manager.auth.caller import Caller
from farside.scheduler.manager.auth.token_file import Role
from farside.scheduler.manager.colocation.state import Colocation, PlannedGroup
from farside.scheduler.manager.decider.decide import Decider
from farside.scheduler.manager.decider.scheduler_process import ASK
from farside.scheduler.manager.model import event as log
from farside.scheduler.manager.model.record import LiveJob
from farside.scheduler.manager.model.spec import JobSpec
from farside.scheduler.manager.model.state import LiveState
from farside.scheduler.manager.store.transaction import Draft
from farside.scheduler.manager.view.overview import Sensed
from farside.scheduler.manager.view.sight import OTHERS_NUMBERS, SEES_ALL, Sight
from farside.units import format_moment
from tests.live.test_api import OTHER, THIRD, Api, an_api, api_test
from tests.live.world import World, rules

# Numbers that are nothing else in an answer: `a_cluster` begins to count here.
FIRST = 70_001
RUNS, ARRAY, TASK, MINE, PUSHED_OUT, ENDED, WAITS, NEVER = (
    "70001", "70002", "70002_0", "70003", "70004", "70005", "70006", "79999",
)  # fmt: skip
OTHERS = (RUNS, ARRAY, TASK)
_NUMBERS = re.compile(r"(?<![\w.])(7000[12](?:_\d+)?)(?!\d)")
PUSHED = f"goes before one running job: job {RUNS}"


async def decide(api: Api, *events: log.Event) -> None:
    """The scheduler process writes these."""
    generation = await asyncio.to_thread(api.log.store.take_lead, "test", api.log.now_s())
    drafts = [Draft(event=event, cause="test") for event in events]
    await asyncio.to_thread(api.log.store.append, drafts, api.log.now_s(), generation=generation)
    await api.log.catch_up()


def started(job_id: str, *gpus: int) -> tuple[log.Event, ...]:
    task = log.TaskAllocation(rank=0, node="n0", gpus=gpus)
    return (
        log.JobAllocated(job_id=job_id, places=(log.NodeAllocation(node="n0", gpus=len(gpus)),), reason="room"),
        log.JobStarted(job_id=job_id, start=1, tasks=(task,), master_addr="h", master_port=20_000 + gpus[0]),
    )


def task_of(job_id: str, phase: log.TaskPhase, **more: object) -> log.TaskChanged:
    return log.TaskChanged(node="n0", job_id=job_id, rank=0, start=1, phase=phase, **more)  # type: ignore[arg-type]


async def a_cluster(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTHER has a job that runs and an array that waits; THIRD has jobs whose fates hang on these."""
    api.log.state.next_number = FIRST
    other, third = OTHER.pw_name, THIRD.pw_name

    async def submit(user: str, count: int = 1, **asked: object) -> None:
        spec = JobSpec(argv=("true",), cwd="/", **asked)  # type: ignore[arg-type]
        await api.log.write([log.JobSubmitted(spec=spec, user=user, uid=-1, count=count)], f"user {user}")

    await submit(other, gpus=4)
    await submit(other, 2, gpus=8)
    await submit(third, gpus=2)
    await submit(third, gpus=2)
    await submit(third, after=(RUNS, TASK))  # a version before took that
    await submit(third, gpus=8)
    await decide(api, *started(RUNS, 0, 1, 2, 3), *started(MINE, 4, 5), *started(PUSHED_OUT, 6, 7))
    await api.log.write([task_of(job, log.TaskPhase.RUNNING) for job in (RUNS, MINE, PUSHED_OUT)], "node n0")
    held = f"GPU 0 is in use by job {RUNS}, start 1"  # as an agent refuses a start
    await api.log.write([task_of(MINE, log.TaskPhase.RUNNING, cause=held)], "node n0")
    stopping = log.JobStopping(
        job_id=PUSHED_OUT, start=1, cause=log.StopCause.PREEMPTED, reason=PUSHED, winner=RUNS
    )  # fmt: skip
    await decide(api, stopping)
    await api.log.write([task_of(PUSHED_OUT, log.TaskPhase.EXITED, exit_code=0, cause="preempted")], "node n0")
    ended = f"job {RUNS}, which it waits for, ended as failed"
    await decide(
        api,
        log.JobRequeued(job_id=PUSHED_OUT, start=1, reason=PUSHED),
        log.JobEnded(job_id=ENDED, ending=log.Ending.CANCELLED, reason=ended),
        log.JobAllocated(job_id=WAITS, places=(log.NodeAllocation(node="n0", gpus=2),), reason="room"),
        log.AllocationReleased(job_id=WAITS, reason=f"goes before one running job: job {TASK}"),
    )
    reserved = {"nodes": ["n0"], "from_s": 9e9, "to_s": 9.1e9}
    assert (await api.as_uid(0).post("/v1/reservations", json=reserved)).status_code == 201
    they_share(api, monkeypatch)


def they_share(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both take turns, are grouped, and aggregate."""
    takers = tuple(m.TurnTaker(job=job, start=1, rank=0, comp_s=1.0, net_s=1.0) for job in (RUNS, MINE))
    sensed = {"n0": Sensed(executor=m.ExecutorFacts(is_there=True, takers=takers))}
    monkeypatch.setattr(api.sessions, "sensed", lambda: sensed)
    monkeypatch.setattr(api.overviews, "_sensed", api.sessions.sensed)
    state = api.log.state
    # All of the group that are there are THIRD's own: only the reason names one that has left it.
    state.colocation = Colocation(
        jobs={MINE: 0}, groups=(PlannedGroup(node="n0", jobs=(MINE,)),), planned_s=1.0,
        reason=f"job {RUNS} left n0: {RUNS}, {MINE} came",
    )  # fmt: skip
    state.aggregation.wanting |= {RUNS: 1, MINE: 1}
    for job, another in ((RUNS, MINE), (MINE, RUNS)):
        state.aggregation.jobs[job] = JobChunks(
            job_id=job, start=1, servers=1, digest="d", rule="sum", members=1, chunks=(),
            runs=(ChunksOwned(first=0, count=1),), problem=f"job {another} lost 20 % of its speed",
        )  # fmt: skip


@asynccontextmanager
async def a_scheduler_process(api: Api) -> AsyncIterator[None]:
    """One that answers the API's questions by the same log."""
    decider = Decider(rules(), api.log.state, api.log.now_s())
    decider.next_events(api.log.now_s())  # the cycle looks at who waits

    def lines(job_id: object) -> list[str]:
        return list(decider.why(str(job_id), api.log.now_s(), format_moment))

    async def explain(told: Mapping[str, object]) -> object:
        return {"lines": lines(told["job_id"]), "expected_start_s": None, "packlimit": None}

    async def whys(told: Mapping[str, object]) -> object:
        asked = told["job_ids"]
        assert isinstance(asked, list)
        return {job_id: lines(job_id)[0] for job_id in asked}

    async with admin.serve(api.context.folder / ASK, {"explain": explain, "whys": whys}):
        yield


# What stands in the path of a route. One that is new has its line here.
VALUES: Mapping[str, tuple[str, ...]] = {
    "job_id": (MINE, PUSHED_OUT, ENDED, WAITS, *OTHERS, NEVER), "name": ("n0", "index.html"), "reservation_id": ("m1",),
}  # fmt: skip
QUERIES = ("", f"?all=true&limit=1000&user={OTHER.pw_name}", "?by=account", "?node=n0")


def urls_of(path: str) -> Iterator[str]:
    """Every address that a route with this path has here."""
    names = re.findall(r"{(\w+)}", path)
    for values, query in product(product(*(VALUES[name] for name in names)), QUERIES):
        yield path.format(**dict(zip(names, values, strict=True))) + query


async def events_of(api: Api, caller: Caller) -> str:
    """The first two events that a stream of the overview sends."""
    stream = api.overviews.follow(caller, lambda: True)
    first = await anext(stream)
    await api.log.write([task_of(RUNS, log.TaskPhase.RUNNING), log.HoldRequested(job_id=WAITS, by="x")], "test")
    found = first + await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert re.findall(rb"event: \w+", found) == [b"event: all", b"event: change"]
    return found.decode()


STREAMS: Mapping[str, Callable[[Api, Caller], "asyncio.Future[str]"]] = {
    "/v1/overview/stream": lambda api, caller: asyncio.ensure_future(events_of(api, caller)),
}


async def all_that_it_may_read(api: Api, client: httpx.AsyncClient, caller: Caller) -> dict[str, str]:
    """By address, what each GET of the API answers, with its headers, and what its streams send."""
    found: dict[str, str] = {}
    for route in iter_route_contexts(api.app.routes):
        if "GET" not in (getattr(route, "methods", None) or ()):
            continue
        if getattr(route, "response_class", None) is EventStream:
            found[str(route.path)] = await STREAMS[str(route.path)](api, caller)
            continue
        for url in urls_of(str(route.path)):
            answer = await client.get(url)
            found[url] = f"{answer.status_code} {dict(answer.headers)} {answer.text}"
    return found


def numbers_in(told: str, url: str) -> set[str]:
    """Others' numbers in an answer, but for one that the question itself names."""
    return {one for one in _NUMBERS.findall(told) if one not in url.partition("?")[0].split("/")}


@pytest.mark.parametrize("is_operator", [False, True])
def test_no_answer_and_no_event_has_the_number_of_another_users_job(
    is_operator: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[L5] Every route there is, and every stream; an operator, who sees all, shows that the numbers were there."""
    monkeypatch.setattr(overview_stream, "PERIOD_S", 0.0)

    async def test(api: Api) -> None:
        await a_cluster(api, monkeypatch)
        role, uid = (Role.OPERATOR, 0) if is_operator else (Role.USER, THIRD.pw_uid)
        caller = Caller(name=THIRD.pw_name, role=role, uid=uid)
        async with a_scheduler_process(api):
            told = await all_that_it_may_read(api, api.as_uid(uid), caller)

        leaks = {url: found for url, one in told.items() if (found := numbers_in(one, url))}
        if not is_operator:
            assert leaks == {}
            return
        parts = {url.partition("?")[0] for url in leaks}
        assert parts >= {
            "/v1/jobs", "/v1/nodes", "/v1/nodes/n0", "/v1/overview", "/v1/overview/stream", "/v1/reservations",
            "/v1/groups", "/v1/aggregation", f"/v1/jobs/{PUSHED_OUT}", f"/v1/jobs/{PUSHED_OUT}/history",
            f"/v1/jobs/{ENDED}", f"/v1/jobs/{ENDED}/history", f"/v1/jobs/{WAITS}/history", f"/v1/jobs/{WAITS}/explain",
        }  # fmt: skip

    api_test(test, tmp_path)


def test_a_user_is_told_in_words_what_numbers_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[L5]"""

    async def test(api: Api) -> None:
        await a_cluster(api, monkeypatch)
        user = api.as_uid(THIRD.pw_uid)
        async with a_scheduler_process(api):
            (node,) = (await user.get("/v1/nodes")).json()["nodes"]
            (one,) = (await user.get("/v1/reservations")).json()["reservations"]
            history = (await user.get(f"/v1/jobs/{PUSHED_OUT}/history")).json()["entries"]
            jobs = {job["id"]: job["reason"] for job in (await user.get("/v1/jobs?all=true")).json()["jobs"]}
            explained = (await user.get(f"/v1/jobs/{WAITS}/explain")).json()["lines"][0]
            shown = (await user.get(f"/v1/jobs/{ENDED}")).json()
            (group,) = (await user.get("/v1/groups")).json()["groups"]

        assert [gpu["job"] for gpu in node["gpus"]] == [None] * 4 + [MINE] * 2 + [None] * 2
        assert [gpu["shares"] for gpu in node["gpus"]] == [
            *[[{"part": "", "job": None}]] * 4, *[[{"part": "", "job": MINE}]] * 2, [], [],
        ]  # fmt: skip
        assert node["free_gpus"] == 2
        assert (one["jobs"], one["others"]) == ([MINE], 1)
        (stopped,) = (entry["event"] for entry in history if entry["type"] == "JobStopping")
        assert (stopped["winner"], stopped["reason"]) == (None, "goes before one running job: another user's job")
        assert jobs[PUSHED_OUT] == "goes before one running job: another user's job"
        assert shown["reason"] == "another user's job, which it waits for, ended as failed"
        assert shown["spec"]["after"] == []
        assert "another user's job (8 GPUs), which" in explained
        assert (group["others"], group["plan"]["jobs"]) == (1, [MINE])

    api_test(test, tmp_path)


@pytest.mark.parametrize("other", OTHERS)
def test_a_job_that_names_another_users_is_refused_as_if_that_had_never_been(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[L5] A job after another's told whether that was there, and by its own end how that ended."""
    reads: list[str] = []
    array = LiveState.array

    def read(state: LiveState, number: str) -> tuple[LiveJob, ...]:
        reads.append(number)
        return array(state, number)

    monkeypatch.setattr(LiveState, "array", read)

    async def test(api: Api) -> None:
        await a_cluster(api, monkeypatch)
        user = api.as_uid(THIRD.pw_uid)
        paths = {str(route.path) for route in iter_route_contexts(api.app.routes) if "{job_id}" in str(route.path)}

        async def told(method: str, path: str, number: str) -> tuple[int, str]:
            body = {"argv": ["true"], "after": [number]} if path == "/v1/jobs" else None
            answer = await user.request(method, path.replace("{job_id}", number), json=body)
            return answer.status_code, answer.text.replace(number, "N")

        asked = [("POST", "/v1/jobs"), *product(("GET", "POST", "PUT", "DELETE"), sorted(paths))]
        for method, path in asked:
            found = await told(method, path, other)
            assert found == await told(method, path, NEVER), path
            assert found[0] in (404, 405, 422)
        assert len(asked) > 20

        # Its tasks are not gone through, which takes longer the more there are.
        assert reads == []
        refused = await user.post("/v1/jobs", json={"argv": ["true"], "after": [other, NEVER]})
        assert refused.json()["detail"] == f"after: there is no job {other} of yours, and 1 others are not there"
        mine = await user.post("/v1/jobs", json={"argv": ["true"], "after": [MINE]})
        assert mine.status_code == 201

    api_test(test, tmp_path)


def test_an_operator_may_name_anybodys_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[L5]"""

    async def test() -> None:
        async with an_api(tmp_path, operators=frozenset({THIRD.pw_name})) as api:
            await a_cluster(api, monkeypatch)
            operator = api.as_uid(THIRD.pw_uid)

            for other in OTHERS:
                taken = await operator.post("/v1/jobs", json={"argv": ["true"], "after": [other]})
                assert taken.status_code == 201, taken.text
            refused = await operator.post("/v1/jobs", json={"argv": ["true"], "after": [NEVER]})

            assert refused.json()["detail"] == f"after: there is no job {NEVER}"

    asyncio.run(test())


# ------------------------------------------------------------------------------------- explain


def in_line(world: World) -> None:
    world.submit(8)
    world.submit(8)


def held_by_those_before(world: World) -> None:
    for _ in range(2):
        world.runs(world.submit(4))


def without_time_limits(world: World) -> None:
    world.submit(8)
    world.submit(8)
    world.submit(8)


@pytest.mark.parametrize("order", ["fifo", "las", "sf", "best-effort", "gittins"])
@pytest.mark.parametrize("before", [in_line, held_by_those_before, without_time_limits])
def test_explain_names_own_jobs_alone(order: str, before: Callable[[World], None]) -> None:
    """[L5] Whatever keeps the job waiting, whichever the policy."""
    world = World(rules(order))
    before(world)
    job = world.submit(8, user="bob")
    told = list(world.decider.why(job, world.now_s, str))
    foreseen = world.decider.foresee(job, world.now_s)
    told += [nobody_knows(world.decider.domain, foreseen)] if foreseen is not None and foreseen.unlimited else []

    for user in ("bob", "eve"):
        words = [Sight(jobs=world.state.jobs, user=user).words(line) for line in told]

        assert named(words) <= ({job} if user == "bob" else set())
        assert len(words) == len(told)
    assert [SEES_ALL.words(line) for line in told] == told


def test_some_of_these_lines_do_name_others_jobs() -> None:
    """[L5] Otherwise the test above shows nothing."""
    world = World(rules())
    in_line(world)
    told = world.decider.why(world.submit(8, user="bob"), world.now_s, str)

    assert named(told) == {"2"}
    assert any(
        "another user's job (8 GPUs), which" in Sight(jobs=world.state.jobs, user="bob").words(one) for one in told
    )


def named(lines: Iterable[str]) -> set[str]:
    return {number for line in lines for number in re.findall(r"job (\d+)", line)}


# ------------------------------------------------------------------------------------- texts and entries


def sight(user: str | None = "bob") -> Sight:
    """Jobs 1 and 2_0 are ann's, 3 and 4 bob's; 9 is forgotten."""
    world = World(rules())
    world.submit(user="ann")
    world.submit(count=1, user="ann")
    world.submit(user="bob")
    jobs = {**world.state.jobs, "2_0": world.state.jobs["2"], "4": world.state.jobs["3"]}
    return Sight(jobs=jobs, user=user)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("held for job 1, reserved from 9", "held for another user's job, reserved from 9"),
        ("job 2_0 (4 GPUs), which came earlier", "another user's job (4 GPUs), which came earlier"),
        (
            "waits for the end of job 1, 3, 2_0 and 5 others",
            "waits for the end of job 3 and 2 jobs of others and 5 others",
        ),
        ("jobs 1, 2_0", "2 jobs of others"),
        ("job 3, 4", "job 3, 4"),
        ("job 9, which it waits for, is not known", "another job, which it waits for, is not known"),
        ("GPU 0 is in use by 2_0.0, start 1", "GPU 0 is in use by another user's job, start 1"),
        ("GPU 0 is in use by job 1, start 1", "GPU 0 is in use by another user's job, start 1"),
        ("needs 1 GPU, 2 jobs go before it", "needs 1 GPU, 2 jobs go before it"),
        ("ended with exit code 1", "ended with exit code 1"),
    ],
)
def test_a_text_says_what_it_did_without_others_numbers(text: str, words: str) -> None:
    """[L5]"""
    assert sight().words(text) == words
    assert sight(None).words(text) == text


NAMES = st.lists(st.sampled_from(["1", "2_0", "3", "4", "9"]), min_size=1, max_size=6)


@given(NAMES, st.text(alphabet=" ,(;", max_size=3))
def test_whatever_a_text_names_a_reader_finds_own_jobs_alone(names: list[str], then: str) -> None:
    """[L5]"""
    words = sight().words(f"once one of these is over: job {', '.join(names)}{then}")

    assert set(re.findall(r"\d+_\d+|\d+", words)) - {"3", "4"} <= {f"{len(names) - named_own(names)}"}
    assert all(name in words for name in names if name in ("3", "4"))


def named_own(names: list[str]) -> int:
    return sum(name in ("3", "4") for name in names)


# Texts in entries about a job that name no job, or that one alone.
HARMLESS = {"job_id", "node", "by", "service", "digest", "rule", "host", "master_addr"}
# Texts by the manager or an agent, which `Sight.words` reads.
READ = {"reason", "cause", "raw", "problem"}


def test_each_text_of_an_entry_about_a_job_is_looked_at_here() -> None:
    """[L5] A field that is new may have another job's number: it is one of these, or of `OTHERS_NUMBERS`."""
    found: set[str] = set()
    for kind in (*get_args(log.Told), *get_args(log.Decided)):
        fields = {one.name: one.type for one in structs.fields(kind)}
        if "job_id" in fields:
            found |= {name for name, type_ in fields.items() if type_ is str or type_ == tuple[str, ...]}

    assert found <= HARMLESS | READ | OTHERS_NUMBERS
    assert found >= OTHERS_NUMBERS


def test_an_entry_has_null_for_anothers_number_and_the_users_own_stay() -> None:
    """[L5]"""
    stopping = log.JobStopping(job_id="3", start=1, cause=log.StopCause.PREEMPTED, reason="for job 1", winner="1")
    for_own = structs.replace(stopping, reason="for job 4", winner="4")

    shown = msgspec.to_builtins(sight().event(stopping))

    assert (shown["winner"], shown["reason"]) == (None, "for another user's job")
    assert sight().event(for_own) is for_own
    assert sight(None).event(stopping) is stopping

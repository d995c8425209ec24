"""What the API lets whom do, and what it says to bad input; the application over a real store, without sockets."""

import asyncio
import getpass
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from farside.agent.messages import Donor
from farside.scheduler.admission.partitions import NO_PARTITIONS, Partitions
from farside.scheduler.manager.api.app import make_app
from farside.scheduler.manager.api.context import NO_LIMITS, Context
from farside.scheduler.manager.api.overview_stream import OverviewStreams
from farside.scheduler.manager.auth.caller import Caller, Callers
from farside.scheduler.manager.auth.token_file import Role, add_token
from farside.scheduler.manager.auth.web_session import WebSessions, session_key
from farside.scheduler.manager.log_follower import LiveLog
from farside.scheduler.manager.model.queue_quota import QueueLimits
from farside.scheduler.manager.nodes.sessions import AgentSessions
from farside.scheduler.manager.power.check_setup import PowerSetup
from farside.scheduler.manager.power.controller import NOBODY, LivePower
from farside.scheduler.manager.store.event_store import EventStore
from farside.scheduler.manager.store.migrate import upgrade
from farside.scheduler.tenancy import Tenancy
from tests.live.facts import gpus, joined
from tests.live.store_end import close_after_calls

OTHER = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid()))
THIRD = next(entry for entry in pwd.getpwall() if entry.pw_uid not in (0, os.geteuid(), OTHER.pw_uid))
SELF = getpass.getuser()


class Api:
    """Calls as several users, each as the kernel or a token would name them."""

    def __init__(self, app: FastAPI, tokens: dict[Role, str], sessions: AgentSessions, tokens_file: Path) -> None:
        self.app = app
        self.sessions = sessions
        self.tokens = tokens
        self._tokens_file = tokens_file
        self.context: Context = app.state.context
        self.log: LiveLog = self.context.log
        self.callers: Callers = self.context.callers
        self.overviews: OverviewStreams = self.context.overviews

    def caller(self, role: Role) -> Caller:
        return Caller(name="carl", role=role)

    def node_token(self, node: str) -> str:
        return add_token(self._tokens_file, node, Role.NODE)

    def lead(self) -> None:
        """As if a scheduler process had taken the lead: agents are welcomed once one has."""
        self.log.state.generation = 1

    def token_for_any_node(self) -> str:
        """As versions before made one."""
        token = self.node_token("any")
        self._tokens_file.write_text(self._tokens_file.read_text().replace('"any"', '""'))
        return token

    def revoke_all(self) -> None:
        self._tokens_file.write_text("")

    def as_uid(self, uid: int) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, client=(f"uid:{uid}", 0))
        return httpx.AsyncClient(transport=transport, base_url="http://manager")

    def as_role(self, role: Role | None) -> httpx.AsyncClient:
        return self.as_token(None if role is None else self.tokens[role])

    def as_token(self, token: str | None) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app=self.app, client=("192.0.2.7", 4711))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.AsyncClient(transport=transport, base_url="http://manager", headers=headers)


@asynccontextmanager
async def an_api(
    folder: Path,
    tenancy: Tenancy | None = None,
    *,
    only_uid: int | None = None,
    queue_limits: QueueLimits = NO_LIMITS,
    operators: frozenset[str] = frozenset(),
    takes_unproved: bool = True,
    partitions: Partitions = NO_PARTITIONS,
    cpus_in_proportion: bool = False,
    paces_users: bool = False,
) -> AsyncIterator[Api]:
    store = EventStore(f"sqlite:///{folder}/manager.db")
    upgrade(store)
    tokens = folder / "tokens.toml"
    made = {role: add_token(tokens, "carl", role) for role in Role}
    log = LiveLog(store, folder)
    callers = Callers(
        tokens, operators, os.geteuid(), WebSessions(session_key(folder)), admissions=lambda: log.state.admissions
    )
    sessions = AgentSessions(log, callers, 60.0, takes_unproved=takes_unproved)
    power = LivePower(PowerSetup(policy=NOBODY, is_dry_run=False), log, sessions, folder)
    app = make_app(
        Context(
            log=log, callers=callers, folder=folder, sessions=sessions, power=power, may_tokens_submit=False,
            gpu_power_w=700.0, only_uid=only_uid, tenancy=tenancy, queue_limits=queue_limits,
            partitions=partitions, cpus_in_proportion=cpus_in_proportion, paces_users=paces_users,
        )
    )  # fmt: skip
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(log.run(ready.set))
        await ready.wait()
        await log.write([joined("n0", cpus=8, memory_bytes=1 << 30, gpus=gpus(8, "H200"))], "test")
        try:
            yield Api(app, made, sessions, tokens)
        finally:
            running.cancel()
    await close_after_calls(store)


def api_test(test: Callable[[Api], Awaitable[None]], folder: Path) -> None:
    async def run() -> None:
        async with an_api(folder) as api:
            await test(api)

    asyncio.run(run())


def test_users_see_and_stop_their_own_jobs_and_an_operator_all(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        mine = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]

        seen = [
            [job["id"] for job in (await api.as_uid(uid).get("/v1/jobs")).json()["jobs"]]
            for uid in (OTHER.pw_uid, THIRD.pw_uid, 0)
        ]
        refused = await api.as_uid(THIRD.pw_uid).post(f"/v1/jobs/{mine}/cancel")
        allowed = await api.as_uid(OTHER.pw_uid).post(f"/v1/jobs/{mine}/cancel")

        assert seen == [[mine], [], [mine]]
        assert (refused.status_code, refused.json()) == (404, {"detail": f"job {mine}: you have no such job"})
        assert allowed.status_code == 200

    api_test(test, tmp_path)


def test_a_job_belongs_to_whom_the_kernel_says_and_not_to_a_name_in_the_body(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)
        named = await client.post("/v1/jobs", json={"argv": ["true"], "user": "root"})
        job = (await client.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]

        assert (named.status_code, named.json()["detail"]) == (422, "user: no such key")
        assert (await client.get(f"/v1/jobs/{job}")).json()["user"] == OTHER.pw_name

    api_test(test, tmp_path)


@pytest.mark.parametrize(("only_uid", "status"), [(None, 403), (0, 201)])
def test_root_submits_only_where_all_jobs_run_as_root(only_uid: int | None, status: int, tmp_path: Path) -> None:
    async def run() -> httpx.Response:
        async with an_api(tmp_path, only_uid=only_uid) as api:
            return await api.as_uid(0).post("/v1/jobs", json={"argv": ["true"]})

    answer = asyncio.run(run())

    assert answer.status_code == status
    says = "root is uid 0, and no task runs as that: submit as the user whose job it is (runuser -u USER -- farside"
    assert status == 201 or answer.json()["detail"] == f"{says} ...)"


def test_where_all_jobs_run_as_one_user_only_he_submits(tmp_path: Path) -> None:
    async def run() -> None:
        async with an_api(tmp_path, only_uid=OTHER.pw_uid) as api:
            taken = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]})
            refused = [await api.as_uid(uid).post("/v1/jobs", json={"argv": ["true"]}) for uid in (THIRD.pw_uid, 0)]

            assert taken.status_code == 201
            assert [answer.status_code for answer in refused] == [403, 403]
            assert refused[0].json()["detail"].startswith(f"all jobs here run as uid {OTHER.pw_uid}, who started")
            assert len((await api.as_uid(0).get("/v1/jobs?all=true")).json()["jobs"]) == 1

    asyncio.run(run())


def test_a_wrong_token_is_one_clear_line(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_role(None)
        answer = await client.get("/v1/jobs", headers={"Authorization": "Bearer wrong"})

        assert (answer.status_code, answer.json()) == (401, {"detail": "this token is not known here"})

    api_test(test, tmp_path)


def roles(**counts: int) -> dict[str, object]:
    """A job of a worker with a GPU, or of as many as told, and of so many processes of roles without."""
    counts = {"worker": 1, **counts}
    return {
        "roles": [
            {"name": name, "argv": ["true"], "count": count, "gpus": int(name == "worker")}
            for name, count in counts.items()
        ]
    }


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"argv": ["true"], "gpus": 9}, "gpus: it asks for 9, and the cluster has 8; ask for fewer"),
        (
            {"argv": ["true"], "gpus": 0},
            "gpus: a job without GPUs has colocate = true; add that, or ask for 1 or more",
        ),
        (
            {"argv": ["true"], "colocate": True, "checkpoint_dir": "/tmp"},
            "colocate: no node is set aside for such jobs; an operator names some in colocation_nodes",
        ),
        ({"argv": ["true"], "gpu_model": "B200"}, "of model B200"),
        ({"argv": []}, "argv: "),
        ({"argv": ["a\0b"]}, "zero byte"),
        ({"argv": ["true"], "cwd": "here"}, "cwd: must be an absolute path, is 'here'"),
        ({"argv": ["true"], "colour": "red"}, "colour: no such key"),
        ({"argv": ["true"], "gpus": "many"}, "gpus: "),
        ({"argv": ["true"], "after": ["77"]}, "after: there is no job 77"),
        ({"argv": ["true"], "env": {"A-B": "1"}}, "env"),
        ({"argv": ["true"], "memory_bytes_per_gpu": 1e12}, "no node has that much"),
        ({"argv": ["x" * 200_000]}, "argv"),
        (roles(ps=10_050), "roles: 10,051 processes in all; a job with roles has at most 4,096; lower their count"),
        (roles(ps=512), "roles: 513 processes would stand on one node, which takes 512; lower their count"),
        (roles(ps=100_000, worker=100_000), "roles: 200,000 processes in all"),
        ({"roles": [{"name": "ps", "argv": ["s"], "gpus": 0}]}, "roles: none has GPUs"),
        (
            {
                "roles": [
                    {"name": name, "argv": ["true"], "memory_bytes": 1e308, "swap_bytes": 1e308, "gpus": gpus}
                    for name, gpus in (("worker", 1), ("ps", 0))
                ]
            },
            "swap_bytes_per_gpu: must be 0 to 1e+18, is inf",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_job_that_can_never_run_is_refused_at_once_in_one_line(
    body: dict[str, object], says: str, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json=body)

        assert answer.status_code == 422
        assert says in answer.json()["detail"]
        assert "\n" not in answer.json()["detail"]
        assert (await api.as_uid(0).get("/v1/jobs?all=true")).json() == {"jobs": []}

    api_test(test, tmp_path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"env": {"1x": "1"}}, "env: '1x' is not a name of a variable; they are letters, digits and _, no digit first"),
        (
            {"env": {"A=B": "1"}},
            "env: 'A=B' is not a name of a variable; they are letters, digits and _, no digit first",
        ),
        (
            {"env": {"A": "x" * 140_000}},
            "env: one variable is longer than the 131071 bytes that Linux takes; put it in a file",
        ),
        ({"env": {f"A{at}": "" for at in range(1025)}}, "env: at most 1,024, not 1,025; put them in a file"),
        (
            {"argv": ["x" * 140_000]},
            "argv: one argument is longer than the 131071 bytes that Linux takes; put it in a file",
        ),
        ({"argv": ["x"] * 4097}, "argv: at most 4,096, not 4,097; put them in a file"),
        ({"argv": ["a\0"]}, "a text contains a zero byte, which no program can be given"),
        ({"time_limit_s": 5e9}, "time_limit_s: must be 0 to 4e+09 seconds, is 5e+09; 0 is none"),
        ({"cwd": "rel"}, "cwd: must be an absolute path, is 'rel'"),
        ({"gpu_model": "B200"}, "gpus: it asks for 1, and the cluster has none of model B200; ask for others"),
        (
            {"after": [str(at) for at in range(1001)]},
            "after: at most 1,000, not 1,001; wait for one that waits for them",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_job_may_not_ask_is_said_once_and_in_words_of_its_own(
    body: dict[str, object], says: str, tmp_path: Path
) -> None:
    async def test(api: Api) -> None:
        detail = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"], **body})).json()["detail"]

        assert detail.split("; after: ")[0] == says

    api_test(test, tmp_path)


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_a_number_that_is_none_is_said_once(number: str, tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = b'{"argv": ["true"], "time_limit_s": %b}' % number.encode()
        headers = {"Content-Type": "application/json"}
        detail = (await api.as_uid(OTHER.pw_uid).post("/v1/jobs", content=body, headers=headers)).json()["detail"]

        assert detail.count("time_limit_s") == 1
        assert "protocol" not in detail

    api_test(test, tmp_path)


def test_jobs_to_wait_for_count_once_and_not_without_end_in_an_array(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)
        ids = (await client.post("/v1/jobs", json={"argv": ["true"], "count": 60})).json()["ids"]

        same = (await client.post("/v1/jobs", json={"argv": ["true"], "after": ids[:1] * 1000, "count": 2000})).json()
        many = (await client.post("/v1/jobs", json={"argv": ["true"], "after": ids, "count": 2000})).json()["detail"]

        assert api.log.state.jobs[same["ids"][0]].spec.after == (ids[0],)
        assert many == "after: 60 jobs for each of 2,000 are more than 100,000 in all; wait for one that waits for them"

    api_test(test, tmp_path)


def test_the_history_of_a_job_begins_with_who_submitted_it(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)
        job = (await client.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        await client.post(f"/v1/jobs/{job}/hold")

        entries = (await client.get(f"/v1/jobs/{job}/history")).json()["entries"]

        assert [(entry["type"], entry["cause"]) for entry in entries] == [
            ("JobSubmitted", f"user {OTHER.pw_name}, uid {OTHER.pw_uid}"),
            ("HoldRequested", f"user {OTHER.pw_name}, uid {OTHER.pw_uid}"),
        ]

    api_test(test, tmp_path)


def test_only_an_operator_releases_what_an_operator_holds(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        client = api.as_uid(OTHER.pw_uid)
        job = (await client.post("/v1/jobs", json={"argv": ["true"]})).json()["ids"][0]
        await api.as_uid(0).post(f"/v1/jobs/{job}/hold")

        assert (await client.post(f"/v1/jobs/{job}/release")).status_code == 403
        assert (await api.as_uid(0).post(f"/v1/jobs/{job}/release")).json()["state"] == "waiting"

    api_test(test, tmp_path)


def test_a_listed_job_has_the_documented_keys(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["/bin/true"], "gpus": 2})
        (job,) = (await api.as_uid(0).get("/v1/jobs")).json()["jobs"]

        assert list(job) == [
            "id", "name", "user", "account", "qos", "partition", "deployment", "state", "exit_code", "gpus", "nodes",
            "submit_s", "start_s", "started_s", "end_s", "starts", "preemptions", "reason",
        ]  # fmt: skip
        assert (job["name"], job["state"], job["start_s"]) == ("true", "waiting", None)

    api_test(test, tmp_path)


def test_the_description_is_openapi_3_1_and_names_every_path(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        described = (await api.as_role(None).get("/v1/openapi.json")).json()

        assert described["openapi"].startswith("3.1")
        assert {"/v1/jobs", "/v1/jobs/{job_id}/explain", "/v1/nodes/{name}/drain"} <= set(described["paths"])

    api_test(test, tmp_path)


def test_a_node_asks_for_its_own_donors_and_people_for_all_of_them(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        donor = Donor(node="d1", control="tcp:10.0.0.1:7677", has_rdma=True)
        await api.log.write([joined("n1", "10.0.0.1", donor=donor), joined("carl", "10.0.0.2")], "test")
        node, person = api.as_role(Role.NODE), api.as_uid(OTHER.pw_uid)

        own, everybody = await node.get("/v1/donors"), await person.get("/v1/donors")
        lender, others = await person.get("/v1/donors?node=n1"), await node.get("/v1/donors?node=n1")

        address = {"donor": "d1", "control": "tcp:10.0.0.1:7677", "rdma": True}
        assert own.json() == {"donors": [address]}
        nothing = {"lends": False, "lendable_bytes": 0, "loans": []}
        assert everybody.json() == {"donors": [{"node": "n1", **address, **nothing}]}
        assert lender.json() == {"donors": []}
        assert (others.status_code, others.json()) == (403, {"detail": "node carl may not ask for node n1"})

    api_test(test, tmp_path)


def test_a_submission_that_comes_again_under_its_key_is_the_same_one_also_after_a_restart(tmp_path: Path) -> None:
    async def submit(api: Api, uid: int, key: str) -> list[str]:
        told = {"Idempotency-Key": key} if key else {}
        answer = await api.as_uid(uid).post("/v1/jobs", json={"argv": ["true"], "count": 2}, headers=told)
        assert answer.status_code == 201
        ids: list[str] = answer.json()["ids"]
        return ids

    async def before(api: Api) -> None:
        first, again = await asyncio.gather(submit(api, THIRD.pw_uid, "a"), submit(api, THIRD.pw_uid, "a"))
        assert first == again == ["1_0", "1_1"]
        assert await submit(api, OTHER.pw_uid, "a") == ["2_0", "2_1"]  # another's keys are another's
        assert await submit(api, THIRD.pw_uid, "b") == ["3_0", "3_1"]
        assert (await submit(api, THIRD.pw_uid, ""))[0] == "4_0"

    async def after(api: Api) -> None:
        assert await submit(api, THIRD.pw_uid, "a") == ["1_0", "1_1"]
        assert (await submit(api, THIRD.pw_uid, ""))[0] == "5_0"

    api_test(before, tmp_path)
    api_test(after, tmp_path)


def test_a_reservation_that_comes_again_under_its_key_is_made_once(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        body = {"nodes": ["n0"], "from_s": 9e9, "to_s": 9.1e9}
        told = {"Idempotency-Key": "a"}
        made = [(await api.as_uid(0).post("/v1/reservations", json=body, headers=told)).json()["id"] for _ in range(2)]

        assert made == ["m1", "m1"]
        assert len((await api.as_uid(0).get("/v1/reservations")).json()["reservations"]) == 1

    api_test(test, tmp_path)


def test_a_key_that_no_client_makes_is_refused(tmp_path: Path) -> None:
    async def test(api: Api) -> None:
        told = {"Idempotency-Key": "x" * 65}
        answer = await api.as_uid(OTHER.pw_uid).post("/v1/jobs", json={"argv": ["true"]}, headers=told)

        assert answer.status_code == 422
        assert "Idempotency-Key" in answer.json()["detail"]

    api_test(test, tmp_path)
